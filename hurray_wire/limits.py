"""Every bound on what a file may make us do, each with its reason.

A number that comes from outside meets one of these, or the size of its own file, before memory is asked for or a loop
is begun. Fixed bounds of the format itself stand here as constants; bounds that a caller may move are fields of
``Limits``.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_RANK = 64  # the format's own bound on dimensions
MAX_NESTING = 8  # the format's own bound on tiles within tiles and composites within composites
MAX_FRAME_BYTES = 1 << 30  # the seekable Zstandard format's own bound on one inflated frame

_MIB = 1 << 20
FREE_BYTES = 256 * _MIB  # an array or a frame up to this size may be made of however few bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What reading may cost. Exceeding one raises ``LimitError``; raise a field to read an unusual file on purpose.

    All fields are counts or bytes. The defaults admit every snapshot we know of (a 100,000-tensor file included) and
    keep a hostile file from asking for more than some hundreds of MiB before it is refused.
    """

    max_tensors: int = 1 << 22
    """Tensors in one file: each costs an index entry, a name and a few objects."""

    max_index_bytes: int = 256 * _MIB
    """The index is read whole."""

    max_metadata_bytes: int = 64 * _MIB
    """The key-value section is decoded whole into Python objects."""

    max_metadata_entries: int = 1 << 17
    """Entries and elements of arrays together, those of arrays of numbers apart: each is decoded on its own, and an
    empty string costs 4 bytes in the file and ten times that in memory."""

    max_descriptor_bytes: int = 16 * _MIB
    """A descriptor is decoded whole; a private layout may carry data of its own."""

    max_members: int = 1 << 20
    """Members of one composite."""

    max_buffer_bytes: int = 1 << 46
    """One buffer of a stream: on a stream no file size bounds it."""

    max_inflated_bytes: int = 64 << 30
    """A plain Zstandard file is inflated whole into anonymous memory."""

    max_inflated_ratio: int = 1024
    """A compressed frame, a plain Zstandard file, or all frames that are asked for at once, that inflate to more than
    256 MiB have at least one byte for so many. Caches are a thousand times denser.
    """

    max_frames: int = 1 << 22
    """Frames in one seek table: each costs 12 bytes there and some more in memory."""

    max_dense_bytes: int = 64 << 30
    """What ``numpy()``, ``gather()``, ``to_dense()``, an export or an assembled composite may allocate for a shape that
    came from a file."""

    max_dense_ratio: int = 1024
    """An array above 256 MiB takes at most this many times the bytes that the file stores of its tensor, which a
    compressed file does by its average.

    Strides of 0, shared pages and sparse layouts let a few bytes stand for many. Padding a batch multiplies by its
    number of sequences at most, and a tensor that is sparser than this is better used as it is.
    """
