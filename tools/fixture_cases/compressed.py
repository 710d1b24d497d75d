"""Files in the compressed form, accepted and refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import contents as c
from . import files as f
from . import pieces as p
from .cases import Case, by_name
from .emit import File
from .refused_files import Options
from .zstd import Compressed

POOLS = File(
    (
        c.seq_lens(*f.LENGTHS),
        f.batch(p.KEY, 0, type_tag=p.F16, slack=(5, 0, 0)),
        f.batch(p.VALUE, 0, type_tag=p.F32),
        f.batch(p.KEY, 1, type_tag=p.F64),
        f.batch(p.VALUE, 1, type_tag=p.E4M3),
        f.batch(p.KEY, 2, type_tag=p.C128),
        f.batch(p.VALUE, 2, type_tag=p.I4),
    ),
    checksums=True,
)
SNAPSHOT = Compressed(f.SNAPSHOT)
PLANES = replace(SNAPSHOT, planes=True)
# Frames of SNAPSHOT and PLANES: 0 header and the descriptor of seq_lens, 1 the lengths, 2 the descriptor of the keys,
# 3 to 6 the pages of the keys, two by two
SMALL = Compressed(f.ONE)  # frames 0 header and descriptor, 1 the four bytes, 2 padding, 3 index and trailer


def accepted() -> list[Case]:
    every_type = by_name(f.cases())["every-type"].subject
    assert isinstance(every_type, File)
    rows: tuple[tuple[str, str, Compressed], ...] = (
        ("snapshot", "a snapshot in frames of two pages", SNAPSHOT),
        ("planes", "the same in byte planes", PLANES),
        ("planes-types", "byte planes of 2, 4 and 8 bytes, pools that are not split, slack behind a pool", Compressed(
            POOLS, planes=True, pages=3
        )),
        ("planes-no-pool", "byte planes where there is no pool to split", Compressed(f.TWO, planes=True)),
        ("every-type", "tensors of every type", Compressed(every_type)),
        ("small", "four frames", SMALL),
        ("no-tensors", "one frame, of 112 bytes", Compressed(File())),
        ("table-unchecked", "a seek table without checksums", replace(SMALL, table_checksums=False)),
        ("frames-unchecked", "frames without checksums", replace(SMALL, frame_checksums=False)),
        ("unchecked", "no checksum at all", replace(SMALL, frame_checksums=False, table_checksums=False)),
        ("sizes-untold", "frames that do not tell the size of their content", replace(SMALL, content_sizes=False)),
        ("sizes-wide", "sizes told in 8 bytes", replace(SMALL, wide=True)),
        ("windows", "frames with a window besides their size", replace(SMALL, window=0x40)),
        ("empty-frame", "an empty frame among the others", replace(SMALL, empty=True)),
        ("skippable-frame", "a skippable frame among the others, listed with a size of 0", replace(
            SMALL, skippable=b"not for you"
        )),
        ("cut-anywhere", "frames of 1000 bytes, cut wherever that falls", Compressed(f.SNAPSHOT, step=1000)),
        ("plain", "one plain zstd frame, without a table", Compressed(f.SNAPSHOT, step=1 << 30, table=False)),
        ("plain-frames", "many zstd frames and a skippable one, without a table", replace(
            SMALL, table=False, empty=True, skippable=b""
        )),
        ("plain-sizes-untold", "zstd frames without size or checksum, without a table", replace(
            SMALL, table=False, content_sizes=False, frame_checksums=False
        )),
    )  # fmt: skip
    return [Case(f"compressed-{name}", words, subject) for name, words, subject in rows]


def refused() -> list[Case]:
    named = by_name(accepted())
    return [_case(named, *row) for group in (_table, _frames, _plain, _planes) for row in group()]


Row = tuple[Any, ...]  # rule[--variant], accepted sibling, stage, words, then changes, a subject, an edit or options


def _case(named: dict[str, Case], name: str, of: str, when: str, words: str, *breaks: Any) -> Case:
    sibling = named[f"compressed-{of}"]
    case = replace(
        sibling, name=name, description=words, rule=name.partition("--")[0], when=when, keeps=sibling.file, judged=False
    )
    for change in breaks:
        if isinstance(change, Options):
            case = replace(case, options=dict(change))
        elif isinstance(change, dict):
            case = replace(case, changes=change)
        elif isinstance(change, Compressed):
            case = replace(case, subject=change)
        else:
            case = replace(case, edit=change)
    return case


def _table() -> Iterator[Row]:
    of, when = "small", "open"
    yield (
        "compressed.truncated--frames",
        of,
        when,
        "a table of 2^20 frames in a file of some hundred bytes",
        {"footer.number_of_frames": 1 << 20},
    )
    yield "limit.frames", of, when, "2^32 - 1 frames", {"footer.number_of_frames": 0xFFFFFFFF}
    for bit in range(2, 7):
        yield (
            f"compressed.reserved--{bit}",
            of,
            when,
            f"bit {bit} of the table's descriptor",
            {"footer.descriptor": 0x80 | 1 << bit},
        )
    yield (
        "compressed.table-magic",
        of,
        when,
        "the magic of another skippable frame",
        {"table.magic": bytes.fromhex("5d2a4d18")},
    )
    yield (
        "compressed.table-magic--fewer",
        of,
        when,
        "three frames, but the table lists four",
        {"footer.number_of_frames": 3},
    )
    yield (
        "compressed.table-magic--checksums",
        of,
        when,
        "entries are said to have no checksums",
        {"footer.descriptor": 0},
    )
    yield (
        "compressed.table-length",
        of,
        when,
        "the table is said to be a byte shorter",
        {"table.frame_size": 4 * 12 + 8},
    )
    yield (
        "compressed.table-length--huge",
        of,
        when,
        "the table is said to have 2^32 - 1 bytes",
        {"table.frame_size": 0xFFFFFFFF},
    )
    yield "compressed.entry--0", of, when, "a frame of no bytes", {"table[1].compressed_size": 0}
    yield "compressed.entry--7", of, when, "a frame of 7 bytes", {"table[1].compressed_size": 7}
    yield "compressed.frame-limit", of, when, "a frame that inflates to 2^30 + 1 bytes", {
        "table[1].decompressed_size": (1 << 30) + 1, "table[1].compressed_size": 1 << 16
    }  # fmt: skip
    yield "compressed.ratio", of, when, "17 bytes that inflate to 2^29", {"table[1].decompressed_size": 1 << 29}
    yield (
        "compressed.table-sum--more",
        of,
        when,
        "the frames are said to be a byte longer than they are",
        {"table[1].compressed_size": 18},
    )
    yield "compressed.table-sum--wrap", of, when, "sizes that add up to more than 2^32", {
        "table[0].compressed_size": 0xFFFFFFFF, "table[1].compressed_size": 0xFFFFFFFF
    }  # fmt: skip
    yield (
        "compressed.table-sum--unlisted",
        of,
        when,
        "a byte between the last frame and the table",
        (lambda data: data[:-65] + b"\0" + data[-65:]),
    )
    yield (
        "compressed.table-sum--missing",
        of,
        when,
        "the last byte of the last frame is missing",
        (lambda data: data[:-66] + data[-65:]),
    )


def _frames() -> Iterator[Row]:
    of, when = "small", "open"  # frame 0 is inflated when the file is opened, frame 1 when the tensor is read
    yield (
        "compressed.frame-magic",
        of,
        "values",
        "a frame that does not start with the magic of one",
        {"frames[1].magic": bytes.fromhex("27b52ffd")},
    )
    yield (
        "compressed.frame-magic--skippable",
        of,
        "values",
        "a skippable frame where four bytes should be",
        {"frames[1].magic": bytes.fromhex("502a4d18")},
    )
    yield (
        "compressed.frame-header--reserved",
        of,
        when,
        "the reserved bit of a frame header",
        {"frames[0].descriptor": 0x60 | 0x04 | 0x08},
    )
    yield "compressed.dictionary", of, "values", "a frame that needs dictionary 4", {"frames[1].descriptor": 0x25}
    yield "compressed.content-size--table", of, "values", "the table says 5 bytes, the frame 4", {
        "table[1].decompressed_size": 5, "table[2].decompressed_size": 3
    }  # fmt: skip
    yield (
        "compressed.content-size--frame",
        of,
        "values",
        "the frame says 5 bytes, the table 4",
        {"frames[1].content_size": 5},
    )
    yield (
        "compressed.content-size--huge",
        "sizes-wide",
        when,
        "a frame that says 2^40 bytes",
        {"frames[0].content_size": 1 << 40},
    )
    yield (
        "compressed.inflate--block-type",
        of,
        "values",
        "a block of the reserved type",
        {"frames[1].blocks[0].header": (1 | 3 << 1 | 4 << 3).to_bytes(3, "little")},
    )
    yield "compressed.produced", "sizes-untold", "values", "the table says 5 bytes, and 4 come out", {
        "table[1].decompressed_size": 5, "table[2].decompressed_size": 3
    }  # fmt: skip
    yield (
        "compressed.frame-end",
        of,
        "values",
        "a frame in which bytes follow the end",
        {"frames[1].blocks[0].header": (1 | 0 << 1 | 3 << 3).to_bytes(3, "little")},
    )
    yield "compressed.frame-checksum", of, "values", "another checksum at the end of a frame", {"frames[1].checksum": 1}
    yield (
        "compressed.frame-checksum--content",
        of,
        "values",
        "a byte of the content is changed",
        {"frames[1].blocks[0].content": b"\x0a\x14\x1f\x28"},
    )
    yield "compressed.table-checksum", of, "values", "another checksum in the table", {"table[1].checksum": 1}
    yield "compressed.table-checksum--swapped", "snapshot", "values", "two frames of pages change places", _swap
    yield (
        "verify.crc--inflated",
        "unchecked",
        "verify",
        "a changed byte under the file's own checksums alone",
        replace(Compressed(f.CHECKED), frame_checksums=False, table_checksums=False),
        {"frames[1].blocks[0].content": b"\1\2\4"},
    )
    yield "limit.window", "sizes-untold", "open", "a window of 2^28 bytes", {"frames[0].window": (28 - 10) << 3}


def _swap(data: bytes) -> bytes:
    """Exchange frames 3 and 4 of the compressed snapshot, which have one size, and leave the table as it is."""
    places = by_name(accepted())["compressed-snapshot"].emit()[1]
    starts = [place.offset for place in places if place.name.startswith("frames[") and place.name.endswith("].magic")]
    third, fourth, fifth = starts[3:6]
    return data[:third] + data[fourth:fifth] + data[third:fourth] + data[fifth:]


def _plain() -> Iterator[Row]:
    of, when = "plain", "open"
    yield "compressed.truncated--plain", of, when, "the last byte is missing", lambda data: data[:-1]
    yield (
        "compressed.truncated--plain-half",
        of,
        when,
        "half of the frame is missing",
        lambda data: data[: len(data) // 2],
    )
    yield (
        "limit.inflated-bytes",
        of,
        when,
        "a reader that inflates at most 1000 bytes",
        Options(limits={"max_inflated_bytes": 1000}),
    )
    yield "compressed.frame-magic--plain-tail", of, when, "a byte follows the last frame", lambda data: data + bytes(8)
    yield (
        "compressed.content-size--plain",
        of,
        when,
        "a frame that says 65791 bytes and has not the blocks for it",
        {"frames[0].content_size": 0xFFFF},
    )
    yield (
        "compressed.frame-checksum--plain",
        of,
        when,
        "another checksum at the end of the frame",
        {"frames[0].checksum": 1},
    )


def _planes() -> Iterator[Row]:
    yield "compressed.planes-table", "planes", "open", "byte planes without a seek table", replace(PLANES, table=False)
    yield (
        "compressed.planes-frame",
        "planes",
        "read",
        "a frame that holds the end of a pool and more",
        replace(PLANES, step=1000),
    )
    yield (
        "compressed.planes-frame--element",
        "planes-types",
        "read",
        "a frame that starts within an element",
        Compressed(File((f.batch(p.KEY, 0, type_tag=p.F16),)), planes=True, more_cuts=(4096 + 33,)),
    )
