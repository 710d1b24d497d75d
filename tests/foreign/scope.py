"""What the programs in other languages do not cover, each with its reason, so that nothing drops out in silence.

``test_corpus.py`` holds these lists to the corpus in both directions: whatever is not named here must be refused, and
whatever is named must indeed be accepted.
"""

from __future__ import annotations

# Layouts that the four programs, which are about block-paged tensors, answer with "unsupported". Kaitai knows them all.
STRIDED, TILED, MORTON, COO, CSR, CSC, CSF, HILBERT = 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x40
PRIVATE = {*range(0xF0, 0xFF)}
UNSUPPORTED = {STRIDED, TILED, MORTON, COO, CSR, CSC, CSF, HILBERT, *PRIVATE}

# Rules of which no reader here knows anything.
_SNAPSHOT = "what tensors mean as a snapshot is for whoever gathers: the programs read tensors"
_LIMIT = "a bound that hurray_wire sets itself"
BEYOND_ALL = {
    "descriptor.dynamic": "it is about asking for the elements",
    "limit.index-bytes": _LIMIT,
    "limit.metadata-bytes": _LIMIT,
    "snapshot.duplicate-role": _SNAPSHOT,
    "snapshot.scale-shape": _SNAPSHOT,
    "snapshot.seq-lens-count": _SNAPSHOT,
    "snapshot.seq-lens-pages": _SNAPSHOT,
    "snapshot.seq-lens-sum": _SNAPSHOT,
    "snapshot.seq-lens-type": _SNAPSHOT,
    "snapshot.seq-lens-unknown": _SNAPSHOT,
    "snapshot.stream-group": _SNAPSHOT,
    "snapshot.stream-metadata": _SNAPSHOT,
    "snapshot.stream-names": _SNAPSHOT,
    "snapshot.version": _SNAPSHOT,
    "stream.empty": "a stream without tensors is a stream, and only no snapshot",
    "stream.sync-mode": "only the receiver knows whether the sender is another machine",
}
FILES_BEYOND_ALL = {
    "metadata.truncated--stream.stream": "the metadata of a snapshot on a stream are a tensor like any other",
}

# Rules that the Kaitai description leaves to others, as the comment at its head says.
_CONTENTS = "the contents of a buffer are not looked into"
_MEMBERS = "it relates tensors to one another"
_SHAPE = "it relates the shape to other fields"
_PLACES = "it relates places in the file"
_TYPE = "it relates the element type to a section"
_BUFFERS = "it relates a section to the buffer handles"
_CHECKSUM = "checksums are not computed"
BEYOND_KAITAI = {
    "block-paged.page-id": _CONTENTS,
    "block-paged.quantization": "it relates the layout to a section",
    "block-paged.seq-ptr-end": _CONTENTS,
    "block-paged.seq-ptr-order": _CONTENTS,
    "block-paged.seq-ptr-start": _CONTENTS,
    "buffer.entries": _BUFFERS,
    "buffer.same-device": "it relates handles to one another",
    "buffer.same-memory-class": "it relates handles to one another",
    "buffer.tail-bits": _CONTENTS,
    "buffer.too-small": _SHAPE,
    "composite-member.head": "it relates the layout to a section",
    "composite.base": _MEMBERS,
    "composite.coverage": _MEMBERS,
    "composite.depth": _MEMBERS,
    "composite.element-type": _MEMBERS,
    "composite.member-section": _MEMBERS,
    "composite.overlap": _MEMBERS,
    "composite.parent-shape": _MEMBERS,
    "composite.shard": _MEMBERS,
    "composite.torn": _MEMBERS,
    "container.hole": _PLACES,
    "container.overlap": _PLACES,
    "extension-type.presence": "it relates the element type to a flag",
    "index.crc": _CHECKSUM,
    "index.data-length": _PLACES,
    "index.name-duplicate": "it relates names to one another",
    "index.order": "it relates entries to one another",
    "layout.strided-reach": _SHAPE,
    "limit.addressable": _LIMIT,
    "limit.dense-bytes": _LIMIT,
    "limit.members": _MEMBERS,
    "metadata.key-duplicate": "it relates keys to one another",
    "quantization.axis": "it relates a section to the rank",
    "quantization.buffer-index": _BUFFERS,
    "quantization.mxfp-multiple": _SHAPE,
    "quantization.mxfp-scale": _CONTENTS,
    "quantization.storage": _TYPE,
    "quantization.zero-point": _TYPE,
    "shard.bounds": _SHAPE,
    "shard.dynamic": _SHAPE,
    "shard.layout": "it relates the layout to a section",
    "sparse.bounds": _CONTENTS,
    "sparse.duplicate": _CONTENTS,
    "sparse.level": _CONTENTS,
    "sparse.order": _CONTENTS,
    "sparse.pointer": _CONTENTS,
    "trailer.crc-unused": "it relates the trailer to a flag of the header",
    "verify.crc": _CHECKSUM,
    "verify.crc-count": _CHECKSUM,
    "verify.crc-type": "the meaning of a metadata key is not known",
    "verify.metadata-crc": _CHECKSUM,
    "verify.padding": "padding between things is not part of any structure",
}
FILES_BEYOND_KAITAI = {
    "container.first-descriptor--18446744073709551615.hrry": "as a double, this is a multiple of 8",
    "container.first-descriptor--4096.hrry": _PLACES,
    "container.first-descriptor--72.hrry": _PLACES,
    "container.first-descriptor--hidden.hrry": _PLACES,
    "container.first-descriptor--no-tensors.hrry": _PLACES,
    "descriptor.buffer-count--composite-quantized.desc": "it relates the layout to a section",
    "descriptor.buffer-count--extra.desc": "it relates the layout to the handles",
    "descriptor.buffer-count--paged-2.desc": "it relates the layout to the handles",
    "descriptor.byte-offset--past-end.desc": "it relates byte_offset to a handle",
    "descriptor.length--index-longer.hrry": "it relates the index to a descriptor",
    "index.data-place--length.hrry": _PLACES,
    "index.data-place--wrap.hrry": _PLACES,
    "layout.hilbert-order--shape.desc": _SHAPE,
    "layout.mode-order--twice.desc": "it relates the entries of an array to one another",
    "layout.morton-bits--max.desc": "it relates the entries of an array to one another",
    "layout.morton-bits--shape.desc": _SHAPE,
    "layout.morton-bits--sum.desc": "it relates the entries of an array to one another",
    "trailer.kv-place--flag.hrry": "it relates the trailer to a flag of the header",
}


def rules_beyond(program: str) -> set[str]:
    """Rules of which a program checks nothing."""
    return {*BEYOND_ALL, *(BEYOND_KAITAI if program == "kaitai" else ())}


def files_beyond(program: str) -> set[str]:
    """Refused files that a program accepts, of rules that it otherwise checks."""
    return {*FILES_BEYOND_ALL, *(FILES_BEYOND_KAITAI if program == "kaitai" else ())}


def unsupported_by(program: str) -> set[int]:
    """Tags of the layouts that a program does not know."""
    return set() if program == "kaitai" else UNSUPPORTED
