"""Rules that no file can break, with the reason. A unit test breaks each of them instead."""

from __future__ import annotations

_FIELD = "the field on the wire holds nothing that breaks it"
_CALL = "it is about what a caller asks for"
_WRITER = "it is about what a caller hands to a writer"
_GATHER = "it is about how a caller gathers"
_EXPORT = "it is about what a snapshot is exported to"
_ADAPTER = "it is about the arrays of an engine, which are no bytes of ours"

API_ONLY: dict[str, str] = {
    "descriptor.shape": _FIELD,
    "descriptor.version-minor": _FIELD,
    "buffer.byte-size": _FIELD,
    "shard.rank": "both lists are read with the rank of the tensor",
    "statistics.group": "the fields of a group share one bit",
    "extension-type.bits": _FIELD,
    "layout.strides": "as many strides are read as the rank says, each an i64",
    "layout.tile-strides": "they are read if and only if the layout is strided",
    "layout.nnz": _FIELD,
    "layout.extension": _FIELD,
    "block-paged.num-pages": _FIELD,
    "block-paged.num-seqs": _FIELD,
    "block-paged.layer-index": "0xFFFFFFFF means no layer",
    "block-paged.shape": _CALL,
    "block-paged.element": _CALL,
    "block-paged.seq-ptr-length": "a file with too short a seq_ptr breaks buffer.too-small",
    "quantization.presence": _CALL,
    "quantization.page-slots": _CALL,
    "quantization.not-finite": _WRITER,
    "trailer.truncated": "a file without room for header and trailer breaks container.truncated",
    "metadata.number": _WRITER,
    "index.no-name": _CALL,
    "file.regular": "it is about what stands at a path",
    "file.seekable": "it is about the object that is read from",
    "file.object": "it is about the object that is read from or written to",
    "file.truncated": "it is about a file that shrinks while it is read",
    "file.changed": "it is about a remote file that changes while it is read",
    "file.range": "it is about a server that does not give the range it was asked for",
    "file.url": "it is about an address",
    "stream.failed": "it is about a decoder that goes on after an error",
    "stream.unknown-layout": "a reader of streams is strict, so that layout.tag comes first",
    "stream.no-names": _CALL,
    "composite.add": _CALL,
    "composite.group": _CALL,
    "composite.private": _CALL,
    "layout.composite": _CALL,
    "compressed.level": _WRITER,
    "compressed.page-size": _WRITER,
    "compressed.planes-without-zstd": _WRITER,
    "snapshot.quantize": _WRITER,
    "snapshot.no-tensor": _CALL,
    "snapshot.identity": _WRITER,
    "snapshot.reserved-key": _WRITER,
    "snapshot.scale": _WRITER,
    "element-type.dtype": _WRITER,
    "buffer.count": _WRITER,
    "buffer.size": _WRITER,
    "buffer.type": _WRITER,
    "wire.build": _WRITER,
    "array.shape": _WRITER,
    "array.dtype": _WRITER,
    "layout.overlap": _WRITER,
    "layout.dense": _CALL,
    "layout.sparse": _CALL,
    "sparse.scipy": "it is about what SciPy can hold",
    "jax.dtype": "it is about what JAX can hold",
    "torch.array": "it is about what PyTorch can hold",
    "export.batch": _EXPORT,
    "export.quantized": _EXPORT,
    "export.ranks": _EXPORT,
    "gather.array": _GATHER,
    "gather.pool": _GATHER,
    "gather.seqs": _GATHER,
    "gather.max-len": _GATHER,
    "gather.fill": _GATHER,
    "gather.out": _GATHER,
    "gather.size": _GATHER,
    "limit.memory": "it is about the memory of the machine",
    **{
        f"adapter.{name}": _ADAPTER
        for name in (
            "agreement", "ambiguous", "array-kind", "axis-size", "copy-count", "copy-shape", "copy-type", "declared",
            "destination", "device", "form", "heads", "layer-index", "layers", "name", "no-layout", "opaque-record",
            "rank", "relabel", "roles", "table-rank", "table-type", "token-slots", "undeclared",
        )
    },
}  # fmt: skip
