"""Reading dumps of arrays: a .safetensors file, an .npz file, or a folder of .npy files; told apart by content.

Safetensors files are judged by the safetensors package, which then has no NumPy type for bfloat16 or float8 in all its
versions and copies every tensor. So the header it has found good is read once more here for the places of the arrays,
and these are mapped: packing a dump reads each byte once, from the file into the snapshot. Files of a folder are mapped
as well; an .npz file is read array by array.
"""

from __future__ import annotations

import json
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

__all__ = ["Dump", "open_dump"]

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")  # the second begins an archive with nothing in it
_HURRAY_MAGIC = b"HRRY"

# Whatever NumPy and zipfile raise on a damaged file; both promise no class of their own.
_BROKEN = (
    ValueError,
    EOFError,
    KeyError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


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
def open_dump(path: str, *, said: str) -> Iterator[Dump]:
    """Open a dump, which errors call ``said``. Mapped arrays stay valid afterwards, even if the file is replaced."""
    if Path(path).is_dir():
        yield _open_folder(Path(path))
        return
    with Path(path).open("rb") as file:
        magic = file.read(4)
    if magic in _ZIP_MAGICS:
        with _open_npz(path, said) as dump:
            yield dump
    elif magic == _HURRAY_MAGIC:
        raise CliError(f"{said}: this is a Hurray file already; hurray-unpack reads it")
    else:
        yield _open_safetensors(path, said)


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

    def load(name: str) -> NDArray[Any]:
        file = folder / f"{name}.npy"
        with _broken(str(file)):
            return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))

    return Dump(str(folder), [file.stem for file in files], load)


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
        yield
    except OSError:
        raise
    except _BROKEN as error:
        raise CliError(f"{what}: cannot be read: {error}") from error
