"""Bytes to model objects and back. No files, no paths.

``structs`` states every table once; ``doorway`` is the only caller of construct; ``descriptors``, ``layouts`` and
``quantization`` turn a descriptor's bytes into its object and back; ``container``, ``metadata`` and ``seektable`` do
the same for the parts of a file.
"""
