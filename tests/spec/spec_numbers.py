"""Decoded objects as the numbers of the wire, so that two decoders and a page can be compared field by field.

``leaves`` walks what ``tools/plain_decoder.py`` gives, in the order in which the fields stand; ``numbers`` brings what
the library gives into the same shape.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterator
from typing import Any

from spec_pages import ROOT

from hurray_wire.model import layouts
from hurray_wire.model import sections as model
from hurray_wire.model.block_paged import BlockPagedLayout
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.quantization import NO_BUFFER, Quantization

FLOATS = {"sparsity_ratio", "value_min", "value_max", "value_abs_max", "value_mean", "value_stddev"}
SECTIONS = ("quantization", "shard", "extension_type", "statistics", "composite_member")


def load_plain_decoder() -> Any:
    path = ROOT / "tools" / "plain_decoder.py"
    spec = importlib.util.spec_from_file_location("plain_decoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("plain_decoder", module)
    spec.loader.exec_module(module)
    return module


plain = load_plain_decoder()


def leaves(document: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(field, number) for every field of a decoded structure, in order. A list of numbers is one
    field, and none at all if it is empty, as the shape of a scalar is."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, key)
    elif isinstance(document, list) and any(isinstance(item, dict) for item in document):
        for item in document:
            yield from leaves(item, name)
    elif document is not None and document != []:
        yield name, _number(name, document)


def _number(name: str, value: Any) -> Any:
    if name == "scale" and isinstance(value, str):
        return struct.unpack(">f", bytes.fromhex(value))[0]
    if name in FLOATS and isinstance(value, str):
        return struct.unpack(">d", bytes.fromhex(value))[0]
    if name == "index_crc32c" and isinstance(value, str):
        return int(value, 16)
    return list(value) if isinstance(value, tuple) else value


def numbers(descriptor: TensorDescriptor) -> dict[str, Any]:
    """A descriptor object as fields with the numbers of the wire."""
    flags = sum(1 << bit for bit, name in enumerate(SECTIONS) if getattr(descriptor, name) is not None)
    return {
        "version_minor": descriptor.version_minor,
        "flags": flags,
        "type_tag": descriptor.element_type.tag,
        "layout_tag": descriptor.layout.tag,
        "rank": descriptor.rank,
        "shape": list(descriptor.shape),
        "byte_offset": descriptor.byte_offset,
        "layout": _layout(descriptor.layout),
        "buffer_count": len(descriptor.buffers),
        "buffer_handles": [
            {"byte_size": handle.byte_size, "alignment": handle.alignment} for handle in descriptor.buffers
        ],
        "quantization": None if descriptor.quantization is None else _quantization(descriptor.quantization),
        "shard": _slots(descriptor.shard),
        "statistics": _statistics(descriptor.statistics),
        "extension_type": _slots(descriptor.extension_type),
        "composite_member": None
        if descriptor.composite_member is None
        else {"role": model.CompositeMember.ROLES[descriptor.composite_member.role]},
    }


def _layout(layout: layouts.Layout) -> dict[str, Any]:
    fields = _slots(layout) or {}
    if isinstance(layout, BlockPagedLayout):
        fields["kv_role"] = layout.KV_ROLES[layout.kv_role]
        fields["layer_index"] = layout.NO_LAYER if layout.layer_index is None else layout.layer_index
        fields["block_table_index_type"] = layout.INDEX_TYPES[layout.block_table_index_type]
    if isinstance(layout, layouts.TiledLayout):
        fields["outer_layout"] = layout.OUTER_LAYOUTS[layout.outer_layout]
        fields["inner_layout"] = layout.INNER_LAYOUTS[layout.inner_layout]
        inner = fields.pop("inner_tiled")
        fields["inner"] = None if inner is None else _layout(inner)
    if isinstance(layout, layouts.CompositeLayout):
        assert isinstance(layout.composition_rule, str)
        fields = {
            "composition_rule": layout.RULES[layout.composition_rule],
            "combine_op": 0 if layout.combine_op is None else layout.COMBINE_OPS[layout.combine_op],
            "member_count": layout.member_count,
        }
    return fields


def _quantization(scheme: Quantization) -> dict[str, Any]:
    fields = _slots(scheme) or {}
    fields |= {"scheme_tag": scheme.tag, "flags": int(getattr(scheme, "is_symmetric", False))}
    if "zero_point_buffer_index" in fields and fields["zero_point_buffer_index"] is None:
        fields["zero_point_buffer_index"] = NO_BUFFER
    if scheme.tag in (2, 3):
        fields["scale_type_tag"] = scheme.scale_type.tag  # type: ignore[attr-defined]
        fields.pop("scale_type", None)
    return fields


def _statistics(statistics: model.Statistics | None) -> dict[str, Any] | None:
    fields = _slots(statistics)
    return fields if statistics is None or fields is None else {"computed_mask": statistics.computed_mask, **fields}


def _slots(thing: Any) -> dict[str, Any] | None:
    if thing is None:
        return None
    fields = {name: getattr(thing, name) for name in getattr(thing, "__dataclass_fields__", {})}
    return {name: int(value) if isinstance(value, bool) else value for name, value in fields.items()}
