"""The cases of the golden corpus, and the small emitter that turns them into bytes.

``emit``         field by field to bytes, with a map of what stands where; shares nothing with the library
``pieces``       the fields of layouts, quantization schemes and sections
``cases``        what a case is
``descriptors``  accepted bare descriptors
``contents``     tensors that hold something, for files and streams
``files``        accepted files
``streams``      accepted streams
``real``         the slice of a real cache
``refused_…``    the same again with one rule broken, and the rule's id
``values``       what the accepted ones hold, from the plain decoder
"""
