"""Every byte of a file, a stream or a descriptor with its meaning: offset, bytes, field, value.

What is told here is what the decoders took: they run as they always do while the doorway records their steps, so no
layout is told a second time, and of a damaged file all comes out up to the fault, which is then raised. Buffers and
padding are rows of their own, without their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from .errors import HurrayError, IncompatibleError
from .limits import Limits
from .model import layouts as m
from .model.block_paged import BlockPagedLayout
from .model.descriptor import TensorDescriptor
from .model.element_types import BY_TAG
from .model.sections import DEVICES, MEMORY_CLASSES, SYNC_MODES
from .model.shape import DYNAMIC
from .store.compressed_source import inflating
from .store.places import buffer_places
from .store.source import Source
from .store.target import open_target
from .wire import container, structs
from .wire.container import FileHeader, Trailer
from .wire.descriptors import HEADER_BYTES, decode_descriptor, descriptor_length
from .wire.doorway import Cursor, Taken, recording
from .wire.index import Index, IndexEntry, decode_index
from .wire.metadata import decode_metadata
from .wire.regions import check_regions

__all__ = ["Row", "annotate"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One field, or a run of payload or padding.

    ``size`` bytes at ``offset``; ``data`` is what they are, None for payload and padding. ``part`` is what the field
    belongs to ("descriptor", "buffer handle 0"), ``field`` its name, "" where the part is all of it. ``value`` is the
    number, list, text or bytes it holds, None for payload, padding and reserved bytes. ``words`` says what a number
    stands for, "" where it stands for itself.
    """

    offset: int
    size: int
    part: str
    field: str
    data: bytes | None = None
    value: Any = None
    words: str = ""


def annotate(target: Any, *, tensor: str | None = None, limits: Limits | None = None) -> Iterator[Row]:
    """The rows of a file in order of offset, from its first byte to its last; of one tensor only where it is named.

    ``target`` is what ``hw.open`` takes. A file that starts with a descriptor instead of a file header is taken as a
    stream, in which a lone descriptor may lack its buffers. Offsets of a compressed file are those of the file within.
    Raises what reading raises, after the rows that came before the fault; IncompatibleError for an unknown name.
    """
    limits = limits or Limits()
    source = inflating(open_target(target), limits)
    try:
        magic = bytes(source.view(0, min(source.size, len(structs.FILE_MAGIC))))
        is_stream = magic.startswith(structs.DESCRIPTOR_MAGIC) and magic != structs.FILE_MAGIC
        if is_stream and tensor is not None:
            raise IncompatibleError("the tensors of a stream have no names", rule="stream.no-names", found=tensor)
        yield from _stream(source, limits) if is_stream else _file(source, tensor, limits)
    finally:
        source.close()


def _file(source: Source, tensor: str | None, limits: Limits) -> Iterator[Row]:
    size = source.size
    first = source.view(0, min(size, container.HEADER_BYTES))
    if tensor is not None:
        header, _, index = _read_places(source, limits)
        if tensor not in index:
            raise IncompatibleError(f"there is no tensor {tensor!r}", rule="index.no-name", found=tensor)
        yield from _with_padding(_tensor(source, header, index.entry(tensor), limits), None)
        return
    yield from _recorded(lambda: container.decode_header(first))
    header, trailer, index = yield from _quiet_if_whole(lambda: _read_places(source, limits))
    parts: list[tuple[int, Callable[[], Iterable[Row]]]] = [
        (entry.descriptor_offset, partial(_tensor, source, header, entry, limits)) for entry in index
    ]
    if trailer.kv_length:
        parts.append((trailer.kv_offset, partial(_metadata, source, trailer, limits)))
    parts.append((trailer.index_offset, partial(_index_rows, source, trailer)))
    parts.append((size - container.TRAILER_BYTES, partial(_trailer_rows, source, header, limits)))
    parts.sort(key=lambda part: part[0])
    yield from _with_padding((row for _, rows in parts for row in rows()), container.HEADER_BYTES)


def _read_places(source: Source, limits: Limits) -> tuple[FileHeader, Trailer, Index]:
    """Header, trailer and index, checked as opening checks them."""
    size = source.size
    header = container.decode_header(source.view(0, container.HEADER_BYTES))
    trailer = _decode_trailer(source, header, limits)
    raw = source.view(trailer.index_offset, trailer.index_length)
    index = decode_index(raw, header=header, trailer=trailer, file_size=size, limits=limits)
    check_regions(header, trailer, index, size)
    return header, trailer, index


def _decode_trailer(source: Source, header: FileHeader, limits: Limits) -> Trailer:
    tail = source.view(max(0, source.size - container.TRAILER_BYTES), container.TRAILER_BYTES)
    return container.decode_trailer(tail, file_size=source.size, header=header, limits=limits)


def _tensor(source: Source, header: FileHeader, entry: IndexEntry, limits: Limits) -> Iterator[Row]:
    raw = source.view(entry.descriptor_offset, entry.descriptor_length)
    descriptor = yield from _recorded(
        lambda: decode_descriptor(raw, permissive=True, base=entry.descriptor_offset, limits=limits)
    )
    places = buffer_places(descriptor, entry, header.data_buffer_alignment)
    for number, (offset, size) in enumerate(places):
        yield Row(offset, size, f"data of {entry.name!r}", _buffer_name(descriptor, number))


def _metadata(source: Source, trailer: Trailer, limits: Limits) -> Iterator[Row]:
    section = source.view(trailer.kv_offset, trailer.kv_length)
    yield from _recorded(lambda: decode_metadata(section, base=trailer.kv_offset, limits=limits))


def _index_rows(source: Source, trailer: Trailer) -> Iterator[Row]:
    # reading an index for use goes by columns; this is the one place that reads it entry by entry
    raw = source.view(trailer.index_offset, trailer.index_length)
    cursor = Cursor(raw, area="index", base=trailer.index_offset)
    with recording() as taken:
        for number in range(cursor.value(structs.U64, "the number of index entries")):
            length = cursor.value(structs.U16, f"the name length of index entry {number}")
            cursor.view(length, f"the name of index entry {number}")
            cursor.take(structs.INDEX_ENTRY, f"index entry {number}")
    yield from _rows(taken)


def _trailer_rows(source: Source, header: FileHeader, limits: Limits) -> Iterator[Row]:
    yield from _recorded(lambda: _decode_trailer(source, header, limits))


def _stream(source: Source, limits: Limits) -> Iterator[Row]:
    at, number = 0, 0
    while at < source.size:
        head = source.view(at, min(HEADER_BYTES, source.size - at))
        length = descriptor_length(head, base=at, limits=limits)
        raw = source.view(at, length)
        descriptor = yield from _recorded(partial(decode_descriptor, raw, base=at, limits=limits))
        at += length
        if number == 0 and at == source.size:
            return
        for buffer, handle in enumerate(descriptor.buffers):
            source.view(at, handle.byte_size)  # refused if it is not there
            yield Row(at, handle.byte_size, f"data of tensor {number}", _buffer_name(descriptor, buffer))
            at += handle.byte_size
        number += 1


def _recorded(read: Callable[[], T]) -> Generator[Row, None, T]:
    """What ``read`` returns, and the rows of what it took; its error comes after those."""
    fault: HurrayError | None = None
    with recording() as taken:
        try:
            result = read()
        except HurrayError as error:
            fault = error
    yield from _rows(taken)  # outside the block: what the consumer reads meanwhile is not recorded
    if fault is not None:
        raise fault
    return result


def _quiet_if_whole(read: Callable[[], T]) -> Generator[Row, None, T]:
    """As ``_recorded``, with rows only where reading fails: otherwise they come in their own places."""
    rows = _recorded(read)
    kept = []
    while True:
        try:
            kept.append(next(rows))
        except StopIteration as end:
            result: T = end.value
            return result
        except HurrayError:
            yield from (row for row in kept if row.offset >= container.HEADER_BYTES)
            raise


def _with_padding(rows: Iterable[Row], end: int | None) -> Iterator[Row]:
    """The rows, with rows for the padding between them; ``end`` is where the row before them ended, if there is one."""
    for row in rows:
        if end is not None and row.offset > end:
            yield Row(end, row.offset - end, "padding", "zeros")
        yield row
        end = row.offset + row.size


def _rows(taken: Sequence[Taken]) -> Iterator[Row]:
    for step in _without_covers(taken):
        part = step.what.partition(",")[0].removeprefix("the ")
        if not step.fields and step.data:
            yield Row(step.offset, len(step.data), part, "", step.data, _plain(step.data))
        for name, at, size, value in step.fields:
            data = step.data[at : at + size]
            if name.startswith("reserved"):  # the decoder has found it to be zero
                yield Row(step.offset + at, size, part, "reserved", data)
            else:
                field = "" if name in _NAMELESS else name
                yield Row(step.offset + at, size, part, field, data, _plain(value), _words(name, value))


def _without_covers(taken: Sequence[Taken]) -> Iterator[Taken]:
    """The steps without those whose bytes were cut out first and then read field by field; of these, only the rest."""
    cover: Taken | None = None
    end = 0
    for step, following in zip_longest(taken, taken[1:]):
        if cover is not None and step.offset >= cover.offset + len(cover.data):
            yield from _rest(cover, end)
            cover = None
        if following is not None and following.offset < step.offset + len(step.data):
            cover = step
        else:
            yield step
            end = step.offset + len(step.data)
    if cover is not None:
        yield from _rest(cover, end)


def _rest(cover: Taken, end: int) -> Iterator[Taken]:
    if end < cover.offset + len(cover.data):
        yield Taken(end, cover.data[end - cover.offset :], f"rest of {cover.what.removeprefix('the ')}")


def _plain(value: Any) -> Any:
    """A number as it is, bytes as text where they are some, an array of construct as a list."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return value if isinstance(value, int | float) else list(value)


def _buffer_name(descriptor: TensorDescriptor, number: int) -> str:
    names = descriptor.layout.buffer_names or ()
    return names[number] if number < len(names) else f"buffer {number}"


def _inverse(words: Mapping[str, int]) -> dict[int, str]:
    return {number: word for word, number in words.items()}


_MEANINGS: dict[str, dict[int, str]] = {
    "type_tag": {tag: element_type.name for tag, element_type in BY_TAG.items()},
    "scale_type_tag": {tag: element_type.name for tag, element_type in BY_TAG.items()},
    "layout_tag": {
        kind.tag: kind.name
        for kind in (
            m.RowMajorLayout,
            m.ColMajorLayout,
            m.StridedLayout,
            m.TiledLayout,
            m.MortonLayout,
            m.CooLayout,
            m.CsrLayout,
            m.CscLayout,
            m.CsfLayout,
            BlockPagedLayout,
            m.CompositeLayout,
            m.HilbertLayout,
        )
    },
    "kv_role": _inverse(BlockPagedLayout.KV_ROLES),
    "layer_index": {BlockPagedLayout.NO_LAYER: "no layer"},
    "block_table_index_type": _inverse(BlockPagedLayout.INDEX_TYPES),
    "device_tag": _inverse(DEVICES),
    "sync_mode": _inverse(SYNC_MODES),
    "memory_class": _inverse(MEMORY_CLASSES),
    "tensor_count_hint": {container.NO_HINT: "not told"},
}
_NAMELESS = ("value", "numbers")  # the only fields of tables that have no more, told by their table's name
_IN_HEX = ("flags", "file_flags", "index_crc32c", "computed_mask", "checksum")


def _words(field: str, value: Any) -> str:
    """What a number stands for."""
    if field in _IN_HEX:
        return f"0x{value:08X}"
    if field == "numbers" and DYNAMIC in value:
        return "dynamic"
    return _MEANINGS.get(field, {}).get(value, "") if isinstance(value, int) else ""
