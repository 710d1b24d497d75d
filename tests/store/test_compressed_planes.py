"""Files of byte planes (spec/compressed.md, "Byte planes"): put together again, whatever the type, or refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from compressed_cases import assembled, compressed, cut, entry_of, everything, lengths, paged, refusal, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hurray_wire as hw
from hurray_wire.store import compressed_sink

PLAIN = written([lengths(), paged()])


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(compressed_sink, "FRAME_BYTES", 4096)


ELEMENT_TYPES = (hw.float16, hw.bfloat16, hw.int32, hw.float64, hw.complex64, hw.float8_e4m3, hw.int4, hw.float128)


@pytest.mark.parametrize("element_type", ELEMENT_TYPES, ids=lambda e: e.name)
@pytest.mark.parametrize("slack", [0, 1, 64, 5000])
def test_planes_are_put_together_again(element_type, slack):
    tensors = [lengths(), paged("t", element_type, num_pages=150, slack=slack)]
    plain = everything(written(tensors))
    assert everything(written(tensors, zstd=1, planes=True)) == plain
    with hw.open(written(tensors)) as a, hw.open(written(tensors, zstd=1, planes=True)) as b:
        assert a["t"].gather().values.tobytes() == b["t"].gather().values.tobytes()


def test_planes_of_another_writer_may_be_cut_at_any_whole_element():
    tensors = [paged(num_pages=150)]
    plain = written(tensors)
    pool = tensors[0][2][0]
    start = plain.index(pool)
    edges = [0, 3, 9, start, start + 2, start + 1000, start + len(pool), len(plain)]
    stream = b"HRRYPLNS" + plain[8:]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    pieces[3:6] = [piece[0::2] + piece[1::2] for piece in pieces[3:6]]
    frames = [compressed(piece) for piece in pieces]
    data = assembled(frames, [entry_of(*pair) for pair in zip(frames, pieces, strict=True)])
    assert everything(data) == everything(plain)


@pytest.mark.parametrize(
    ("first", "last", "inner"),
    [(-8, 0, None), (0, 8, None), (0, -2, None), (2, 0, None), (0, 0, 1), (0, 0, 999)],
)
def test_a_frame_that_crosses_the_edge_of_a_split_pool_or_cuts_an_element_is_refused(first, last, inner):
    tensors = [paged(num_pages=150)]
    plain = written(tensors)
    start = plain.index(tensors[0][2][0])
    end = start + len(tensors[0][2][0])
    stream = b"HRRYPLNS" + plain[8:]
    edges = [start + first, *([] if inner is None else [start + inner]), end + last]
    data = cut(stream, [b - a for a, b in pairwise([0, *edges])])
    with hw.open(data) as file, pytest.raises(hw.InvalidFileError) as caught:
        file["layers.0.key"]
    assert caught.value.rule == "compressed.planes-frame"


@pytest.mark.parametrize(
    "planes",
    [
        b"HRRYPLNS" + PLAIN[8:],
        compressed(b"HRRYPLNS" + PLAIN[8:]),
        compressed(b"HRRYPLNS" + PLAIN[8:5000]) + compressed(PLAIN[5000:]),
    ],
    ids=["inflated", "one-frame", "no-table"],
)
def test_planes_without_a_table_are_refused(planes):
    found = refusal(planes)
    assert isinstance(found, hw.InvalidFileError)
    assert found.rule == "compressed.planes-table"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    element_type=st.sampled_from(ELEMENT_TYPES),
    page_size=st.integers(1, 9),
    heads=st.integers(1, 3),
    dim=st.sampled_from((2, 8, 33)),
    lens=st.lists(st.integers(0, 60), max_size=5).map(tuple),
    planes=st.booleans(),
    data=st.data(),
)
def test_any_batch_is_gathered_as_from_the_file_itself(element_type, page_size, heads, dim, lens, planes, data):
    shape = {"page_size": page_size, "heads": heads, "dim": dim * element_type.group[0], "lens": lens}
    pages = sum(-(-length // page_size) for length in lens)
    tensors = [lengths(lens), paged("t", element_type, num_pages=pages + 3, **shape)]
    seqs = data.draw(st.lists(st.sampled_from(range(len(lens))), max_size=4)) if lens else []
    with hw.open(written(tensors)) as plain, hw.open(written(tensors, zstd=1, planes=planes)) as file:
        expected, found = plain["t"].gather(seqs), file["t"].gather(seqs)
        assert found.values.tobytes() == expected.values.tobytes()
        assert found.mask.tobytes() == expected.mask.tobytes()
        assert file["t"].ragged(seqs).tobytes() == plain["t"].ragged(seqs).tobytes()
        assert file.verify() == plain.verify()
