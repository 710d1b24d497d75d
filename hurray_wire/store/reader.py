"""Reading a file (spec/container.md).

Opening touches the header, the trailer, the index and nothing else; a tensor's descriptor is read when the tensor is
first touched, its buffers when they are used. A file is held to its own words from the start: header, index and trailer
must account for every byte, and a descriptor must agree with its index entry. What only payload can tell (checksums,
padding, the contents of index buffers) is left to :meth:`File.verify`.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import forks
from ..arrays.memory import allocate
from ..buffers import Buffers
from ..composites import CompositeTensor, members_of
from ..errors import (
    IncompatibleError,
    TruncatedError,
)
from ..limits import Limits
from ..model import element_types as et
from ..model.layouts import CompositeLayout, RowMajorLayout
from ..paged_tensor import PagedTensor, make_tensor
from ..tensors import Tensor
from ..wire import container, planes
from ..wire.descriptors import decode_descriptor
from ..wire.index import IndexEntry, decode_index
from ..wire.metadata import Metadata, decode_metadata
from ..wire.regions import check_regions
from ..wire.structs import FILE_MAGIC
from .compressed_source import inflating
from .places import buffer_places
from .source import Compression, Source
from .target import name_of, open_target
from .verify import Report, Verification, naming, reading

__all__ = ["SCALE_SUFFIX", "SEQ_LENS", "File", "OpenOptions", "Report", "open_as"]

FileT = TypeVar("FileT", bound="File")

SEQ_LENS = "seq_lens"
SCALE_SUFFIX = ".scale"


class OpenOptions(TypedDict, total=False):
    """The options of ``hw.open``."""

    mmap: bool
    permissive: bool
    limits: Limits | None
    seq_lens: ArrayLike | None
    storage_options: Mapping[str, Any] | None


class MissingTensorError(KeyError):
    """There is no tensor of this name. Which names come near is looked up only when somebody reads the message."""

    def __init__(self, name: object, names: Sequence[str] = ()) -> None:
        super().__init__(name)
        self._names = names

    def __str__(self) -> str:
        near = difflib.get_close_matches(str(self.args[0]), self._names, n=3)
        others = f"; there is {' and '.join(map(repr, near))}" if near else f" among {len(self._names)}"
        return f"no tensor {self.args[0]!r}{others}"


class File(Mapping[str, Tensor]):
    """An open file: a mapping from names to tensors, in write order.

    Tensors are lazy and stay valid after :meth:`close` as far as their memory is borrowed from a mapping. Several
    threads may use one file.
    """

    def __init__(
        self,
        source: Source,
        *,
        permissive: bool = False,
        limits: Limits | None = None,
        seq_lens: ArrayLike | None = None,
        said: str | None = None,
    ) -> None:
        self._source = source
        self._said = said
        self._permissive = permissive
        self._limits = _stored(limits or Limits(), source.compression)
        self._seq_lens = None if seq_lens is None else given_lengths(seq_lens)
        self._tensors: dict[str, Tensor] = {}
        self._lock = threading.RLock()
        size = source.size
        if not size:
            raise TruncatedError("the file is empty", rule="container.truncated", offset=0, found=0)
        least = container.HEADER_BYTES + container.TRAILER_BYTES
        if size < least:
            head = bytes(source.view(0, min(size, container.HEADER_BYTES)))
            if not head.startswith(FILE_MAGIC[: len(head)]) or len(head) == container.HEADER_BYTES:
                # a wrong magic says more than a wrong size
                container.decode_header(memoryview(head.ljust(container.HEADER_BYTES, b"\0")))
            raise TruncatedError(
                f"{size} bytes are too few for a file of at least {least}", rule="container.truncated", found=size
            )
        self._header = container.decode_header(source.view(0, container.HEADER_BYTES))
        tail = source.view(size - container.TRAILER_BYTES, container.TRAILER_BYTES)
        self._trailer = container.decode_trailer(tail, file_size=size, header=self._header, limits=self._limits)
        raw = source.view(self._trailer.index_offset, self._trailer.index_length)
        self._index = decode_index(raw, header=self._header, trailer=self._trailer, file_size=size, limits=self._limits)
        self._regions = check_regions(self._header, self._trailer, self._index, size)
        self._metadata: Metadata | None = None
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names in write order."""
        return self._index.names

    @property
    def metadata(self) -> Metadata:
        """The file's metadata: str to str, int, float, bool, bytes or list. Decoded on first use; a copy of yours."""
        with self._lock:
            if self._metadata is None:
                trailer = self._trailer
                section = self._source.view(trailer.kv_offset, trailer.kv_length)
                self._metadata = (
                    decode_metadata(section, base=trailer.kv_offset, limits=self._limits) if trailer.kv_length else {}
                )
            return {key: list(value) if isinstance(value, list) else value for key, value in self._metadata.items()}

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of this name: a PagedTensor if it is block-paged, a CompositeTensor for the head of a composite.

        KeyError if there is none, which tells the names that come near.
        """
        with self._lock:
            tensor = self._tensors.get(name)
            if tensor is None:
                if name not in self._index:
                    raise MissingTensorError(name, self.names)
                tensor = self._tensors[name] = self._read_tensor(self._index.entry(name))
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.names)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    @property
    def paged(self) -> tuple[PagedTensor, ...]:
        """The block-paged tensors, in write order. Reads every descriptor."""
        unread = [entry for entry in self._index if entry.name not in self._tensors]
        while unread:
            count = self._source.prefetch([(entry.descriptor_offset, entry.descriptor_length) for entry in unread])
            for entry in unread[:count]:
                self[entry.name]
            unread = unread[count:]
        return tuple(tensor for tensor in self.values() if isinstance(tensor, PagedTensor))

    @property
    def compression(self) -> Compression | None:
        """How the file is compressed, and how many of its frames were inflated so far; None if it is not compressed."""
        return self._source.compression

    def verify(
        self, *, progress: Callable[[int, int], None] | None = None, only: Collection[str] | None = None
    ) -> Report:
        """Read the whole file and check all that can be: every checksum, all padding, every index buffer.

        ``only`` names tensors, of which, and of the metadata, this is done, and of nothing else. KeyError for a name
        that is not there.

        Raises ChecksumError or another error of ours on the first fault, which names the tensor; otherwise returns
        what was looked at. ``progress`` is called with the bytes read and the bytes in all after each tensor. Memory
        stays bounded; on a compressed file every frame is inflated once.
        """
        parts = (self._source, self._header, self._trailer, self._index, self._regions)
        with reading(self._said):
            verification = Verification(*parts, tensor=self.__getitem__, metadata=self.metadata, limits=self._limits)
            return verification.run(progress, only)

    def reads_from(self, target: object) -> bool:
        """Whether this very object is where the bytes of the file come from."""
        return self._source.reads_from(target)

    def close(self) -> None:
        """Refuse further reading. Arrays that borrow mapped memory stay valid. Closing twice is fine."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        compression, count = self._source.compression, len(self)
        size = f"{self._source.size} bytes" + (f", {compression.compressed_bytes} compressed" if compression else "")
        where = "" if self._said is None else f" {self._said!r}"
        return f"<hurray_wire.File{where} of {count} tensor{'' if count == 1 else 's'}, {size}>"

    def _read_tensor(self, entry: IndexEntry) -> Tensor:
        raw = self._source.view(entry.descriptor_offset, entry.descriptor_length)
        with reading(self._said), naming(entry.name):
            descriptor = decode_descriptor(
                raw, permissive=self._permissive, base=entry.descriptor_offset, limits=self._limits
            )
            places = buffer_places(descriptor, entry, self._header.data_buffer_alignment)
            if places:
                self._source.mark_pool(*places[0], planes.element_bytes(descriptor))
        if isinstance(descriptor.layout, CompositeLayout):
            return CompositeTensor(
                entry.name,
                descriptor,
                find_members=lambda: members_of(self.names, self._index.place(entry.name), self.__getitem__),
                limits=self._limits,
            )
        return make_tensor(
            entry.name,
            descriptor,
            _StoredBuffers(self._source, places, self._said),
            limits=self._limits,
            recorded_seq_lens=self.recorded_seq_lens,
            companion_scale=self._companion_scale,
        )

    def recorded_seq_lens(self) -> NDArray[Any] | None:
        """The lengths given when opening, or those recorded in the file."""
        with self._lock:
            if self._seq_lens is None and SEQ_LENS in self._index:
                self._seq_lens = checked_lengths(self[SEQ_LENS])
            return self._seq_lens

    def _companion_scale(self, name: str) -> NDArray[Any] | None:
        companion = f"{name}{SCALE_SUFFIX}"
        if companion not in self._index or isinstance(found := self[companion], PagedTensor):
            return None
        return found.numpy()


class _StoredBuffers(Buffers):
    """The buffers of one tensor in a file."""

    def __init__(self, source: Source, places: list[tuple[int, int]], said: str | None) -> None:
        self._source = source
        self._said = said
        self._places = places
        self.lends = source.lends
        self.scatters = source.scatters

    def __len__(self) -> int:
        return len(self._places)

    def fetch(self, index: int) -> NDArray[np.uint8]:
        offset, length = self._places[index]
        with reading(self._said):
            return np.frombuffer(self._source.view(offset, length), dtype=np.uint8)

    def fetch_rows(self, index: int, row_bytes: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        out = allocate((len(rows), row_bytes), np.dtype(np.uint8), None)
        with reading(self._said):
            self._source.read_rows(self._places[index][0], row_bytes, rows, out)
        return out

    def fetch_parts(self, index: int, parts: Sequence[tuple[int, memoryview]]) -> None:
        base = self._places[index][0]
        with reading(self._said):
            self._source.read_parts([(base + offset, memory) for offset, memory in parts])


def open_as(
    kind: type[FileT],
    target: Any,
    *,
    mmap: bool = True,
    permissive: bool = False,
    limits: Limits | None = None,
    seq_lens: ArrayLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FileT:
    """Open a file: a path, a URL, bytes, or a readable and seekable binary object; compressed or not is told by its
    content.

    ``mmap=False`` reads a path with pread instead of mapping it, for files that others may truncate. ``permissive``
    keeps tensors with unknown layout tags instead of refusing them. ``limits`` bounds what reading may cost.
    ``seq_lens`` gives the lengths of the sequences of a file that does not record them. What is opened by path is
    closed with the file; bytes and objects are borrowed. Of a compressed file with a seek table only those frames are
    inflated that hold what is asked for, when it is asked for; without one the whole file is, into memory, when it
    is opened.

    A URL (``https://...``, ``s3://...``) is read through fsspec, which ``hurray_wire[remote]`` installs with what it
    needs for HTTP; ``s3fs`` for S3 and others are yours to add. ``storage_options`` are those of its file system:
    credentials, an endpoint, headers. By range requests only what is asked for is brought, and a server that
    ignores them is refused, as is a file that changes while it is open. A ``file://`` URL is a path.

    Raises InvalidFileError (TruncatedError, ChecksumError below it), UnsupportedError, LimitError, or OSError.
    Specification: spec/container.md, spec/compressed.md.
    """
    said = name_of(target)
    with reading(said):
        source = open_target(target, use_mmap=mmap, storage_options=storage_options)
        try:
            source = inflating(source, limits or Limits())
            return kind(source, permissive=permissive, limits=limits, seq_lens=seq_lens, said=said)
        except BaseException:
            source.close()
            raise


def _stored(limits: Limits, compression: Compression | None) -> Limits:
    """The limits by which a byte of a tensor counts as what the file, if it is compressed, stores for it on average."""
    if compression is None:
        return limits
    ratio = limits.max_dense_ratio * compression.compressed_bytes // max(compression.inflated_bytes, 1)
    return replace(limits, max_dense_ratio=min(limits.max_dense_ratio, ratio))


def checked_lengths(tensor: Tensor) -> NDArray[Any]:
    """The values of a tensor that records lengths: a row-major vector of uint32 or uint64."""
    d = tensor.descriptor
    if d.element_type not in (et.uint32, et.uint64) or d.rank != 1 or not isinstance(d.layout, RowMajorLayout):
        raise IncompatibleError(
            f"{SEQ_LENS!r} is {d.element_type.name} {list(d.shape)} {d.layout.name}, "
            "not a row-major vector of uint32 or uint64",
            rule="snapshot.seq-lens-type",
            found=d.element_type.name,
        )
    return tensor.numpy()


def given_lengths(seq_lens: ArrayLike) -> NDArray[Any]:
    """Lengths that a caller gives, as a read-only vector of their own."""
    lengths = np.array(seq_lens)
    if lengths.size == 0:
        lengths = lengths.astype(np.int64)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise IncompatibleError(
            f"seq_lens is {lengths.dtype} of {lengths.ndim} dimensions, not a vector of integers",
            rule="snapshot.seq-lens-type",
        )
    lengths.flags.writeable = False
    return lengths
