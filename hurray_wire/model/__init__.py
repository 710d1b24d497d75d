"""What things are: frozen objects and the rules they keep. No bytes, no construct, no files.

``element_types`` (spec/descriptor.md, element types), ``layouts`` and ``block_paged`` (spec/layouts.md),
``quantization`` (spec/quantization.md) and ``descriptor`` (spec/descriptor.md). An object that exists is valid: it is
checked while it is made, in the order of the specification, and nothing past that gate asks again.
"""
