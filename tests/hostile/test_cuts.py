"""Descriptors, files and streams cut at every byte, and with bytes left over: refused, by an error of ours."""

from __future__ import annotations

import io
import struct

import pytest
from fixtures.corpus import Entry, accepted, entry

import hurray_wire as hw

from . import exercise

SMALL_FILES = [
    entry(f"accepted/{name}")
    for name in (
        "no-tensors.hrry", "two-heads.hrry", "two-heads-sorted.hrry", "metadata-alone.hrry", "metadata-no-tensors.hrry",
        "metadata-sealed.hrry", "composite-group-empty.hrry", "one-tensor.hrry", "compressed-small.hrry.zst",
        "compressed-no-tensors.hrry.zst", "compressed-planes.hrry.zst", "compressed-plain-frames.hrry.zst",
    )
]  # fmt: skip


@pytest.mark.parametrize("entry", accepted("descriptor"), ids=str)
def test_a_descriptor_cut_anywhere_is_refused(entry: Entry) -> None:
    data = entry.data
    for end in range(len(data)):
        assert not exercise.descriptor(data[:end], **entry.options)
    for more in (b"\0", b"H", data):
        assert not exercise.descriptor(data + more, **entry.options)


@pytest.mark.parametrize("entry", SMALL_FILES, ids=str)
def test_a_file_cut_anywhere_is_refused(entry: Entry) -> None:
    data = entry.data
    without_table = -1
    if entry.kind == "compressed" and data.endswith(bytes.fromhex("b1ea928f")):
        (frames,) = struct.unpack_from("<I", data, len(data) - 9)
        without_table = len(data) - 9 - 12 * frames - 8
        if data[8:].find(b"HRRYPLNS") < 0:  # frames without their table are a plain zstd file, and whole
            assert exercise.file(data[:without_table])
    for end in range(len(data)):
        if end == without_table:
            continue
        with pytest.raises(hw.HurrayError) as caught, hw.open(data[:end]) as file:
            file.verify()
        assert caught.value.rule is not None


@pytest.mark.parametrize("entry", SMALL_FILES, ids=str)
def test_a_file_with_bytes_left_over_is_refused(entry: Entry) -> None:
    data = entry.data
    for more in (b"\0", bytes(40), b"HRRY", data[-40:]):
        with pytest.raises(hw.HurrayError):
            hw.open(data + more).verify()
        with pytest.raises(hw.HurrayError):
            hw.open(more + data).verify()


@pytest.mark.parametrize("entry", [e for e in accepted("stream") if len(e.data) < 3000], ids=str)
def test_a_stream_cut_anywhere_ends_well_only_between_tensors(entry: Entry) -> None:
    """And there only if no composite waits for members."""
    data = entry.data
    ends, position, missing = {0}, 0, [0]
    for tensor in entry.dump["tensors"]:
        position += tensor["descriptor"]["descriptor_length"] + sum(buffer["size"] for buffer in tensor["buffers"])
        if len(missing) > 1:
            missing[-1] -= 1
        if tensor["descriptor"]["layout_tag"] == 0x0B:
            missing.append(tensor["descriptor"]["layout"]["member_count"])
        while len(missing) > 1 and not missing[-1]:
            missing.pop()
        if len(missing) == 1:
            ends.add(position)
    assert max(ends) == len(data)
    for end in range(len(data)):
        reader = hw.StreamReader(io.BytesIO(data[:end]))
        if end in ends:
            list(reader)
        else:
            with pytest.raises(hw.HurrayError):
                list(reader)
