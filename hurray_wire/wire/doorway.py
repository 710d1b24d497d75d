"""The one doorway to construct: the only module that parses or builds with a schema.

construct is a fine language for layouts and a poor judge of input, so it sees exactly the bytes of one fixed-size
table, cut out here after the length was checked, and whatever it raises leaves as an error of ours with the rule, the
offset and the cause. Payload never passes through it: tables of many rows are NumPy's, by a dtype made from the same
schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from construct import Array, Bytes, Const, ConstError, Construct, ConstructError, FormatField
from numpy.typing import NDArray

from ..errors import HurrayError, InvalidDescriptorError, TruncatedError

__all__ = ["Cursor", "Field", "Taken", "build", "fields_of", "located", "recording", "row_dtype", "size_of", "table"]


class Field(NamedTuple):
    """One field of a table that was read: where in the table it stands, its size in bytes, and its value."""

    name: str
    offset: int
    size: int
    value: Any


class Taken(NamedTuple):
    """One step of a cursor: the bytes it took, where in the file they stand, and the fields they hold, if any."""

    offset: int
    data: bytes
    what: str
    fields: tuple[Field, ...] = ()


_taken: ContextVar[list[Taken] | None] = ContextVar("taken", default=None)


@contextmanager
def recording() -> Iterator[list[Taken]]:
    """A list that receives every step of every cursor used within, in order, up to the fault if there is one."""
    taken: list[Taken] = []
    token = _taken.set(taken)
    try:
        yield taken
    finally:
        _taken.reset(token)


class Record(dict[str, Any]):
    """The fields of one table by name, as construct's own container gives them: ``record.rank``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Cursor:
    """Walks a buffer from front to back, one table at a time, never past its end.

    ``base`` is where the buffer starts in its file, so that errors tell offsets there; ``area`` is the first word of
    the rule ids it raises ("descriptor", "container", ...); ``error`` is the class of a broken constant. The buffer
    is borrowed; what is taken out is a copy, except by :meth:`view`.
    """

    def __init__(
        self,
        data: memoryview,
        *,
        area: str,
        base: int = 0,
        at: int = 0,
        error: type[HurrayError] = InvalidDescriptorError,
    ) -> None:
        self.data = data
        self.area = area
        self.base = base
        self.at = at
        self.error = error

    @property
    def offset(self) -> int:
        """Where the cursor stands in the file."""
        return self.base + self.at

    @property
    def remaining(self) -> int:
        return len(self.data) - self.at

    def take(self, schema: Construct, what: str) -> Record:
        """The next table, as a construct record."""
        start = self.at
        raw = bytes(self._cut(size_of(schema), what))
        try:
            record = Record(_plain(schema).parse(raw) or schema.parse(raw))
        except ConstError as cause:
            name = str(cause.path).rpartition(" -> ")[2]
            where, size = next((at, size) for field, at, size in fields_of(schema) if field == name)
            found = raw[where : where + size]
            kind = "magic" if name == "magic" else "reserved"
            words = "does not start with its magic" if kind == "magic" else "has reserved bytes that are not zero"
            raise self.error(
                f"{what} {words}: {found.hex(' ')}",
                rule=f"{self.area}.{kind}",
                offset=self.base + start + where,
                found=found,
            ) from cause
        except ConstructError as cause:
            raise self.error(
                f"{what} cannot be read: {cause}", rule=f"{self.area}.malformed", offset=self.base + start
            ) from cause
        if (taken := _taken.get()) is not None:
            fields = tuple(Field(name, at, size, record[name]) for name, at, size in fields_of(schema))
            taken.append(Taken(self.base + start, raw, what, fields))
        return record

    def value(self, schema: Construct, what: str) -> Any:
        """The next table's only field, named ``value``."""
        number = _number(schema)
        if self.remaining < number.size or _taken.get() is not None:
            return self.take(schema, what).value
        value = number.unpack_from(self.data, self.at)[0]
        self.at += number.size
        return value

    def take_bytes(self, size: int, what: str) -> bytes:
        """The next ``size`` bytes, as a copy."""
        return bytes(self.view(size, what))

    def view(self, size: int, what: str) -> memoryview:
        """The next ``size`` bytes, borrowed."""
        start = self.offset
        piece = self._cut(size, what)
        if (taken := _taken.get()) is not None:
            taken.append(Taken(start, bytes(piece), what))
        return piece

    def _cut(self, size: int, what: str) -> memoryview:
        if size > self.remaining:
            raise TruncatedError(
                f"{what} needs {size} bytes, but {self.remaining} are left",
                rule=f"{self.area}.truncated",
                offset=self.offset,
                declared=size,
                found=self.remaining,
            )
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece


def build(schema: Construct, fields: Mapping[str, Any]) -> bytes:
    """The bytes of one table. Constants need no value; a value that does not fit its field is an error."""
    try:
        built: bytes = _plain(schema).build(fields) or schema.build(dict(fields))
    except (ConstructError, KeyError) as cause:
        raise InvalidDescriptorError(f"{dict(fields)} does not fit the wire: {cause}", rule="wire.build") from cause
    return built


class _Plain:
    """A schema of numbers, arrays of numbers and constants as one ``struct`` format, made from the schema itself.

    It gives what construct gives, fifteen times sooner, which decides what opening a file of many tensors costs. It
    answers only where all is well: for anything else it returns None, and construct is asked, and raises.
    """

    def __init__(self, schema: Construct) -> None:
        codes = ["<"]
        self._fields: list[tuple[str, int, int | None, Any]] = []  # name, first value, values of an array, constant
        place = 0
        for field in schema.subcons:
            kind, count, constant = field.subcon, None, None
            if isinstance(kind, Array):
                kind, count = kind.subcon, int(kind.count)
            if isinstance(kind, Const):
                kind, constant = kind.subcon, kind.value
            if isinstance(kind, Bytes):
                codes.append(f"{kind.length}s")
            elif isinstance(kind, FormatField) and (kind.fmtstr[0] == "<" or kind.length == 1):
                codes.append(("" if count is None else str(count)) + kind.fmtstr[1:])
            else:
                raise TypeError(f"field {field.name} is neither a little-endian number nor bytes")
            self._fields.append((field.name, place, count, constant))
            place += 1 if count is None else count
        self.format = struct.Struct("".join(codes))
        if self.format.size != size_of(schema):
            raise TypeError("a table has the size of its fields")

    def parse(self, raw: bytes) -> dict[str, Any] | None:
        values = self.format.unpack(raw)
        record: dict[str, Any] = {}
        for name, place, count, constant in self._fields:
            value = values[place] if count is None else values[place : place + count]
            if constant is not None and value != constant:
                return None
            record[name] = value
        return record

    def build(self, fields: Mapping[str, Any]) -> bytes | None:
        values: list[Any] = []
        try:
            for name, _, count, constant in self._fields:
                if constant is not None:
                    values.append(constant)
                elif count is None:
                    values.append(fields[name])
                else:
                    values.extend(fields[name])
            return self.format.pack(*values)
        except (struct.error, KeyError, OverflowError):
            return None


@cache
def _plain(schema: Construct) -> _Plain:
    return _Plain(schema)


@cache
def _number(schema: Construct) -> struct.Struct:
    """The format of a table whose only field is a number named ``value``."""
    (field,) = schema.subcons
    plain = _plain(schema)
    if field.name != "value" or not isinstance(field.subcon, FormatField):
        raise TypeError("a table of one number has one field, which is a number")
    return plain.format


@cache
def size_of(schema: Construct) -> int:
    """Bytes of one table."""
    size: int = schema.sizeof()
    return size


@cache
def row_dtype(schema: Construct) -> np.dtype[Any]:
    """A NumPy record type with the fields of a schema that holds integers only, for tables of many rows."""
    fields = []
    for field in schema.subcons:
        if not isinstance(field.subcon, FormatField):
            raise TypeError(f"{field.name} of a table row is not a plain number")
        fields.append((field.name, np.dtype(field.subcon.fmtstr.replace("L", "I")).str))
    dtype = np.dtype(fields)
    if dtype.itemsize != size_of(schema):
        raise TypeError("a table row has the size of its fields")
    return dtype


def table(schema: Construct, data: memoryview, starts: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of one schema that start at the given offsets of ``data``, as a structured array (a copy).

    Each row must lie within the data; the caller has checked it while it found the starts.
    """
    dtype = row_dtype(schema)
    raw = np.frombuffer(data, dtype=np.uint8)
    places = starts[:, None] + np.arange(dtype.itemsize, dtype=np.int64)
    rows: NDArray[Any] = raw[places].view(dtype).reshape(len(starts))
    return rows


@contextmanager
def located(offset: int) -> Iterator[None]:
    """Errors raised within, by a model object that cannot know where its bytes stood, are given this offset."""
    try:
        yield
    except HurrayError as error:
        if error.offset is None:
            error.offset = offset
        raise


@cache
def fields_of(schema: Construct) -> tuple[tuple[str, int, int], ...]:
    """Name, offset and size of every field of a fixed-size struct, in order."""
    fields = []
    at = 0
    for field in schema.subcons:
        size = int(field.sizeof())
        fields.append((str(field.name), at, size))
        at += size
    return tuple(fields)
