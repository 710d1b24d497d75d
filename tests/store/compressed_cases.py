"""Compressed files for tests: made by the library, and taken apart and put together again by hand."""

from __future__ import annotations

import io
import struct

import numpy as np
import xxhash
import zstandard

import hurray_wire as hw

TABLE_MAGIC = b"\x5e\x2a\x4d\x18"
END_MAGIC = b"\xb1\xea\x92\x8f"
SKIPPABLE = b"\x53\x2a\x4d\x18\x04\x00\x00\x00abcd"


def paged(
    name="layers.0.key",
    element_type=hw.bfloat16,
    *,
    page_size=4,
    num_pages=40,
    heads=2,
    dim=8,
    lens=(30, 17, 4),
    slack=0,
    seed=0,
):
    """A block-paged tensor with a permuted table: (name, descriptor, buffers), buffers as bytes."""
    rng = np.random.default_rng(seed)
    pages = [-(-length // page_size) for length in lens]
    table = rng.permutation(num_pages)[: sum(pages)].astype("<u4").tobytes()
    seq_ptr = np.cumsum([0, *pages]).astype("<u4").tobytes()
    layout = hw.BlockPagedLayout(page_size=page_size, num_pages=num_pages, paged_axis=0, num_seqs=len(lens))
    size = num_pages * page_size * heads * dim * element_type.bits // 8 + slack
    # numbers close together, as those of a cache are: high bytes that repeat, low ones that do not
    pool = rng.integers(0, 40, size, dtype=np.uint8).tobytes()
    descriptor = hw.TensorDescriptor.build(
        element_type, (sum(lens), heads, dim), layout, (len(pool), len(table), len(seq_ptr))
    )
    return name, descriptor, [pool, table, seq_ptr]


def lengths(lens=(30, 17, 4)):
    array = np.array(lens, dtype="<u4")
    descriptor = hw.TensorDescriptor.build(hw.uint32, (len(lens),), hw.RowMajorLayout(), (array.nbytes,))
    return "seq_lens", descriptor, [array.tobytes()]


def written(tensors, **options):
    """The bytes of a file with these tensors."""
    out = io.BytesIO()
    with hw.create(out, **options) as writer:
        for name, descriptor, buffers in tensors:
            writer.add(name, descriptor, buffers)
    return out.getvalue()


def table_of(data):
    """The entries of a file's seek table, read by hand: (compressed, inflated, checksum)."""
    assert data[-4:] == END_MAGIC
    count, flags = struct.unpack("<IB", data[-9:-4])
    width = 12 if flags & 0x80 else 8
    start = len(data) - 9 - count * width
    assert data[start - 8 : start - 4] == TABLE_MAGIC
    assert struct.unpack("<I", data[start - 4 : start]) == (len(data) - start,)
    return [struct.unpack(f"<{width // 4}I", data[start + k * width : start + (k + 1) * width]) for k in range(count)]


def frames_of(data):
    """The compressed frames of a file, as its table cuts them."""
    frames, at = [], 0
    for size, *_ in table_of(data):
        frames.append(data[at : at + size])
        at += size
    return frames


def entry_of(frame, content):
    return len(frame), len(content), xxhash.xxh64_intdigest(content) & 0xFFFFFFFF


def assembled(frames, entries, *, flag=0x80, count=None):
    """A file of these frames, with a table of these entries."""
    rows = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in entries)
    count = len(entries) if count is None else count
    header = TABLE_MAGIC + struct.pack("<I", len(rows) + 9)
    return b"".join(frames) + header + rows + struct.pack("<IB", count, flag) + END_MAGIC


def compressed(content, **options):
    """One frame, by python-zstandard alone."""
    return zstandard.ZstdCompressor(level=1, **{"write_checksum": True, **options}).compress(content)


def cut(content, sizes, **options):
    """A seekable file whose frames hold these numbers of bytes, the last one the rest."""
    pieces, at = [], 0
    for size in (*sizes, len(content)):
        pieces.append(content[at : at + size])
        at += len(pieces[-1])
    frames = [compressed(piece, **options) for piece in pieces]
    return assembled(frames, [entry_of(*pair) for pair in zip(frames, pieces, strict=True)])


def everything(data, **options):
    """All that a file holds, after it was verified."""
    with hw.open(data, **options) as file:
        file.verify()
        return {name: [buffer.tobytes() for buffer in tensor.buffers] for name, tensor in file.items()}, file.metadata


def refusal(data, **options):
    """The error of opening, reading and verifying; None if there is none."""
    try:
        everything(data, **options)
    except hw.HurrayError as error:
        return error
    return None
