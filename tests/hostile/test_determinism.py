"""The same input gives the same bytes: in another process, under another hash seed, with another number of threads."""

from __future__ import annotations

import pytest

from .programs import output, start

SURROUNDINGS = (("0", False), ("4242", False), ("random", True))
ON_ONE_PROCESSOR = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # another number of threads
"""
PROGRAM = """
import hashlib, io, sys
import numpy as np
import hurray_wire as hw

rng = np.random.default_rng(5)
layers = [tuple(rng.standard_normal((40, 16, 2, 64)).astype(np.float16) for _ in range(2)) for _ in range(2)]
for pools in layers:
    for pool in pools:
        pool[7] = pool[5]  # so that deduplication finds something
tables = np.array([5, 7, *rng.permutation(np.delete(np.arange(40), [5, 7]))[:28]]).reshape(10, 3).T
metadata = {key: key for key in {"zebra", "apple", "moose", "hyena", "crane"} if True}
ordered = dict(sorted(metadata.items()))

def written(**options):
    out = io.BytesIO()
    hw.save_snapshot(out, layers, seq_lens=[160, 159, 151], block_tables=tables, metadata=ordered, **options)
    return hashlib.sha256(out.getvalue()).hexdigest()

print(written(), written(zstd=3), written(zstd=3, planes=True), written(deduplicate=True), written(quantize="int8"))
"""


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    running = [start("-c", ON_ONE_PROCESSOR * alone + PROGRAM, PYTHONHASHSEED=seed) for seed, alone in SURROUNDINGS]
    return [output(process).split() for process in running]


@pytest.mark.parametrize("form", range(5), ids=["plain", "zstd", "planes", "deduplicated", "int8"])
def test_bytes_do_not_depend_on_the_process(form: int, printed: list[list[str]]) -> None:
    assert len({digests[form] for digests in printed}) == 1
    assert len(set(printed[0])) == 5
