"""Every integer field of many files set to every value that has ever hurt a parser, one at a time.

Run as a program, so that memory can be watched, and with ``-O``, so that no check hides in an assertion:

    python [-O] tests/hostile/sweep.py [descriptor] [file] [compressed] [stream]

Prints one JSON object: how many cases were tried, how many of them were still valid, what came out that is no error
of ours, by how much the process grew, and how long the slowest case took. But for streams, which may map memory that
they do not use, the process gets no more address space than some hundred MiB above what it has, and an allocation
that then fails counts as a stranger, too.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.corpus import tool

from hostile import exercise
from hurray_wire.wire.checksum import crc32c

VALUES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
ROOM = 256 << 20  # address space beyond what there was; memory is judged by what is touched
# Descriptors that differ from others in one byte are left out; of files those are taken that between them have every
# structure, and each tensor of some in a file of its own.
LIKE_OTHERS = (
    "type-",
    "handle-",
    "statistics-",
    "rank-64",
    "empty-",
    "paged-",
    "quant-mx",
    "quant-paged-",
    "composite-",
)
UNLIKE = (
    "type-int8", "type-int4", "type-private-4-bit-float", "handle-cuda-peer", "statistics-all", "paged-worked-example",
    "paged-uint64", "quant-mxfp4", "quant-paged-per-head", "quant-paged-per-slot", "composite-overlay",
)  # fmt: skip
TENSORS = (
    "coo", "csr", "csc", "csf", "coo.packed", "per_channel", "per_block", "nf4", "mxfp4", "per_head",
    "per_slot.one_buffer", "col-major-bool", "strided-negative", "strided-zero", "tiled-nested",
    "tiled-float6", "morton", "hilbert-3d",
)  # fmt: skip
FILES = (
    "one-tensor",
    "two-heads-sorted",
    "metadata-sealed",
    "index-without-crc",
    "paged-uint64",
    "composite-partition",
)
COMPRESSED = ("compressed-small", "compressed-planes", "compressed-plain-frames", "compressed-unchecked")
STREAMS = ("stream-worked-example", "stream-partition", "stream-snapshot")


def cases(kind: str) -> Iterator[tuple[str, Any]]:
    """(kind, case) of everything that is swept."""
    for case in tool("make_fixtures").accepted_cases():
        if case.kind != kind:
            continue
        like_others = case.name.startswith(LIKE_OTHERS) and case.name not in UNLIKE
        if case.name in (*FILES, *COMPRESSED, *STREAMS) or (kind == "descriptor" and not like_others):
            yield kind, case
    if kind == "file":
        contents, emit = tool("fixture_cases.contents"), tool("fixture_cases.emit")
        maker = tool("fixture_cases.cases")
        dense = next(
            case for case in tool("make_fixtures").accepted_cases() if case.file == "accepted/dense-layouts.hrry"
        )
        for content in (*contents.SPARSE, *contents.QUANTIZED, *contents.QUANTIZED_PAGED, *dense.subject.tensors):
            if content.name not in TENSORS:
                continue
            paged = content in contents.QUANTIZED_PAGED
            lengths = {"seq_lens": list(contents.QUANTIZED_PAGED_LENGTHS)} if paged else {}
            yield kind, maker.Case(content.name, content.name, emit.File((content,)), options=lengths)


def mutations(case: Any) -> Iterator[tuple[str, bytes]]:
    """The bytes of a case with one field changed; the checksum of the index follows, so that the change is seen."""
    data, places = case.emit()
    by_name = {place.name: place for place in places}
    crc = by_name.get("trailer.index_crc32c")
    sealed = crc is not None and struct.unpack_from("<I", data, crc.offset)[0] != 0
    for place in places:
        if place.code in ("raw", "f", "d"):
            continue
        (now,) = struct.unpack_from("<" + place.code, data, place.offset)
        for value in dict.fromkeys((*VALUES, len(data) - 1, len(data) + 1, now + 1)):
            changed = bytearray(data)
            changed[place.offset : place.offset + place.size] = (value % (1 << 8 * place.size)).to_bytes(
                place.size, "little"
            )
            if changed == data:
                continue
            if crc is not None and sealed and place.name.startswith("index"):
                index = changed[by_name["index.count"].offset : by_name["trailer.index_offset"].offset]
                changed[crc.offset : crc.offset + 4] = struct.pack("<I", crc32c(index))
            yield f"{case.file}: {place.name} = {value}", bytes(changed)


def sweep(kinds: list[str]) -> dict[str, Any]:
    """Try every mutation of these kinds."""
    tried = valid = 0
    strangers: list[str] = []
    slowest = ("", 0.0)
    work = [(kind, case) for kind in kinds for _, case in cases(kind)]
    for kind, case in work[:: max(1, len(work) // 20)]:  # so that pools of threads and caches are there
        exercise.KINDS[kind](case.emit()[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if "stream" not in kinds:
        exercise.refuse_to_lack_memory()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
    for kind, case in work:
        options = dict(case.options) if kind != "stream" else {}
        for words, data in mutations(case):
            tried += 1
            began = time.perf_counter()
            try:
                valid += exercise.KINDS[kind](data, **options)
            except Exception as error:  # whatever it is, it is told
                strangers.append(f"{words}: {type(error).__name__}: {error}")
            slowest = max(slowest, (words, time.perf_counter() - began), key=lambda pair: pair[1])
    return {
        "tried": tried, "valid": valid, "strangers": strangers, "slowest": slowest, "optimized": not __debug__,
        "grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(sweep(sys.argv[1:] or list(exercise.KINDS))))
