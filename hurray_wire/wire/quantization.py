"""Quantization sections: bytes to scheme objects and back (spec/quantization.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidDescriptorError
from ..model import quantization as m
from ..model.element_types import ElementType, from_tag
from . import structs
from .doorway import Cursor, build, located

__all__ = ["decode_quantization", "encode_quantization"]

SCHEME_VERSION = 1
SYMMETRIC = 1  # the only flag, and only for the two schemes with optional zero points


def decode_quantization(section: memoryview, *, base: int = 0) -> m.Quantization:
    """The scheme held by a quantization section (its length field excluded); zero padding may follow it."""
    cursor = Cursor(section, area="quantization", base=base)
    header = cursor.take(structs.QUANTIZATION_HEADER, "the quantization section")
    decoder = _DECODERS.get(header.scheme_tag)
    with located(base):
        if decoder is None:
            raise InvalidDescriptorError(
                f"quantization scheme tag 0x{header.scheme_tag:02X} is reserved or unknown",
                rule="quantization.tag",
                found=header.scheme_tag,
            )
        if header.scheme_version != SCHEME_VERSION:
            raise InvalidDescriptorError(
                f"quantization scheme version is {header.scheme_version}, not {SCHEME_VERSION}",
                rule="quantization.version",
                declared=SCHEME_VERSION,
                found=header.scheme_version,
            )
        allowed = SYMMETRIC if header.scheme_tag in (2, 3) else 0
        if header.flags & ~allowed:
            raise InvalidDescriptorError(
                f"quantization flags 0x{header.flags:04X} hold bits that this scheme has not",
                rule="quantization.flags",
                declared=allowed,
                found=header.flags,
            )
        scheme = decoder(cursor, bool(header.flags & SYMMETRIC))
        if any(section[cursor.at :]):
            raise InvalidDescriptorError(
                "the padding of the quantization section is not zero", rule="quantization.padding", offset=cursor.offset
            )
    return scheme


def encode_quantization(scheme: m.Quantization) -> bytes:
    """The section's bytes, its length field excluded."""
    symmetric = getattr(scheme, "is_symmetric", False)
    header = {"scheme_tag": scheme.tag, "scheme_version": SCHEME_VERSION, "flags": SYMMETRIC if symmetric else 0}
    return build(structs.QUANTIZATION_HEADER, header) + _ENCODERS[type(scheme)](scheme)


def _decode_per_tensor(cursor: Cursor, symmetric: bool) -> m.PerTensorAffine:
    record = cursor.take(structs.PER_TENSOR_AFFINE, "per-tensor affine fields")
    return m.PerTensorAffine(record.scale, record.zero_point)


def _decode_per_channel(cursor: Cursor, symmetric: bool) -> m.PerChannelAffine:
    record = cursor.take(structs.PER_CHANNEL_AFFINE, "per-channel affine fields")
    scale_type = _scale_type(record.scale_type_tag)
    if scale_type != m.PerChannelAffine.scale_type:
        raise InvalidDescriptorError(
            f"per-channel scales are float32, not {scale_type.name}", rule="quantization.scale-type"
        )
    return m.PerChannelAffine(record.axis, record.scale_buffer_index, _zero_point_index(record, symmetric))


def _decode_per_block(cursor: Cursor, symmetric: bool) -> m.PerBlockAffine:
    record = cursor.take(structs.PER_BLOCK_AFFINE, "per-block affine fields")
    return m.PerBlockAffine(
        record.axis,
        record.block_size,
        record.scale_buffer_index,
        _scale_type(record.scale_type_tag),
        _zero_point_index(record, symmetric),
    )


def _decode_nf4(cursor: Cursor, symmetric: bool) -> m.Nf4:
    record = cursor.take(structs.BLOCK_SCALED, "NF4 fields")
    return m.Nf4(record.axis, record.block_size, record.scale_buffer_index)


def _decode_mxfp(cursor: Cursor, symmetric: bool) -> m.Mxfp:
    record = cursor.take(structs.BLOCK_SCALED, "MXFP fields")
    return m.Mxfp(record.axis, record.block_size, record.scale_buffer_index)


def _zero_point_index(record: Any, symmetric: bool) -> int | None:
    index: int = record.zero_point_buffer_index
    if symmetric != (index == m.NO_BUFFER):
        raise InvalidDescriptorError(
            f"zero_point_buffer_index is 0x{index:08X} in a {'symmetric' if symmetric else 'asymmetric'} scheme",
            rule="quantization.symmetric",
            found=index,
        )
    return None if symmetric else index


def _scale_type(tag: int) -> ElementType:
    try:
        return from_tag(tag)
    except InvalidDescriptorError as cause:
        raise InvalidDescriptorError(
            f"scale type tag 0x{tag:02X} is unknown", rule="quantization.scale-type", found=tag
        ) from cause


def _encode_per_tensor(scheme: m.PerTensorAffine) -> bytes:
    return build(structs.PER_TENSOR_AFFINE, {"scale": scheme.scale, "zero_point": scheme.zero_point})


def _affine_fields(scheme: m.PerChannelAffine | m.PerBlockAffine) -> dict[str, int]:
    zero_point = scheme.zero_point_buffer_index
    return {
        "axis": scheme.axis,
        "scale_buffer_index": scheme.scale_buffer_index,
        "zero_point_buffer_index": m.NO_BUFFER if zero_point is None else zero_point,
        "scale_type_tag": scheme.scale_type.tag,
    }


def _encode_per_channel(scheme: m.PerChannelAffine) -> bytes:
    return build(structs.PER_CHANNEL_AFFINE, _affine_fields(scheme))


def _encode_per_block(scheme: m.PerBlockAffine) -> bytes:
    return build(structs.PER_BLOCK_AFFINE, {"block_size": scheme.block_size, **_affine_fields(scheme)})


def _encode_block_scaled(scheme: m.Nf4 | m.Mxfp) -> bytes:
    return build(
        structs.BLOCK_SCALED,
        {
            "axis": scheme.axis,
            "block_size": scheme.block_size,
            "scale_buffer_index": scheme.scale_buffer_index,
        },
    )


_DECODERS: dict[int, Callable[[Cursor, bool], m.Quantization]] = {
    m.PerTensorAffine.tag: _decode_per_tensor,
    m.PerChannelAffine.tag: _decode_per_channel,
    m.PerBlockAffine.tag: _decode_per_block,
    m.Nf4.tag: _decode_nf4,
    m.Mxfp.tag: _decode_mxfp,
}

_ENCODERS: dict[type[m.Quantization], Callable[[Any], bytes]] = {
    m.PerTensorAffine: _encode_per_tensor,
    m.PerChannelAffine: _encode_per_channel,
    m.PerBlockAffine: _encode_per_block,
    m.Nf4: _encode_block_scaled,
    m.Mxfp: _encode_block_scaled,
}
