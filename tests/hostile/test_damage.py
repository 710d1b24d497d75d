"""One byte changed: what verify says, and of which tensor."""

from __future__ import annotations

import pytest
from fixtures.corpus import Entry, entry, tool

import hurray_wire as hw

CHECKED = [
    entry(f"accepted/{name}.hrry")
    for name in ("snapshot", "snapshot-scales", "checksums", "composite-checksums", "metadata-sealed")
]


def flipped(data: bytes, at: int, mask: int = 0x10) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def spans(entry: Entry) -> list[tuple[str, int, int]]:
    """(name of the tensor, start, end) of every descriptor and buffer of a file, from the plain decoder's index."""
    found = []
    alignment = entry.dump["header"]["data_buffer_alignment"]
    descriptors = {tensor["name"]: tensor for tensor in entry.dump["tensors"]}
    for place in entry.dump["index"]:
        found.append(
            (place["name"], place["descriptor_offset"], place["descriptor_offset"] + place["descriptor_length"])
        )
        at = place["data_offset"]
        for buffer in descriptors[place["name"]]["buffers"]:
            at += -at % alignment
            found.append((place["name"], at, at + buffer["size"]))
            at += buffer["size"]
    return found


@pytest.mark.parametrize("entry", CHECKED, ids=str)
def test_one_byte_flipped_in_a_tensor_names_exactly_that_tensor(entry: Entry) -> None:
    data = entry.data
    for name, start, end in spans(entry):
        for at in sorted({start, (start + end) // 2, end - 1} if end > start else ()):
            with pytest.raises(hw.HurrayError) as caught, hw.open(flipped(data, at)) as file:
                file.verify()
            assert repr(name) in str(caught.value)
            heads = {tensor["name"] for tensor in entry.dump["tensors"] if tensor["descriptor"]["layout_tag"] == 0x0B}
            others = {tensor["name"] for tensor in entry.dump["tensors"]} - {name} - heads  # whose members they are
            assert not any(repr(other) in str(caught.value) for other in others)


@pytest.mark.parametrize("entry", CHECKED, ids=str)
def test_a_byte_flipped_in_a_buffer_is_a_checksum_that_does_not_hold(entry: Entry) -> None:
    """Unless the buffer's own rules notice first: an index buffer, a length."""
    data = entry.data
    for tensor in entry.dump["tensors"]:
        place = next(place for place in entry.dump["index"] if place["name"] == tensor["name"])
        if not tensor["buffers"] or not tensor["buffers"][0]["size"] or tensor["name"] == "seq_lens":
            continue
        with pytest.raises(hw.ChecksumError) as caught, hw.open(flipped(data, place["data_offset"])) as file:
            file.verify()
        assert caught.value.rule == "verify.crc"


# What no checksum covers and no rule forbids to be otherwise.
FREE = {
    "header.container_minor": "readers take any minor version",
    "header.file_flags": "metadata may be there without HAS_KV_METADATA",
    "header.tensor_count_hint": "nobody relies on it",
}


def test_every_byte_of_a_sealed_file_is_looked_at() -> None:
    """Each byte of a small file changed in two ways: verify notices, but for fields of the header that say nothing."""
    given = entry("accepted/checksums.hrry")
    case = next(case for case in tool("fixture_cases.files").cases() if case.file == given.file)
    data = given.data
    places = {place.name: place for place in case.emit()[1]}
    free = {at for name in FREE for at in range(places[name].offset, places[name].offset + places[name].size)}
    unnoticed = set()
    for at in range(len(data)):
        if data[at : at + 1] == b"\0" and data[max(at - 8, 0) : at + 9] == bytes(17):
            continue  # the middle of padding, of which the ends are tried
        for mask in (0x01, 0x80):
            try:
                with hw.open(flipped(data, at, mask)) as file:
                    file.verify()
                    unnoticed.add(at)
            except hw.HurrayError:
                pass
    assert unnoticed <= free | seal_of(given), sorted(unnoticed - free)


def seal_of(entry: Entry) -> set[int]:
    """Bytes of the key, its length and the tag of the seal: without them the metadata are simply not sealed."""
    end = entry.dump["trailer"]["kv_offset"] + entry.dump["trailer"]["kv_length"]
    return set(range(end - 8 - 1 - len("hurray_wire.metadata_crc32c") - 2, end - 8))


def test_keys_cannot_be_passed_off_as_values() -> None:
    """The index of a snapshot edited, under a good checksum, so that the values are where the keys are."""
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.open(entry("refused/container.overlap--keys-as-values.hrry").data)
    assert caught.value.rule == "container.overlap"
    assert "layers.0.value" in str(caught.value)
    assert "layers.0.key" in str(caught.value)


def test_a_duplicate_name_is_told_by_name() -> None:
    with pytest.raises(hw.InvalidFileError, match="duplicate tensor name 'b'"):
        hw.open(entry("refused/index.name-duplicate.hrry").data)
