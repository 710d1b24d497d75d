"""One file far away: its size, and requests for parts of it, many at once.

fsspec finds the place and keeps its connections and credentials. What it does not do is look at the answers: over HTTP
and S3 it takes a whole file for the part that was asked for, and parts of two files for parts of one. There the
requests are ours, over the connections of fsspec, and every answer is held to what was asked, before a byte of it is
taken: the range, the size of the file, its ETag. Every other place is read through fsspec's own calls, and asked
afterwards whether the file is still the same one.

What these calls can raise is turned into errors of ours and of the operating system in ``remote_errors.py``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import forks
from ..errors import InvalidFileError, UnsupportedError
from .ranges import Request
from .remote_errors import changed, shown, status_error, translated, wrong_length

try:
    import fsspec
except ImportError:
    fsspec = None

__all__ = ["RemoteFile", "connect"]

T = TypeVar("T")

_AT_ONCE = 16  # requests under way: hides the round trips of a gather, and servers do not mind
_LARGEST = (1 << 63) - 1  # what the file systems and NumPy can address

# what file systems call a thing that changes with the contents, the most telling first
_VERSION_KEYS = ("etag", "ETag", "generation", "md5Hash", "version_id", "CRC", "mtime", "last_modified", "created")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)", re.ASCII)


class RemoteFile(ABC):
    """A file by its URL. Threads may share it, and a forked process connects anew. ``begin`` comes first."""

    size: int

    def __init__(self, url: str, options: Mapping[str, Any], fs: Any, path: str) -> None:
        self._url = url
        self._options = options
        self._connected = os.getpid(), fs, path

    @property
    def _place(self) -> tuple[Any, str]:
        """The file system, and the path there."""
        pid, fs, path = self._connected
        if pid != os.getpid():  # the thread behind the connections of a parent does not exist in its child
            thread = fsspec.asyn.iothread[0]
            if thread is not None and not thread.is_alive():  # older releases do not see that for themselves
                fsspec.asyn.reset_lock()
            fs, path = _find(self._url, self._options)
            self._connected = os.getpid(), fs, path
        return fs, path

    @abstractmethod
    def begin(self, count: int) -> bytes:
        """Learn the size; returns the first ``count`` bytes, or fewer, if they came along."""

    @abstractmethod
    def fetch(self, requests: Sequence[Request]) -> None:
        """Send the requests, several at once, and deliver what they bring."""


@dataclass(frozen=True, slots=True)
class _Answer:
    content_range: str | None
    version: str | None
    chunks: AsyncIterator[bytes]


class _AnsweringFile(RemoteFile):
    """A file whose server tells, with each part that it sends, which part of what file this is."""

    _told: tuple[int, str | None] | None = None  # size and version

    def begin(self, count: int) -> bytes:
        data: bytes = self._run(self._first(count))
        return data

    def fetch(self, requests: Sequence[Request]) -> None:
        self._run(self._all(requests))

    @abstractmethod
    def _ask(self, start: int, stop: int) -> AbstractAsyncContextManager[_Answer]:
        """Ask for the bytes [start, stop)."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with translated(self._url):
            future = asyncio.run_coroutine_threadsafe(work, self._place[0].loop)
            try:
                return future.result()
            finally:
                future.cancel()  # where the wait was interrupted; nothing to one that is done

    async def _first(self, count: int) -> bytes:
        async with self._ask(0, count) as answer:
            memory = memoryview(bytearray(self._judge(answer, 0, count)))
            await self._read(answer, 0, memory)
        return bytes(memory)

    async def _all(self, requests: Sequence[Request]) -> None:
        todo = deque(requests)

        async def work() -> None:
            while todo:
                request = todo.popleft()
                async with self._ask(request.start, request.stop) as answer:
                    self._judge(answer, request.start, request.stop)
                    memory = request.memory()
                    await self._read(answer, request.start, memory)
                request.deliver(memory)

        workers = [asyncio.ensure_future(work()) for _ in range(min(_AT_ONCE, len(todo)))]
        try:
            await asyncio.gather(*workers)
        finally:  # when this raises, none of them is still writing into what was to be filled
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _judge(self, answer: _Answer, start: int, stop: int) -> int:
        """Refuse an answer to another question, or from another file. Returns how many bytes are to come."""
        told = None if answer.content_range is None else _CONTENT_RANGE.fullmatch(answer.content_range.strip())
        if told is None:
            raise UnsupportedError(
                f"the server of {shown(self._url)} sends the whole file when asked for a part of it; "
                "fetch the file first, and open that",
                rule="file.range",
                offset=start,
                found=answer.content_range,
            )
        size = int(told[3])
        if self._told is None:
            if size > _LARGEST:
                raise InvalidFileError(f"a file cannot have {size} bytes", rule="file.range", found=size)
            self._told = size, answer.version
            self.size = size
        elif self._told != (size, answer.version):
            raise changed(self._url, start, self._told, (size, answer.version))
        stop = min(stop, self.size)
        if (told[1], told[2]) != (str(start), str(stop - 1)) and stop > start:
            raise InvalidFileError(
                f"bytes {start}-{stop - 1} were asked for, but the server sends {answer.content_range!r}",
                rule="file.range",
                offset=start,
                declared=f"bytes {start}-{stop - 1}/{self.size}",
                found=answer.content_range,
            )
        return stop - start

    async def _read(self, answer: _Answer, start: int, memory: memoryview) -> None:
        done = 0
        async for chunk in answer.chunks:
            if done + len(chunk) > len(memory):
                raise wrong_length(start, len(memory), done + len(chunk))
            memory[done : done + len(chunk)] = chunk
            done += len(chunk)
        if done < len(memory):
            raise wrong_length(start, len(memory), done)


class _HttpFile(_AnsweringFile):
    """Over the session of fsspec's HTTP file system."""

    @asynccontextmanager
    async def _ask(self, start: int, stop: int) -> AsyncIterator[_Answer]:
        fs, path = self._place
        session = await fs.set_session()
        options = dict(fs.kwargs)
        headers = {
            **options.pop("headers", {}),
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",  # parts of a file that is compressed on its way are parts of something else
        }
        # what is stored compressed stays so, whatever the server calls it: that is for us to inflate
        options |= {"headers": headers, "auto_decompress": False}
        async with session.get(fs.encode_url(path), **options) as response:
            try:
                told = None if response.status == 200 else response.headers.get("Content-Range")
                version = response.headers.get("ETag") or response.headers.get("Last-Modified")
                if response.status == 416 and told is None and self._told is not None:
                    raise changed(self._url, start, self._told, None)
                if response.status not in (200, 206) and (response.status != 416 or told is None):
                    raise status_error(response.status, response.reason, self._url)
                yield _Answer(told, version, response.content.iter_any())
            except BaseException:
                response.close()  # rather than read on for the sake of the connection
                raise


class _S3File(_AnsweringFile):
    """Through the client of s3fs."""

    @asynccontextmanager
    async def _ask(self, start: int, stop: int) -> AsyncIterator[_Answer]:
        fs, path = self._place
        bucket, key, version_id = fs.split_path(path)
        options = {"VersionId": version_id} if version_id else {}
        if self._told is not None and self._told[1]:
            options["IfMatch"] = self._told[1]
        try:
            # the asynchronous form of the public call_s3, by the naming of fsspec
            answer = await fs._call_s3(
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **options
            )
        except OSError as error:
            status = _s3_status(error)
            if self._told is not None and status in (412, 416):
                raise changed(self._url, start, self._told, None) from error
            if status != 416:
                raise
            # the first byte cannot be had of an empty object only
            yield _Answer("bytes */0", None, _nothing())
            return
        body = answer["Body"]
        try:
            yield _Answer(answer.get("ContentRange"), answer.get("ETag"), body.iter_chunks(1 << 16))
        finally:
            body.close()


class _AnyFile(RemoteFile):
    """By the calls that all file systems of fsspec have. These tell nothing of what they send but its length."""

    def __init__(self, url: str, options: Mapping[str, Any], fs: Any, path: str) -> None:
        super().__init__(url, options, fs, path)
        # whether a file system of the plain kind may be used by two threads at once, nobody says
        self._async = fs.async_impl
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        self._turn: AbstractContextManager[Any] = nullcontext() if self._async else threading.Lock()

    def begin(self, count: int) -> bytes:
        with self._turn, translated(self._url):
            info = self._info()
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown(self._url))
        size = info.get("size")
        if not isinstance(size, int) or not 0 <= size <= _LARGEST:
            raise UnsupportedError(
                f"nobody tells the size of {shown(self._url)}; fetch the file first, and open that",
                rule="file.range",
                found=size,
            )
        self.size = size
        self._version = _version(info)
        return b""

    def fetch(self, requests: Sequence[Request]) -> None:
        with self._turn, translated(self._url):
            for first in range(0, len(requests), _AT_ONCE):
                self._fetch_some(requests[first : first + _AT_ONCE])
            found = _version(self._info())
        if found != self._version:
            raise changed(self._url, requests[0].start, self._version, found)

    def _fetch_some(self, requests: Sequence[Request]) -> None:
        fs, path = self._place
        answers = fs.cat_ranges(
            [path] * len(requests),
            [request.start for request in requests],
            [request.stop for request in requests],
            on_error="raise",
        )
        for request, data in zip(requests, answers, strict=True):
            if isinstance(data, BaseException):  # older releases return it all the same
                raise data
            if len(data) != request.stop - request.start:
                raise wrong_length(request.start, request.stop - request.start, len(data))
            request.deliver(memoryview(data))

    def _info(self) -> dict[str, Any]:
        fs, path = self._place
        fs.invalidate_cache(fs._parent(path))  # a listing that is kept would tell what the file was
        info: dict[str, Any] = fs.info(path)
        return info


def connect(url: str, options: Mapping[str, Any]) -> RemoteFile:
    """The file at ``url``; nothing is asked of it yet. ``options`` are those of fsspec's file system.

    Raises UnsupportedError where fsspec or the library for this kind of URL is missing, OSError.
    """
    fs, path = _find(url, options)
    # told by what they can do: their classes are to be had only from libraries that may be missing
    kind: type[RemoteFile] = _AnyFile
    if hasattr(fs, "_call_s3") and hasattr(fs, "split_path"):
        kind = _S3File
    elif hasattr(fs, "set_session") and hasattr(fs, "encode_url"):
        kind = _HttpFile
    return kind(url, options, fs, path)


def _find(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    if fsspec is None:
        raise UnsupportedError(
            f"to read {shown(url)} takes fsspec; install hurray_wire[remote]", rule="file.url", found=shown(url)
        )
    with translated(url):
        try:
            fs, path = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as cause:  # a library is missing; there is no such kind of URL
            raise UnsupportedError(f"cannot read {shown(url)}: {cause}", rule="file.url", found=shown(url)) from cause
    return fs, path


def _s3_status(error: OSError) -> int | None:
    response = getattr(error.__cause__, "response", None) or {}
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _version(info: Mapping[str, Any]) -> tuple[int | None, str | None]:
    known = (f"{key} {info[key]}" for key in _VERSION_KEYS if info.get(key) is not None)
    return info.get("size"), next(known, None)
