"""Accepted files: every form that a container may take, and every kind of tensor in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import contents as c
from . import descriptors as d
from . import pieces as p
from .cases import Case
from .emit import ARRAY, BOOL, BYTES, F64, I64, STRING, U64, Content, Descriptor, File

EVERY_KIND: tuple[tuple[str, int, Any], ...] = (
    ("string", STRING, "grüße, 世界"),
    ("string.empty", STRING, ""),
    ("i64", I64, -(1 << 63)),
    ("u64", U64, (1 << 64) - 1),
    ("f64", F64, 0.1),
    ("f64.infinite", F64, float("-inf")),
    ("true", BOOL, 1),
    ("false", BOOL, 0),
    ("bytes", BYTES, bytes(range(256))),
    ("array.string", ARRAY, (STRING, ["a", "", "c"])),
    ("array.i64", ARRAY, (I64, [-1, 0, (1 << 63) - 1])),
    ("array.u64", ARRAY, (U64, [1 << 63, (1 << 64) - 1])),
    ("array.f64", ARRAY, (F64, [0.5, -0.0, 1e300])),
    ("array.bool", ARRAY, (BOOL, [1, 0, 1])),
    ("array.bytes", ARRAY, (BYTES, [b"", b"\x00\xff"])),
    ("array.empty", ARRAY, (STRING, [])),
    ("ключ", STRING, "a key need not be ASCII"),
)
ONE_KEY: tuple[tuple[str, int, Any], ...] = (("model.id", STRING, "tiny"),)
IDENTITY: tuple[tuple[str, int, Any], ...] = (
    ("hurray_wire.snapshot", I64, 1),
    ("producer", STRING, "the fixtures of hurray_wire"),
    ("model.id", STRING, "example/model"),
    ("tp.rank", I64, 0),
    ("tp.size", I64, 2),
)

ONE = File((c.small("t", 10, 20, 30, 40),))
TWO = File((c.small("b", 1, 2, 3), c.small("a", 4, 5, 6, 7)))
HEADS = File((c.nothing("b"), c.nothing("a")))
WITH_METADATA = replace(ONE, metadata=ONE_KEY)
CHECKED = replace(TWO, checksums=True)
EXAMPLE = File((c.worked_example(),))
LENGTHS = (13, 8, 4)


def batch(role: int, layer: int, **options: Any) -> Content:
    """One tensor of the batch that most paged files hold: a shared first page, a permuted table, partly filled pages.

    ``options`` override what it is made of.
    """
    name = f"layers.{layer}.{('key', 'value', 'fused')[role]}"
    given: dict[str, Any] = {
        "type_tag": p.BF16, "heads": 2, "dim": 4, "page_size": 4, "num_pages": 8,
        "tables": [[7, 2, 0, 5], [7, 3], [6]], "tokens": sum(LENGTHS),
        "role": role, "layer": layer, "seed": 10 * layer + role,
    }  # fmt: skip
    return c.paged(name, **{**given, **options})


SNAPSHOT = File((c.seq_lens(*LENGTHS), batch(p.KEY, 0), batch(p.VALUE, 0)), metadata=IDENTITY, checksums=True)


# what Python does not tell apart: a small u64 and an i64, no entries and no metadata
REPHRASED = ("metadata-small-u64", "metadata-none")


def cases() -> list[Case]:
    return [
        Case(name, words, subject, options=options, verbatim=name not in REPHRASED)
        for name, words, subject, options in _rows()
    ]


def _rows() -> Iterator[tuple[str, str, File, dict[str, Any]]]:
    for group in (_containers, _metadata, _tensors, _paged, _composites):
        for name, words, subject, *options in group():
            yield name, words, subject, options[0] if options else {}


def _containers() -> Iterator[Any]:
    yield "one-tensor", "one uint8 tensor, no metadata", ONE
    yield "two-heads", "two groups of nothing: the smallest file with an index to speak of", HEADS
    yield "two-heads-sorted", "the same, the index sorted by name", replace(HEADS, sorted_index=True)
    yield "no-tensors", "no tensor and no metadata", File()
    yield (
        "only-empty-tensors",
        "three tensors without elements: all data lengths are 0",
        File((c.empty("a", 0), c.empty("b", 0, 4), c.empty("c", 3, 0, 2))),
    )
    yield "empty-tensor-last", "an empty tensor behind one that is not", File((c.small("a", 1), c.empty("z", 0)))
    yield "index-without-crc", "HAS_INDEX_CRC32C unset", replace(ONE, index_crc=False)
    yield "sorted-index", "the index by name, the tensors in another order", replace(TWO, sorted_index=True)
    yield "unsorted-index", "the same tensors with the index in write order", TWO
    yield "alignment-65536", "buffers at multiples of 65536", replace(ONE, alignment=65536)
    yield "alignment-2m", "the largest alignment, in a file without tensors", File(alignment=1 << 21)
    yield "first-descriptor-128", "first_descriptor_offset 128: 64 zeros behind the header", replace(ONE, lead=64)
    yield "count-hint", "tensor_count_hint tells the count", replace(TWO, hint=2)
    yield "count-hint-wrong", "tensor_count_hint is wrong, and nobody relies on it", replace(TWO, hint=7)
    yield "container-minor-9", "a later minor version of the container", replace(ONE, minor=9)
    yield "names", "names with control characters, slashes, dots and letters of all kinds", File(
        tuple(c.nothing(name) for name in (
            "\x1b[31mred", "nul\x00byte", "../../etc/passwd", "/abs", "con", "a\nb", "K", "k", "naïve", "🤗", ".",
            "n" * 300,
        ))
    )  # fmt: skip
    yield "checksums", "hurray_wire.crc32c with its seal, and no other metadata", CHECKED
    yield "checksums-unsealed", "hurray_wire.crc32c without hurray_wire.metadata_crc32c", replace(CHECKED, seal=False)
    yield "metadata-sealed", "a value of every kind under a seal", File(metadata=EVERY_KIND, checksums=True)


def _metadata() -> Iterator[Any]:
    yield "metadata-every-kind", "a value of every kind", replace(ONE, metadata=EVERY_KIND)
    yield (
        "metadata-unflagged",
        "metadata with HAS_KV_METADATA unset, as a streaming writer leaves it",
        replace(ONE, metadata=EVERY_KIND, flagged=False),
    )
    yield "metadata-small-u64", "a u64 that would fit an i64", replace(ONE, metadata=(("n", U64, 5),))
    yield "metadata-one-key", "one string", WITH_METADATA
    yield "metadata-none", "HAS_KV_METADATA set, and a section of no entries", replace(ONE, metadata=())
    yield "metadata-no-tensors", "one string and nothing else", File(metadata=ONE_KEY)
    yield "metadata-alone", "a value of every kind and nothing else", File(metadata=EVERY_KIND)


def _tensors() -> Iterator[Any]:
    yield (
        "every-type",
        "one row-major tensor of each element type, [3, 5]",
        File(
            tuple(
                c.dense(name, Descriptor(tag, (3, 5), (p.packed_size(bits, 15),)), k)
                for k, (name, (tag, bits)) in enumerate(p.TYPES.items())
            )
        ),
    )
    chosen = [case for case in d.cases() if case.name in _DENSE]
    yield (
        "dense-layouts",
        "every dense layout, with whole bytes and with packed elements",
        File(
            tuple(c.dense(case.name, case.subject, k) for k, case in enumerate(chosen))  # type: ignore[arg-type]
        ),
    )
    yield "sparse-layouts", "COO, CSR, CSC and CSF", File(c.SPARSE)
    yield "quantized", "all five schemes on dense tensors", File(c.QUANTIZED)
    yield "quantized-padded", "zeros behind the scheme in a quantization section", File((c.QUANTIZED_PADDED,))
    yield (
        "private",
        "a private layout and a private type, carried and not interpreted",
        File(
            (
                Content(
                    "layout",
                    Descriptor(p.F32, (8, 8), (5, (0, 64), 3), **p.private_layout(0xF3, 7, b"hello")),
                    (b"12345", b"", b"678"),
                ),
                Content("type", Descriptor(0xF4, (3,), (6,), extension_type=p.extension_type(12)), (b"abcdef",)),
            )
        ),
    )
    yield (
        "unknown-layout",
        "layout tag 0x7B between two tensors, kept by permissive reading",
        File(
            (
                c.small("before", 1, 2),
                Content(
                    "unknown",
                    Descriptor(p.F32, (8,), (5, 3), layout_tag=0x7B, layout=p.private_layout(0, 1, b"???")["layout"]),
                    (b"12345", b"678"),
                ),
                c.small("after", 3),
            )
        ),
        {"permissive": True},
    )
    yield (
        "sections",
        "shard, statistics, private type, member role and minor version in one file",
        File(
            (
                c.dense("sharded", d.SHARDED, 1),
                c.dense("statistics", replace(d.PLAIN, statistics=p.statistics(**d.ALL_STATISTICS)), 2),
                c.dense("minor", replace(d.PLAIN, minor=1, tail=b"from later!"), 3),
                c.dense("device", replace(d.PLAIN, handles=((24, 256, 1, 2, 1),)), 4),
            )
        ),
    )
    yield (
        "slack",
        "buffers larger than their tensors need",
        File(
            (
                c.dense("dense", replace(d.PLAIN, handles=(100,)), 1),
                c.dense("offset", replace(d.PLAIN, byte_offset=16, handles=(50,)), 2),
                batch(p.KEY, 0, slack=(40, 0, 24)),
                c.seq_lens(*LENGTHS),
            )
        ),
    )
    yield (
        "dynamic",
        "a dynamic dimension: nobody can say how many elements there are",
        File((Content("t", Descriptor(p.F32, (p.DYNAMIC, 4), (48,)), (c.pattern(p.F32, 12),)),)),
    )


_DENSE = (
    "col-major", "col-major-bool", "row-major-offset", "strided", "strided-negative", "strided-zero",
    "strided-overlapping", "strided-uint4", "strided-scalar", "tiled", "tiled-col", "tiled-strided", "tiled-nested",
    "tiled-nested-8", "tiled-float6", "morton", "morton-unequal", "morton-bool", "hilbert", "hilbert-3d", "hilbert-4d",
    "scalar", "rank-64", "empty-strided",
)  # fmt: skip


def _paged() -> Iterator[Any]:
    yield "paged-worked-example", "the worked example; its lengths are not in the file", EXAMPLE, {"seq_lens": [6, 3]}
    yield (
        "paged-one-sequence",
        "one sequence: its length follows from the descriptor",
        File((batch(p.KEY, 0, tables=[[3, 1]], tokens=6),)),
    )
    yield (
        "paged-full-pages",
        "every page full: the lengths follow from the descriptor",
        File((batch(p.KEY, 0, tables=[[3, 1], [], [4]], tokens=12),)),
    )
    yield "paged-empty-batch", "no sequence, no page", File(
        (c.paged("value", p.F32, 2, 8, page_size=16, num_pages=0, tables=[], tokens=0, wide=True,
                 role=p.VALUE, layer=p.NO_LAYER),)
    )  # fmt: skip
    yield (
        "paged-empty-sequences",
        "sequences without tokens, and one page that was allocated ahead",
        File((batch(p.KEY, 0, tables=[[], [1, 0, 2], []], tokens=5), c.seq_lens(0, 5, 0))),
    )
    yield (
        "paged-uint64",
        "uint64 indices and lengths",
        File((c.seq_lens(*LENGTHS, wide=True), batch(p.KEY, 0, wide=True))),
    )
    yield (
        "paged-shared-prefix",
        "more tokens than the pool has slots",
        File(
            (c.seq_lens(7, 8, 6, 5), batch(p.KEY, 0, num_pages=3, tables=[[1, 0], [1, 2], [1, 0], [1, 2]], tokens=26))
        ),
    )
    yield (
        "paged-no-layer",
        "fused tensors of no layer",
        File((c.seq_lens(*LENGTHS), c.with_name(batch(p.FUSED, p.NO_LAYER), "fused"))),
    )
    yield (
        "paged-layers-backwards",
        "values before keys, layers 2, 1, 0, the index sorted",
        File(
            (
                *(batch(role, layer, wide=True) for layer in (2, 1, 0) for role in (p.VALUE, p.KEY)),
                c.seq_lens(*LENGTHS),
            ),
            sorted_index=True,
            metadata=IDENTITY,
            flagged=False,
        ),
    )
    for name, tag in (("int4", p.I4), ("float8", p.E4M3), ("float6", p.E2M3), ("float64", p.F64), ("bool", p.BOOL)):
        yield f"paged-{name}", f"pages of {name}", File((c.seq_lens(*LENGTHS), batch(p.KEY, 0, type_tag=tag)))
    yield "paged-packed-across-pages", "int2 pages of 15 elements: a page does not fill its bytes", File(
        (c.seq_lens(5, 2), batch(p.KEY, 0, type_tag=p.I2, heads=1, dim=5, page_size=3, num_pages=4,
                                 tables=[[2, 1], [3]], tokens=7))
    )  # fmt: skip
    yield (
        "paged-quantized",
        "every scheme that a block-paged tensor takes",
        File((c.seq_lens(*c.QUANTIZED_PAGED_LENGTHS), *c.QUANTIZED_PAGED)),
    )
    yield "snapshot", "a snapshot as hurray_wire writes it: lengths, identity, checksums", SNAPSHOT
    yield (
        "snapshot-scales",
        "float8 pages with companion scales, one for all heads and one for each",
        File(
            (
                c.seq_lens(*LENGTHS),
                batch(p.KEY, 0, type_tag=p.E4M3),
                Content("layers.0.key.scale", Descriptor(p.F32, (), (4,)), (c.f32s(0.5),)),
                batch(p.VALUE, 0, type_tag=p.E5M2),
                Content("layers.0.value.scale", Descriptor(p.F32, (2,), (8,)), (c.f32s(2.0, 0.1),)),
            ),
            metadata=IDENTITY,
            checksums=True,
        ),
    )


def _composites() -> Iterator[Any]:
    yield "composite-partition", "three boxes that make a whole", File(c.partition())
    yield (
        "composite-partition-padded",
        "the same with padding behind the head, as some writers leave it",
        File(c.partition(), pad_heads=True),
    )
    yield "composite-overlay-replace", "corrections that replace", File(c.overlay(p.REPLACE))
    yield "composite-overlay-add", "corrections that add", File(c.overlay(p.ADD))
    yield "composite-group", "two unlike tensors under one roof", File(c.group((c.small("u", 1, 2), c.empty("v", 0))))
    yield "composite-group-empty", "a group of nothing, last in the file", File((c.small("t", 1), *c.group(())))
    yield (
        "composite-nested",
        "a partition within a partition, and a tensor behind it",
        File((*c.nested(), c.small("after", 9))),
    )
    yield (
        "composite-checksums",
        "checksums count a head as a descriptor without buffers",
        File(c.partition(), checksums=True),
    )
    yield (
        "composite-private",
        "a private rule: its members are carried",
        File((Content("head", Descriptor(p.U8, (4,), **p.composite(0xF7, 1))), c.small("member", 1, 2, 3, 4))),
    )
