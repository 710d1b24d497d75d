"""Bytes, arrays and moments that wish us ill."""
