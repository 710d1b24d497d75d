"""What the library finds in an input, as the document that every reader in another language prints.

Tensors come from public objects, header, index and trailer from the codec that `hurray_wire.open` uses. One thing the
library does not keep: by which of the two integer tags a number of the metadata was stored. `comparable` takes it from
the other side too.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import hurray_wire as hw
from fixtures import dumping
from hurray_wire.wire import container
from hurray_wire.wire.index import decode_index

Json = dict[str, Any]

KINDS = {str: "string", bool: "bool", int: "integer", float: "f64", bytes: "bytes", list: "array"}


def of(data: bytes, form: str, **options: Any) -> Json:
    """The document of a file, a stream or a descriptor."""
    if form == "descriptor":
        return {"form": form, "descriptor": dumping.of_descriptor(hw.TensorDescriptor.decode(data, **options))}
    if form == "stream":
        return {"form": form, "tensors": [dumping.of_tensor(t) for t in hw.StreamReader(io.BytesIO(data), **options)]}
    return _file(data, **options)


def _file(data: bytes, **options: Any) -> Json:
    raw, size, limits = memoryview(data), len(data), hw.Limits()
    header = container.decode_header(raw[: container.HEADER_BYTES])
    tail = raw[size - container.TRAILER_BYTES :]
    trailer = container.decode_trailer(tail, file_size=size, header=header, limits=limits)
    index = decode_index(
        raw[trailer.index_offset :][: trailer.index_length],
        header=header,
        trailer=trailer,
        file_size=size,
        limits=limits,
    )
    entries = sorted(index, key=lambda entry: entry.name.encode()) if header.sorted_index else list(index)
    with hw.open(data, **options) as file:
        metadata = [_metadata(key, value) for key, value in file.metadata.items()]
        tensors = [{"name": name, **dumping.of_tensor(tensor)} for name, tensor in file.items()]
    return {
        "form": "file",
        "header": {
            "container_major": 1,
            "container_minor": header.container_minor,
            "file_flags": header.has_kv_metadata | header.sorted_index << 1 | header.has_index_crc32c << 2,
            "data_buffer_alignment": header.data_buffer_alignment,
            "first_descriptor_offset": header.first_descriptor_offset,
            "tensor_count_hint": _number(header.tensor_count_hint),
        },
        "kv_metadata": metadata if trailer.kv_length else None,
        "index": [
            {
                "name": entry.name,
                "descriptor_offset": entry.descriptor_offset,
                "descriptor_length": entry.descriptor_length,
                "data_offset": entry.data_offset,
                "data_length": entry.data_length,
                "flags": 0,
            }
            for entry in entries
        ],
        "trailer": {
            "index_offset": trailer.index_offset,
            "index_length": trailer.index_length,
            "kv_offset": trailer.kv_offset,
            "kv_length": trailer.kv_length,
            "index_crc32c": f"{trailer.index_crc32c:08x}",
        },
        "tensors": tensors,
    }


def _metadata(key: str, value: Any) -> Json:
    if not isinstance(value, list):
        return {"key": key, "kind": KINDS[type(value)], "value": _scalar(value)}
    kinds = {KINDS[type(element)] for element in value}
    assert len(kinds) < 2
    values = [_scalar(element) for element in value]
    return {"key": key, "kind": "array", "element_kind": kinds.pop() if kinds else None, "value": values}


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    if isinstance(value, bytes):
        return value.hex()
    return _number(value) if type(value) is int else value


def _number(value: int) -> int | str:
    return value if abs(value) < 2**53 else str(value)


def comparable(document: Json) -> Json:
    """A document of the plain decoder without what the library does not keep: kinds of integers."""
    shaped = dict(document)
    if shaped.get("kv_metadata"):
        shaped["kv_metadata"] = [_without_integer_kind(entry) for entry in shaped["kv_metadata"]]
    return shaped


def _without_integer_kind(entry: Json) -> Json:
    def merged(kind: str) -> str:
        return "integer" if kind in ("i64", "u64") else kind

    found = {**entry, "kind": merged(entry["kind"])}
    if "element_kind" in entry:
        found["element_kind"] = merged(entry["element_kind"]) if entry["value"] else None
    return found
