"""Files that break one rule each, and the stage at which that shows.

Stages: ``open``; ``metadata``, its first use; ``read``, when a tensor and its index buffers are first touched;
``values``, when the elements are asked for; ``real``, when they are dequantized; ``snapshot``; ``verify``, which also
finds all of the earlier ones but ``real`` and ``snapshot``.

(Long because it is one table: a row for each way to be wrong, in the order in which a file is read.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from . import contents as c
from . import descriptors as d
from . import files as f
from . import pieces as p
from .cases import Case, by_name
from .emit import ARRAY, BOOL, F64, I64, STRING, U64, Content, Descriptor, File

Row = tuple[Any, ...]  # rule[--variant], accepted sibling, stage, words, then changes, a subject, an edit or options
BIG = 1 << 63
MAX = (1 << 64) - 1
TWO_OFFSETS = {"b": (64, 4096), "a": (4104, 8192)}  # descriptor and data of the two tensors of ``files.TWO``


UNJUDGED = object()  # the plain decoder, which has no limits, would not come to an end


class Options(dict[str, Any]):
    """Keyword arguments for the reader."""


def cases() -> list[Case]:
    accepted = by_name(f.cases())
    return [_case(accepted, *row) for group in _GROUPS for row in group()]


def _case(accepted: dict[str, Case], name: str, of: str, when: str, words: str, *breaks: Any) -> Case:
    sibling = accepted[of]
    case = replace(sibling, name=name, description=words, rule=name.partition("--")[0], when=when, keeps=sibling.file)
    for change in breaks:
        if isinstance(change, Options):
            case = replace(case, options=dict(change))
        elif change is UNJUDGED:
            case = replace(case, judged=False)
        elif isinstance(change, dict):
            case = replace(case, changes=change)
        elif isinstance(change, File):
            case = replace(case, subject=change)
        else:
            case = replace(case, edit=change)
    return case


def _poke(offset: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + bytes([value]) + data[offset + 1 :]


def _insert_before_trailer(data: bytes) -> bytes:
    return data[:-40] + bytes(8) + data[-40:]


def _seal_plus(extra: int) -> Callable[[bytes], bytes]:
    """Add to the last entry of the metadata, the seal, which stands before the padding to the index."""

    def edit(data: bytes) -> bytes:
        offset, length = struct.unpack_from("<QI", data, len(data) - 24)
        at = offset + length - 8
        return data[:at] + struct.pack("<Q", struct.unpack_from("<Q", data, at)[0] + extra) + data[at + 8 :]

    return edit


def _header() -> Iterator[Row]:
    of = "no-tensors"
    yield "container.magic", of, "open", "the magic is HRRYFILX", {"header.magic": b"HRRYFILX"}
    yield (
        "compressed.planes-table--plain",
        of,
        "open",
        "the magic of inflated byte planes, without a seek table",
        {"header.magic": b"HRRYPLNS"},
    )
    yield "container.truncated--0", of, "open", "no byte at all", lambda data: b""
    yield "container.truncated--63", of, "open", "the header is not whole", lambda data: data[:63]
    yield "container.truncated--103", of, "open", "no room for header and trailer", lambda data: data[:103]
    yield "container.version-major--0", of, "open", "container_major is 0", {"header.container_major": 0}
    yield "container.version-major--2", of, "open", "container_major is 2", {"header.container_major": 2}
    yield "container.reserved--10", of, "open", "the reserved byte at 11 is 1", {"header.reserved": b"\0\1"}
    yield (
        "container.reserved--36",
        of,
        "open",
        "the reserved byte at 36 is 1",
        {"header.reserved_end": b"\1" + bytes(27)},
    )
    yield "container.flags--3", of, "open", "file flag bit 3", {"header.file_flags": 12}
    yield "container.flags--31", of, "open", "file flag bit 31", {"header.file_flags": 4 + (1 << 31)}
    for value in (0, 64, 2048, 4097, 12288, 1 << 22, 0xFFFFFFFF):
        yield (
            f"container.alignment--{value}",
            of,
            "open",
            f"data_buffer_alignment is {value}",
            {"header.data_buffer_alignment": value},
        )
    of = "two-heads"
    for value in (0, 56, 68, 72, 4096, MAX):
        yield (
            f"container.first-descriptor--{value}",
            of,
            "open",
            f"first_descriptor_offset is {value}, not 64",
            {"header.first_descriptor_offset": value},
        )
    yield (
        "container.first-descriptor--no-tensors",
        "no-tensors",
        "open",
        "beyond the index, in a file without tensors",
        {"header.first_descriptor_offset": 72},
    )


def _places() -> Iterator[Row]:
    of = "unsorted-index"
    yield (
        "container.overlap--aliased-data",
        of,
        "open",
        "both tensors claim the same data",
        {"index[1].data_offset": TWO_OFFSETS["b"][1]},
    )
    yield (
        "container.overlap--aliased-descriptor",
        of,
        "open",
        "both tensors claim the same descriptor",
        {"index[1].descriptor_offset": TWO_OFFSETS["b"][0]},
    )
    yield (
        "container.overlap--keys-as-values",
        "snapshot",
        "open",
        "the values of layer 0 are its keys",
        {"index[2].data_offset": 12288},
    )
    yield "container.overlap--header", of, "open", "data that starts with the header", {"index[1].data_offset": 0}
    yield (
        "container.overlap--descriptor",
        of,
        "open",
        "data that reaches into the next descriptor",
        {"index[0].data_length": 16},
    )
    yield (
        "container.overlap--index",
        "one-tensor",
        "open",
        "data that reaches into the index",
        {"index[0].data_length": 16},
    )
    yield (
        "container.overlap--metadata",
        "metadata-one-key",
        "open",
        "data that reaches into the metadata",
        {"index[0].data_length": 16},
    )
    yield (
        "container.hole--before-index",
        "one-tensor",
        "open",
        "8 zeros before the index that are nothing",
        replace(f.ONE, gap=8),
    )
    yield "container.hole--page", "one-tensor", "open", "4096 zeros before the index", replace(f.ONE, gap=4096)
    yield "container.hole--before-trailer", "one-tensor", "open", "8 zeros before the trailer", _insert_before_trailer
    yield (
        "container.hole--hidden-tensor",
        "unsorted-index",
        "open",
        "a tensor that the index does not list",
        File((*f.TWO.tensors, c.small("c", 9)), hidden=(1,)),
    )
    yield (
        "container.hole--hidden-last",
        "unsorted-index",
        "open",
        "the last tensor is not in the index",
        replace(f.TWO, hidden=(1,)),
    )
    yield (
        "container.first-descriptor--hidden",
        "unsorted-index",
        "open",
        "the first tensor is not in the index",
        replace(f.TWO, hidden=(0,)),
    )


def _trailer() -> Iterator[Row]:
    of = "no-tensors"
    yield "trailer.magic", of, "open", "the last four bytes are HRRX", {"trailer.magic": b"HRRX"}
    yield (
        "trailer.magic--half",
        "one-tensor",
        "open",
        "the second half of the file is missing",
        (lambda data: data[: len(data) // 2]),
    )
    yield "trailer.reserved", of, "open", "a reserved byte is 1", {"trailer.reserved": b"\0\0\1\0"}
    for value in (0, 56, 65, 1 << 40, BIG, MAX, MAX - 7):
        yield (
            f"trailer.index-place--offset-{value}",
            of,
            "open",
            f"index_offset is {value}",
            {"trailer.index_offset": value},
        )
    for value in (0, 3, 9, BIG, MAX):
        yield (
            f"trailer.index-place--length-{value}",
            of,
            "open",
            f"index_length is {value}",
            {"trailer.index_length": value},
        )
    of = "metadata-no-tensors"
    for value in (0, 56, 65, 1 << 40, MAX - 7):
        yield f"trailer.kv-place--offset-{value}", of, "open", f"kv_offset is {value}", {"trailer.kv_offset": value}
    for value in (0, 3, 0xFFFFFFFF):
        yield f"trailer.kv-place--length-{value}", of, "open", f"kv_length is {value}", {"trailer.kv_length": value}
    yield "trailer.kv-place--flag", of, "open", "HAS_KV_METADATA, but no metadata", {
        "trailer.kv_offset": 0, "trailer.kv_length": 0
    }  # fmt: skip
    yield "trailer.kv-place--half", "no-tensors", "open", "an offset without a length", {"trailer.kv_offset": 64}
    yield "trailer.crc-unused", "index-without-crc", "open", "a CRC that nobody announced", {"trailer.index_crc32c": 1}


def _index() -> Iterator[Row]:
    of = "two-heads"
    yield "index.crc", of, "open", "another CRC is recorded", {"trailer.index_crc32c": 0x12345678}
    yield "index.crc--zero", of, "open", "the recorded CRC is 0", {"trailer.index_crc32c": 0}
    yield "index.truncated--count", of, "open", "three entries are promised, two are there", {"index.count": 3}
    yield "index.truncated--huge", of, "open", "2^22 entries in 99 bytes", {"index.count": 1 << 22}
    yield (
        "index.truncated--name",
        of,
        "open",
        "a name of 65535 bytes in an index of 78",
        {"index[1].name_length": 65535},
    )
    yield "limit.tensors", of, "open", "2^63 entries", {"index.count": BIG}
    yield (
        "limit.index-bytes",
        of,
        "open",
        "a reader that takes an index of at most 32 bytes",
        Options(limits={"max_index_bytes": 32}),
    )
    yield "index.length", of, "open", "one entry is promised, two are there", {"index.count": 1}
    yield "index.length--none", of, "open", "no entry is promised, two are there", {"index.count": 0}
    yield "index.name-length", of, "open", "a name of no bytes", {
        "index[0].name": b"", "index[1].name": b"longer"
    }  # fmt: skip
    yield "index.name-utf8", of, "open", "a name that is not UTF-8", {"index[0].name": b"\xff\xfe"}
    yield (
        "index.name-utf8--surrogate",
        of,
        "open",
        "half a surrogate pair in a name",
        {"index[0].name": b"\xed\xa0\x80"},
    )
    yield "index.name-duplicate", of, "open", "two tensors named b", {"index[1].name": b"b"}
    yield (
        "index.name-duplicate--sorted",
        "two-heads-sorted",
        "open",
        "two tensors named a, the index sorted",
        {"index[0].name": b"a"},
    )
    for value in (1 << 40, BIG, MAX - 7):
        yield (
            f"index.descriptor-place--{value}",
            of,
            "open",
            f"descriptor_offset is {value}",
            {"index[1].descriptor_offset": value},
        )
    yield (
        "index.descriptor-place--105",
        of,
        "open",
        "descriptor_offset is no multiple of 8",
        {"index[1].descriptor_offset": 105},
    )
    yield (
        "index.descriptor-place--length",
        of,
        "open",
        "descriptor_length passes the end of the file",
        {"index[1].descriptor_length": 0xFFFFFFFF},
    )
    yield "index.descriptor-length--19", of, "open", "descriptor_length is 19", {"index[1].descriptor_length": 19}
    yield (
        "descriptor.length--index-longer",
        of,
        "read",
        "the index tells one byte more than the descriptor",
        {"index[1].descriptor_length": 38},
    )
    yield (
        "descriptor.length--index-shorter",
        of,
        "read",
        "the index tells one byte less than the descriptor",
        {"index[1].descriptor_length": 36},
    )
    of = "unsorted-index"
    for value in (1 << 40, BIG, MAX - 4095):
        yield f"index.data-place--{value}", of, "open", f"data_offset is {value}", {"index[1].data_offset": value}
    yield "index.data-place--8196", of, "open", "data_offset is not aligned", {"index[1].data_offset": 8196}
    yield (
        "index.data-place--length",
        of,
        "open",
        "data_length passes the end of the file",
        {"index[1].data_length": 1 << 40},
    )
    yield (
        "index.data-place--wrap",
        of,
        "open",
        "data_offset and data_length together wrap",
        {"index[1].data_length": MAX},
    )
    yield (
        "index.data-length--short",
        of,
        "read",
        "the index tells 3 bytes of 4",
        {"index[1].data_length": 3},
        replace(f.TWO, tensors=(f.TWO.tensors[0], c.small("a", 4, 5, 6, 0))),
    )
    yield "index.data-length--long", of, "read", "the index tells 5 bytes of 4", {"index[1].data_length": 5}
    of = "two-heads"
    yield "index.flags", of, "open", "flags of an entry are 1", {"index[0].flags": 1}
    yield "index.flags--31", of, "open", "bit 31 of an entry's flags", {"index[1].flags": 1 << 31}
    yield "index.order--sorted", of, "open", "SORTED_INDEX over an index in write order", {"header.file_flags": 6}
    yield (
        "index.order--written",
        "two-heads-sorted",
        "open",
        "an index by name without SORTED_INDEX",
        {"header.file_flags": 4},
    )


def _metadata() -> Iterator[Row]:
    of, when = "metadata-alone", "metadata"
    yield (
        "metadata.truncated--count",
        of,
        when,
        "one entry more than there is",
        {"metadata.count": len(f.EVERY_KIND) + 1},
    )
    yield "metadata.truncated--key", of, when, "a key of 65535 bytes", {"metadata[3].key_length": 65535}
    yield "metadata.truncated--string", of, when, "a string of 2^32 - 1 bytes", {"metadata[0].value_length": 0xFFFFFFFF}
    yield "metadata.truncated--bytes", of, when, "bytes that pass the end", {"metadata[8].value_length": 1 << 31}
    yield "metadata.truncated--array", of, when, "an array of 2^32 - 1 numbers", {"metadata[10].count": 0xFFFFFFFF}
    yield "metadata.length--count", of, when, "one entry fewer than there is", {"metadata.count": len(f.EVERY_KIND) - 1}
    yield "metadata.length--none", of, when, "no entry, but more bytes", {"metadata.count": 0}
    yield "metadata.key-empty", of, when, "a key of no bytes", {"metadata[0].key": b""}
    yield "metadata.key-duplicate", of, when, "the key i64 twice", {"metadata[3].key": b"i64"}
    yield "metadata.utf8--key", of, when, "a key that is not UTF-8", {"metadata[0].key": b"\xc3("}
    yield "metadata.utf8--string", of, when, "a string that is not UTF-8", {"metadata[0].value": b"\xff"}
    for value in (0, 8, 255):
        yield f"metadata.value-tag--{value}", of, when, f"value_tag is {value}", {"metadata[0].value_tag": value}
    for value in (0, 7, 8):
        yield (
            f"metadata.value-tag--element-{value}",
            of,
            when,
            f"element_tag is {value}",
            {"metadata[9].element_tag": value},
        )
    yield "metadata.bool", of, when, "a truth value of 2", {"metadata[6].value": 2}
    yield "metadata.bool--array", of, when, "an array with a truth value of 255", {"metadata[13].value[1]": 255}
    yield "limit.metadata-entries", of, when, "2^32 - 1 entries", {"metadata.count": 0xFFFFFFFF}
    yield "limit.metadata-entries--array", of, when, "an array of 2^32 - 1 strings", {"metadata[9].count": 0xFFFFFFFF}
    yield (
        "limit.metadata-bytes",
        of,
        "open",
        "a reader that takes at most 64 bytes of metadata",
        Options(limits={"max_metadata_bytes": 64}),
    )


def _tensors() -> Iterator[Row]:
    of, when = "paged-worked-example", "read"
    example = c.worked_example()
    pool, table, pointers = example.buffers
    lengths = Options(seq_lens=[6, 3])

    def with_tables(table: bytes = table, pointers: bytes = pointers) -> File:
        sizes = (len(pool), len(table), len(pointers))
        return File((Content(example.name, replace(example.descriptor, handles=sizes), (pool, table, pointers)),))

    yield "block-paged.page-id", of, when, "page 5 of a pool of 5", with_tables(c.u32s(0, 5, 0)), lengths
    yield (
        "block-paged.page-id--last",
        of,
        when,
        "page 2^32 - 1, in the last entry",
        with_tables(c.u32s(0, 1, 0xFFFFFFFF)),
        lengths,
    )
    yield "block-paged.seq-ptr-start", of, when, "seq_ptr starts at 1", with_tables(pointers=c.u32s(1, 2, 3)), lengths
    yield (
        "block-paged.seq-ptr-order",
        of,
        when,
        "seq_ptr falls from 4 to 3",
        with_tables(pointers=c.u32s(0, 4, 3)),
        lengths,
    )
    yield "block-paged.seq-ptr-end", of, when, "seq_ptr ends at 2 of 3", with_tables(pointers=c.u32s(0, 1, 2)), lengths
    yield (
        "block-paged.seq-ptr-end--long",
        of,
        when,
        "seq_ptr ends at 4 of 3",
        with_tables(pointers=c.u32s(0, 2, 4)),
        lengths,
    )
    yield "block-paged.seq-ptr-end--empty", "paged-empty-batch", when, "one page in a batch of nobody", replace(
        f.EXAMPLE, tensors=(c.paged("value", p.F32, 2, 8, page_size=16, num_pages=1, tables=[], tokens=0,
                                    pool=bytes(1024), slack=(0, 8, 0), wide=True, role=p.VALUE, layer=p.NO_LAYER),),
    )  # fmt: skip
    uint64 = by_name(f.cases())["paged-uint64"].subject
    assert isinstance(uint64, File)
    changed = uint64.tensors[1]
    yield (
        "block-paged.page-id--uint64",
        "paged-uint64",
        when,
        "page 2^63, where a signed index wraps",
        replace(
            uint64,
            tensors=(
                uint64.tensors[0],
                replace(changed, buffers=(changed.buffers[0], c.u64s(7, 2, 0, 5, 7, BIG, 6), changed.buffers[2])),
            ),
        ),
    )
    yield "layout.tag", "unknown-layout", when, "layout tag 0x7B, read strictly", Options(permissive=False)
    yield (
        "layout.tag--index",
        of,
        when,
        "a descriptor with layout tag 0x7C in a file",
        {"tensors[0].layout_tag": 0x7C},
        lengths,
    )
    for name, of, position, buffer, value in (
        ("sparse.bounds--coo", "coo", 0, 1, c.u64s(0, 1, 2, 0, 2, 2, 2, 4)),
        ("sparse.bounds--csr", "csr", 2, 1, c.u64s(1, 0, 2, 4)),
        ("sparse.bounds--csc", "csc", 3, 1, c.u64s(MAX, 0, 2, 2)),
        ("sparse.bounds--csf", "csf", 4, 2, c.u64s(0, 1, 4)),
        ("sparse.pointer--start", "csr", 2, 2, c.u64s(1, 1, 1, 4)),
        ("sparse.pointer--falls", "csr", 2, 2, c.u64s(0, 2, 1, 4)),
        ("sparse.pointer--end", "csc", 3, 2, c.u64s(0, 1, 2, 3, 3)),
        ("sparse.pointer--wrap", "csr", 2, 2, c.u64s(0, MAX, 1, 4)),
        ("sparse.pointer--csf", "csf", 4, 3, c.u64s(0, 2, 1, 3)),
        ("sparse.duplicate--coo", "coo", 1, 1, c.u64s(2, 3, 0, 1, 2, 2, 0, 1)),
        ("sparse.order--coo", "coo", 0, 1, c.u64s(0, 1, 2, 2, 2, 0, 2, 3)),
    ):
        good = c.SPARSE[position]
        wrong = replace(good, buffers=(*good.buffers[:buffer], value, *good.buffers[buffer + 1 :]))
        yield name, "sparse-layouts", "values", f"{of}: wrong numbers in buffer {buffer}", File((wrong,))
    csf = c.SPARSE[4]
    for name, words, buffer, value in (
        ("sparse.pointer--csf-end-short", "pos_0 ends at 3, but crd_0 has 2 entries", 2, c.u64s(0, 1)),
        ("sparse.pointer--csf-end-long", "pos_0 ends at 3, but crd_0 has 4 entries", 2, c.u64s(0, 1, 3, 3)),
        ("sparse.level", "pos_1 has 2 entries, but level 0 has 3 nodes", 3, c.u64s(0, 3)),
    ):
        buffers = (*csf.buffers[:buffer], value, *csf.buffers[buffer + 1 :])
        descriptor = replace(csf.descriptor, handles=tuple(map(len, buffers)))
        yield name, "sparse-layouts", "values", words, File((replace(csf, buffers=buffers, descriptor=descriptor),))
    yield "descriptor.dynamic", "dynamic", "values", "the elements of a dynamic shape are asked for"
    yield (
        "limit.dense-bytes",
        "dense-layouts",
        "values",
        "2^40 packed elements out of one byte, by a stride of 0",
        File((Content("t", Descriptor(p.U4, (1 << 40, 2), (1,), **p.strided(0, 1)), (b"\x21",)),)),
        UNJUDGED,
    )
    yield (
        "limit.addressable",
        "dense-layouts",
        "values",
        "2^62 elements out of four, by a stride of 0",
        File((Content("t", Descriptor(p.F32, (1 << 62, 4), (16,), **p.strided(0, 1)), (c.f32s(1, 2, 3, 4),)),)),
        UNJUDGED,
    )
    yield (
        "quantization.mxfp-scale--FF",
        "quantized",
        "real",
        "a scale of 0xFF",
        File((c.dense("mxfp4", d.Q_MXFP, 8, (bytes([127, 255, 120, 1]),)),)),
    )
    yield (
        "quantization.mxfp-scale--00",
        "quantized",
        "real",
        "a scale of 0x00",
        File((c.dense("mxfp4", d.Q_MXFP, 8, (bytes([127, 1, 120, 0]),)),)),
    )


def _snapshots() -> Iterator[Row]:
    of, when = "snapshot", "values"
    key = f.SNAPSHOT.tensors[1]

    def with_lengths(lengths: Content) -> File:
        return File((lengths, key), metadata=f.IDENTITY)

    yield "snapshot.seq-lens-unknown", "paged-worked-example", when, "nobody says how 9 tokens are split", Options()
    yield "snapshot.seq-lens-count", of, when, "two lengths for three sequences", with_lengths(c.seq_lens(13, 12))
    yield "snapshot.seq-lens-pages", of, when, "9 tokens in 2 pages of 4", with_lengths(c.seq_lens(12, 9, 4))
    yield (
        "snapshot.seq-lens-pages--wrap",
        "paged-uint64",
        when,
        "a length of 2^64 - 1",
        File((c.seq_lens(13, MAX, 13, wide=True), key)),
    )
    yield "snapshot.seq-lens-sum", of, when, "24 of 25 tokens", with_lengths(c.seq_lens(12, 8, 4))
    yield (
        "snapshot.seq-lens-type--signed",
        of,
        when,
        "lengths of int32",
        with_lengths(c.small("seq_lens", *f.LENGTHS, type_tag=p.I32)),
    )
    yield (
        "snapshot.seq-lens-type--rank",
        of,
        when,
        "lengths of rank 2",
        with_lengths(Content("seq_lens", Descriptor(p.U32, (1, 3), (12,)), (c.u32s(*f.LENGTHS),))),
    )
    yield (
        "snapshot.seq-lens-type--layout",
        of,
        when,
        "lengths in a strided tensor",
        with_lengths(Content("seq_lens", Descriptor(p.U32, (3,), (12,), **p.strided(1)), (c.u32s(*f.LENGTHS),))),
    )
    yield (
        "snapshot.duplicate-role",
        of,
        "snapshot",
        "two tensors are the keys of layer 0",
        File((c.seq_lens(*f.LENGTHS), key, c.with_name(key, "copy"))),
    )
    yield (
        "snapshot.version",
        of,
        "snapshot",
        "hurray_wire.snapshot is 2",
        File(metadata=(("hurray_wire.snapshot", I64, 2),)),
    )
    yield (
        "snapshot.version--type",
        of,
        "snapshot",
        "hurray_wire.snapshot is a string",
        File(metadata=(("hurray_wire.snapshot", STRING, "1"),)),
    )
    yield (
        "snapshot.scale-shape",
        "snapshot-scales",
        "real",
        "three scales for two heads",
        File(
            (
                c.seq_lens(*f.LENGTHS),
                f.batch(p.KEY, 0, type_tag=p.E4M3),
                Content("layers.0.key.scale", Descriptor(p.F32, (3,), (12,)), (c.f32s(1, 2, 3),)),
            )
        ),
    )


def _composites() -> Iterator[Row]:
    of, when = "composite-partition", "verify"
    head, left, top, bottom = c.partition()

    def changed(content: Content, **changes: Any) -> Content:
        return replace(content, descriptor=replace(content.descriptor, **changes))

    yield "composite.torn", of, when, "the last of three members is missing", File((head, left, top))
    yield (
        "composite.torn--nested",
        "composite-nested",
        when,
        "the inner partition lacks a member",
        File(c.nested()[:-1]),
    )
    yield (
        "composite.overlap",
        of,
        when,
        "left and top share a column",
        File((head, left, changed(top, shard=((4, 6), (0, 1))), bottom)),
    )
    yield (
        "composite.coverage",
        of,
        when,
        "the last row of the right half belongs to nobody",
        File((head, left, top, c.dense("bottom", replace(bottom.descriptor, shape=(2, 4), handles=(8,)), 2))),
    )
    yield (
        "composite.parent-shape",
        of,
        when,
        "a member says it is a box of [4, 7]",
        File((head, left, changed(top, shard=((4, 7), (0, 2))), bottom)),
    )
    yield (
        "composite.shard",
        of,
        when,
        "a member without a shard section",
        File((head, left, changed(top, shard=None), bottom)),
    )
    yield (
        "composite.element-type",
        of,
        when,
        "an int8 member of a uint8 partition",
        File((head, left, changed(top, type_tag=p.I8), bottom)),
    )
    yield (
        "composite.member-section--partition",
        of,
        when,
        "a member of a partition with a role",
        File((head, left, changed(top, member=1), bottom)),
    )
    yield (
        "composite.member-section--group",
        "composite-group",
        when,
        "a member of a group with a role",
        File(c.group((c.small("u", 1, 2), changed(left, member=0)))),
    )
    of = "composite-overlay-add"
    head, base, first, second = c.overlay(p.ADD)
    yield (
        "composite.member-section--overlay",
        of,
        when,
        "a correction without a role",
        File((head, base, first, changed(second, member=None))),
    )
    yield (
        "composite.base--role",
        of,
        when,
        "the first member is a correction",
        File((head, changed(base, member=0), first, second)),
    )
    yield (
        "composite.base--two",
        of,
        when,
        "the last member is a base, too",
        File((head, base, first, changed(second, member=1))),
    )
    yield (
        "composite.base--shape",
        of,
        when,
        "the base does not span the head",
        File((head, c.with_name(changed(first, member=1), "base"), first, second)),
    )
    deep: tuple[Content, ...] = (c.small("t", 1),)
    for level in range(9):
        deep = (c.with_name(c.group(deep)[0], f"group.{level}"), *deep)
    yield "composite.depth", "composite-nested", when, "groups within groups, 9 deep", File(deep)


def _verified() -> Iterator[Row]:
    of, when = "checksums", "verify"
    crc = "metadata[0].value"
    yield "verify.crc--descriptor", of, when, "another checksum of the first descriptor", {f"{crc}[0]": 1}
    yield "verify.crc--buffer", of, when, "another checksum of the last buffer", {f"{crc}[3]": 1}
    yield "verify.crc--payload", of, when, "a byte of the last tensor is changed", _poke(TWO_OFFSETS["a"][1] + 3, 0xFF)
    yield "verify.crc--head", "composite-checksums", when, "another checksum of a composite head", {f"{crc}[0]": 1}

    def recording(tag: int, values: list[Any]) -> File:
        return replace(f.TWO, metadata=(("hurray_wire.crc32c", ARRAY, (tag, values)),))

    yield (
        "verify.crc-count--3",
        of,
        when,
        "three checksums for four things",
        replace(f.CHECKED, checksums=False, metadata=(("hurray_wire.crc32c", ARRAY, (U64, _crcs()[:3])),)),
    )
    yield (
        "verify.crc-count--5",
        of,
        when,
        "five checksums for four things",
        replace(f.CHECKED, checksums=False, metadata=(("hurray_wire.crc32c", ARRAY, (U64, [*_crcs(), 0])),)),
    )
    yield "verify.crc-type--string", of, when, "checksums as text", recording(STRING, ["a", "b", "c", "d"])
    yield "verify.crc-type--bool", of, when, "checksums as truth values", recording(BOOL, [1, 0, 1, 0])
    yield "verify.crc-type--f64", of, when, "checksums as floating-point numbers", recording(F64, [1.0, 2.0, 3.0, 4.0])
    yield "verify.crc-type--large", of, when, "a checksum of 2^32", recording(U64, [1 << 32, 0, 0, 0])
    yield (
        "verify.crc-type--scalar",
        of,
        when,
        "a single number",
        replace(f.TWO, metadata=(("hurray_wire.crc32c", U64, 7),)),
    )
    of, when = "metadata-sealed", "verify"
    yield (
        "verify.metadata-crc",
        of,
        when,
        "another checksum of the metadata",
        {f"metadata[{len(f.EVERY_KIND) + 1}].value": 1},
    )
    yield (
        "verify.metadata-crc--text",
        of,
        when,
        "a letter of a string is changed",
        (lambda data: data.replace("grüße".encode(), "Grüße".encode())),
    )
    yield "verify.metadata-crc--large", of, when, "a checksum of 2^32 more than it is", (_seal_plus(1 << 32))
    of = "unsorted-index"
    yield "verify.padding--before-data", of, when, "a 1 between descriptor and data", _poke(4095, 1)
    yield "verify.padding--after-data", of, when, "a 1 between data and the next descriptor", _poke(4099, 1)
    yield (
        "verify.padding--between-buffers",
        "paged-worked-example",
        when,
        "a 1 between page_pool and block_table",
        (_poke(4096 + 640, 1)),
    )
    yield "verify.padding--lead", "first-descriptor-128", when, "a 1 between header and first descriptor", _poke(64, 1)
    yield "verify.padding--head", "composite-partition-padded", when, "a 1 behind a composite head", _poke(200, 1)
    yield "verify.padding--before-index", "one-tensor", when, "a 1 between data and index", _poke(4103, 1)
    yield (
        "buffer.tail-bits",
        "every-type",
        when,
        "a 16th bool in a tensor of 15",
        File((Content("bool", Descriptor(p.BOOL, (3, 5), (2,)), (b"\xff\xff",)),)),
    )
    yield (
        "buffer.tail-bits--6-bit",
        "every-type",
        when,
        "a fourth 6-bit element in a tensor of 3",
        File((Content("float6_e2m3", Descriptor(p.E2M3, (3,), (3,)), (bytes([1, 0, 4]),)),)),
    )
    pool = bytearray(c.pattern(p.I2, 15, 1) + b"")
    pool[-1] |= 0xC0
    yield (
        "buffer.tail-bits--pages",
        "paged-packed-across-pages",
        when,
        "a bit behind the last element of the pool",
        File((c.paged("key", p.I2, 1, 5, page_size=3, num_pages=1, tables=[[0]], tokens=3, pool=bytes(pool)),)),
    )


def _crcs() -> list[int]:
    data, places = by_name(f.cases())["checksums"].emit()
    return [struct.unpack_from("<Q", data, pl.offset)[0] for pl in places if pl.name.startswith("metadata[0].value[")]


_GROUPS = (_header, _places, _trailer, _index, _metadata, _tensors, _snapshots, _composites, _verified)
