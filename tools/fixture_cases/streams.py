"""Accepted streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import contents as c
from . import descriptors as d
from . import pieces as p
from .cases import Case
from .emit import ARRAY, STRING, Content, Descriptor, emit_metadata_section
from .files import IDENTITY, LENGTHS, batch

EXAMPLE = (c.worked_example(),)
EMPTY_BATCH = c.paged(
    "value", p.F32, 2, 8, page_size=16, num_pages=0, tables=[], tokens=0, wide=True, role=p.VALUE, layer=p.NO_LAYER
)


TENSORS = (batch(p.KEY, 0), batch(p.VALUE, 0), batch(p.KEY, 1), batch(p.VALUE, 1))


def snapshot(names: Sequence[str] | None = None, tensors: tuple[Content, ...] = TENSORS) -> tuple[Content, ...]:
    """A snapshot as a group: metadata, lengths, then the block-paged tensors; ``names`` for others than their own."""
    if names is None:
        names = ["seq_lens", *(tensor.name for tensor in tensors)]
    section = emit_metadata_section((*IDENTITY, ("hurray_wire.names", ARRAY, (STRING, names))))
    return c.group((c.small("metadata", *section), c.seq_lens(*LENGTHS), *tensors))


def cases() -> list[Case]:
    every_layout = [case for case in d.cases() if case.name in ("col-major", "strided", "tiled", "morton", "hilbert")]
    rows: list[tuple[str, str, tuple[Content, ...]]] = [
        ("empty", "no tensor at all", ()),
        ("worked-example", "the worked example, then an empty batch", (*EXAMPLE, EMPTY_BATCH)),
        ("dense-layouts", "dense tensors of five layouts", tuple(
            c.dense(case.name, case.subject, k) for k, case in enumerate(every_layout)  # type: ignore[arg-type]
        )),
        ("sparse-layouts", "sparse tensors", c.SPARSE),
        ("quantized", "quantized tensors", (*c.QUANTIZED, *c.QUANTIZED_PAGED)),
        ("empty-tensors", "tensors without a byte of data", (c.empty("a", 0), c.empty("b", 3, 0), c.small("c", 1))),
        ("partition", "a partition, then a tensor of its own", (*c.partition(), c.small("after", 1))),
        ("nested", "a partition within a group", c.group((*c.nested(), *c.overlay(p.ADD)))),
        ("group-empty", "a group of nothing at the end", (c.small("t", 1), *c.group(()))),
        ("private", "a private layout and a private type", (
            Content(
                "layout", Descriptor(p.F32, (8, 8), (5, 3), **p.private_layout(0xF3, 7, b"hi")), (b"12345", b"678")
            ),
            Content("type", Descriptor(0xF4, (3,), (6,), extension_type=p.extension_type(12)), (b"abcdef",)),
        )),
        ("minor-1-tail", "a descriptor of a later minor version", (
            c.dense("t", replace(d.PLAIN, minor=1, tail=b"from later!"), 3), c.small("after", 1),
        )),
        ("snapshot", "a snapshot: a group of metadata, lengths and four block-paged tensors", snapshot()),
    ]  # fmt: skip
    lengths = {"snapshot": {"seq_lens": list(LENGTHS)}}
    return [Case(f"stream-{name}", words, subject, options=lengths.get(name, {})) for name, words, subject in rows]
