"""Reading dumps of arrays: a .safetensors file, an .npz file, or a folder of .npy files; told apart by content.

Safetensors files are judged by the safetensors package, which then has no NumPy type for bfloat16 or float8 in all its
versions and copies every tensor. So the header it has found good is read once more here for the places of the arrays,
and these are mapped: packing a dump reads each byte once, from the file into the snapshot. Files of a folder are mapped
as well; an .npz file is read array by array.
"""

from __future__ import annotations

import json
import tempfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from .console import CliError
from .formats import DTYPES, ELEMENT_TYPES, SAFETENSORS_TYPES
from .inputs import ZIP_MAGICS, Input
from .spooling import copy_bounded

__all__ = ["Dump", "open_dump"]

_HEADER_MOST = 100_000_000  # the safetensors package's own bound on the length of a header

# Whatever NumPy and zipfile raise on a damaged file; both promise no class of their own. NumPy takes the header of a
# .npy file for Python, so that all kinds of errors of syntax are among them.
_BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    EOFError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Dump(Mapping[str, NDArray[Any]]):
    """The arrays of a dump by name, in the order of the file. Each is read or mapped when it is asked for."""

    def __init__(
        self,
        path: str,
        names: list[str],
        load: Callable[[str], NDArray[Any]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.metadata = dict(metadata or {})
        self._load = load
        self._names = dict.fromkeys(name for name in names if name != DTYPES)
        self._dtypes = _declared_dtypes(path, load(DTYPES)) if DTYPES in names else {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._load(name)
        dtype = self._dtypes.get(name)
        if dtype is None or array.dtype == dtype:
            return array
        bits = array.dtype
        if bits.kind not in "uV" or bits.itemsize != dtype.itemsize or not bits.isnative:
            raise CliError(f"{self.path}: {name} holds {bits}, not the bits of {dtype} that {DTYPES!r} tells")
        return array.view(dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def open_dump(source: Input) -> Iterator[Dump]:
    """Open a dump. Mapped arrays stay valid afterwards, even if the file is replaced.

    What comes through a pipe goes to a temporary file, since arrays are read in any order.
    """
    if not source.head:
        yield _open_folder(Path(source.file))
        return
    _check_head(source.head, source.said)
    with _regular(source) as path:
        if source.head.startswith(ZIP_MAGICS):
            with _open_npz(path, source.said) as dump:
                yield dump
        else:
            yield _open_safetensors(path, source.said)


@contextmanager
def _regular(source: Input) -> Iterator[str]:
    """The path of a regular file with these bytes."""
    if source.pipe is None:
        yield source.file
        return
    with tempfile.NamedTemporaryFile(prefix="hurray-pack-") as file:
        copy_bounded(source.head, source.pipe, file, source.said)
        file.flush()
        yield file.name


def _check_head(head: bytes, said: str) -> None:
    """Refuse what starts with these bytes if it can be no dump: the rest of it need not be read."""
    header = int.from_bytes(head[:8], "little")
    if not head.startswith(ZIP_MAGICS) and (header > _HEADER_MOST or head[8:] not in (b"", b"{")):
        raise CliError(
            f"{said}: not a .safetensors file, an .npz file or a folder of .npy files: it starts with {head.hex(' ')}"
        )


def _open_safetensors(path: str, said: str) -> Dump:
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
    except SafetensorError as error:
        raise CliError(f"{said}: not a .safetensors file, an .npz file or a folder of .npy files: {error}") from error
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:start].tobytes())
    header.pop("__metadata__", None)

    def load(name: str) -> NDArray[Any]:
        entry = header[name]
        if entry["dtype"] not in SAFETENSORS_TYPES:
            raise CliError(f"{said}: {name} has the type {entry['dtype']}, which NumPy cannot hold")
        first, last = entry["data_offsets"]
        dtype = SAFETENSORS_TYPES[entry["dtype"]]
        return raw[start + first : start + last].view(dtype).reshape(entry["shape"])

    order = sorted(header, key=lambda name: header[name]["data_offsets"])
    return Dump(said, order, load, metadata)


@contextmanager
def _open_npz(path: str, said: str) -> Iterator[Dump]:
    with _broken(said), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.namelist() if member.endswith(".npy")]
    names = [member.removesuffix(".npy") for member in members]
    if len(set(names)) != len(names):
        raise CliError(f"{said}: two arrays have the same name")
    with np.load(path, allow_pickle=False) as file:

        def load(name: str) -> NDArray[Any]:
            with _broken(f"{said}: {name}"):
                return np.asarray(file[name])

        yield Dump(said, names, load)


def _open_folder(folder: Path) -> Dump:
    files = sorted(file for file in folder.iterdir() if file.suffix == ".npy")
    for file in files:
        if not file.is_file():  # reading a pipe would wait for somebody to write into it
            raise CliError(f"{file}: not a regular file, so not an array")

    def load(name: str) -> NDArray[Any]:
        file = folder / f"{name}.npy"
        with _broken(str(file)):
            _check_header(file)
            return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))

    return Dump(str(folder), [file.stem for file in files], load)


def _check_header(path: Path) -> None:
    """Refuse elements of no bytes and negative dimensions: in a file that it maps, NumPy divides by the one."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADER_READERS:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is not for arrays of numbers")
        shape, _, dtype = _HEADER_READERS[version](file)
    if not dtype.itemsize or any(size < 0 for size in shape):
        raise ValueError(f"there is no array of shape {list(shape)} and {dtype}")


def _declared_dtypes(path: str, entry: NDArray[Any]) -> dict[str, np.dtype[Any]]:
    try:
        declared = json.loads(str(entry))
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path}: the entry {DTYPES!r} is not JSON: {error}") from error
    if not isinstance(declared, dict):
        raise CliError(f"{path}: the entry {DTYPES!r} is not a JSON object")
    unknown = [word for word in declared.values() if not isinstance(word, str) or word not in ELEMENT_TYPES]
    if unknown:
        raise CliError(f"{path}: the entry {DTYPES!r} tells an element type {unknown[0]!r}, which there is not")
    return {name: ELEMENT_TYPES[word] for name, word in declared.items()}


@contextmanager
def _broken(what: str) -> Iterator[None]:
    """What NumPy says of a damaged file, in one line that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of syntax, and of files that Python 2 has written
            yield
    except OSError:
        raise
    except _BROKEN as error:
        raise CliError(f"{what}: cannot be read: {error}") from error
