"""From a descriptor and its buffers to NumPy arrays, and back. No files, no wire.

``packing``     elements narrower than a byte
``places``      where an element lies in the strided, tiled and Morton layouts
``hilbert``     where the Hilbert curve goes
``dense``       dense tensors as arrays, and back
``sparse``      COO, CSR, CSC and CSF tensors, checked by ``sparse_checks``
``dequantize``  stored numbers to real ones
``quantize``    floating page pools to int8 ones
``composite``   several tensors as one; ``coverage`` asks whether a partition has gaps or overlaps
``memory``      asking for memory within the limits

A buffer is a one-dimensional uint8 array of exactly its handle's ``byte_size``, usually a read-only view of a mapped
file. Descriptors are valid already; what is checked here is what only the payload can tell.
"""
