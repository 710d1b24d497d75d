"""Writing arrays: a .safetensors file, an .npz file, or a folder of .npy files, whole or not at all.

An array is made when it is written and dropped before the next one is made, so the output may be larger than memory.
The safetensors package wants all arrays in memory at once, through an interface that differs from version to version;
its format, a header and the arrays in turn, is written here. How files appear is left to ``store/sink``.

Names of .npy files, in a folder or an archive, become paths on the machine that unpacks them. A name that is a path or
that some file system does not keep apart from another name is refused.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ..store.sink import Sink, open_sink
from .console import CliError, blamed
from .folders import clear_abandoned, working_folder
from .formats import DTYPES, SAFETENSORS_TYPES, as_bits

__all__ = ["OutArray", "Progress", "is_array_target", "write_arrays"]

Progress = Callable[[int, int], None]

_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789\u00b9\u00b2\u00b3"
}
_NOT_IN_FILE_NAMES = frozenset('/\\<>:"|?*')
_FILE_NAME_BYTES = 255 - len(".npy")
_SAFETENSORS_NAMES = {dtype: name for name, dtype in SAFETENSORS_TYPES.items()}


@dataclass(frozen=True, slots=True)
class OutArray:
    """An array to be written: what it will be, and a function that makes it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> OutArray:
        return cls(name, array.shape, array.dtype, lambda: array)


def is_array_target(target: str) -> bool:
    """True if the name of an output tells what it is to be: .npz, .safetensors, or a folder."""
    return target.endswith((".npz", ".safetensors", "/", os.sep)) or Path(target).is_dir()


def write_arrays(
    target: str, arrays: Sequence[OutArray], *, metadata: Mapping[str, str], progress: Progress | None = None
) -> None:
    """Write the arrays to ``target`` in the form that its name tells.

    ``metadata`` goes into a .safetensors file; the others have no place for it. ``progress`` is called with the bytes
    written and the bytes in all. What can be refused is refused before anything is written.
    """
    names = [array.name for array in arrays]
    _check_distinct(names)
    made = _made(arrays, progress)
    with blamed(target):
        if target.endswith(".safetensors") and not Path(target).is_dir():
            _write_safetensors(target, arrays, made, metadata)
            return
        _check_file_names(names)
        if target.endswith(".npz") and not Path(target).is_dir():
            _write_npz(target, made)
        else:
            _write_folder(target, made)


def _made(arrays: Sequence[OutArray], progress: Progress | None) -> Iterator[tuple[str, NDArray[Any]]]:
    total, done = sum(array.nbytes for array in arrays), 0
    for array in arrays:
        yield array.name, array.make()
        done += array.nbytes
        if progress is not None:
            progress(done, total)


def _write_safetensors(
    target: str, arrays: Sequence[OutArray], made: Iterator[tuple[str, NDArray[Any]]], metadata: Mapping[str, str]
) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for array in arrays:
        if array.name == "__metadata__":
            raise CliError(f"no array of a .safetensors file can be called {array.name!r}")
        if array.dtype not in _SAFETENSORS_NAMES:
            raise CliError(f"{array.name} holds {array.dtype}, which .safetensors has no name for; write an .npz file")
        end = at + array.nbytes
        dtype = _SAFETENSORS_NAMES[array.dtype]
        header[array.name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _whole(target) as sink:
        sink.write(len(text).to_bytes(8, "little"))
        sink.write(text)
        for _, values in made:
            sink.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))


def _write_npz(target: str, made: Iterator[tuple[str, NDArray[Any]]]) -> None:
    with _whole(target) as sink, zipfile.ZipFile(cast(BinaryIO, _Forward(sink)), "w") as archive:
        for name, array in _with_dtypes(made):
            # the date of a ZipInfo is fixed, so that equal arrays give equal files
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_folder(target: str, made: Iterator[tuple[str, NDArray[Any]]]) -> None:
    path = Path(os.path.realpath(target))
    if path.is_dir() and any(path.iterdir()):
        raise CliError(f"{target}: the folder is not empty")
    clear_abandoned(path)
    with working_folder(path) as beside:
        for name, array in _with_dtypes(made):
            with (beside / f"{name}.npy").open("xb") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        beside.rename(path)


def _with_dtypes(made: Iterator[tuple[str, NDArray[Any]]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays as NumPy's formats hold them, and at the end the entry that tells the types they have no name for."""
    told: dict[str, str] = {}
    for name, array in made:
        bits, element_type = as_bits(array)
        if element_type is not None:
            told[name] = element_type
        yield name, bits
    if told:
        yield DTYPES, np.array(json.dumps(told))


class _Forward:
    """A sink as the file that zipfile writes to: forward only."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Any) -> int:
        self._sink.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """The sink holds nothing back."""


@contextmanager
def _whole(target: str) -> Iterator[Sink]:
    """A file that appears when the block ends well."""
    sink = open_sink(target)
    try:
        yield sink
    except BaseException:
        sink.abort()
        raise
    sink.commit(durable=True)


def _check_distinct(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CliError(f"two arrays would be called {name!r}")
        if name == DTYPES:
            raise CliError(f"no array can be called {name!r}: the entry of that name tells element types")
        seen.add(name)


def _check_file_names(names: Sequence[str]) -> None:
    """No name leaves its folder, none means a device, and no two are one on a file system that ignores case."""
    seen: dict[str, str] = {}
    for name in names:
        reason = _fault_of_file_name(name)
        if reason is not None:
            raise CliError(f"the array {name!r} cannot be a file of that name: {reason}; write a .safetensors file")
        folded = unicodedata.normalize("NFKC", name).casefold()
        if folded in seen:
            raise CliError(
                f"the arrays {seen[folded]!r} and {name!r} have one name where case does not count; "
                "write a .safetensors file"
            )
        seen[folded] = name


def _fault_of_file_name(name: str) -> str | None:
    if not name.isprintable() or not _NOT_IN_FILE_NAMES.isdisjoint(name):
        return "it has characters that file names do not have everywhere"
    if name[0] in ". " or name[-1] in ". ":
        return "it begins or ends with a dot or space"
    if name.split(".")[0].rstrip().casefold() in _WINDOWS_DEVICES:
        return "Windows takes it for a device"
    if len(name.encode()) > _FILE_NAME_BYTES:
        return "it is too long"
    return None
