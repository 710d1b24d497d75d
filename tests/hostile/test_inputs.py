"""Arrays as they come: any order, stride, byte order and writability, written by value or refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import hurray_wire as hw

VALUES = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4) - 7.5
DESCRIPTOR = hw.TensorDescriptor(hw.float32, (2, 3, 4), hw.RowMajorLayout(), (hw.BufferHandle(96),))

Array = NDArray[Any]


def padded(array: Array) -> Array:
    wide = np.full([2 * dim for dim in array.shape], 99, array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    view = raw.view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


FORMS: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda array: array,
    "Fortran order": np.asfortranarray,
    "every other element": padded,
    "backwards": lambda array: np.flip(np.flip(array).copy()),
    "transposed": lambda array: np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind in "fiu" else array,
    "read-only": read_only,
    "unaligned": unaligned,
    "a subclass": lambda array: array.view(np.recarray) if False else np.asarray(array).view(np.ndarray),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_dense_array_is_written_by_value(form: str) -> None:
    given = FORMS[form](VALUES)
    assert np.array_equal(given, VALUES)
    assert _written(DESCRIPTOR, given).tobytes() == VALUES.tobytes()


@pytest.mark.parametrize(
    "layout", [hw.RowMajorLayout(), hw.ColMajorLayout(), hw.TiledLayout((1, 3, 2))], ids=lambda x: x.name
)
@pytest.mark.parametrize("form", FORMS)
def test_a_dense_array_is_laid_out_as_its_layout_says(form: str, layout: hw.Layout) -> None:
    descriptor = hw.TensorDescriptor(hw.float32, (2, 3, 4), layout, (hw.BufferHandle(96),))
    assert np.array_equal(_written(descriptor, FORMS[form](VALUES)), VALUES)


def test_a_scalar_and_a_broadcast_array_are_written_by_value() -> None:
    scalar = hw.TensorDescriptor(hw.float32, (), hw.RowMajorLayout(), (hw.BufferHandle(4),))
    assert _written(scalar, np.float32(2.5)) == 2.5
    assert _written(scalar, np.array(2.5, ">f4")) == 2.5
    rows = np.broadcast_to(np.arange(4, dtype=np.float32), (2, 3, 4))
    assert np.array_equal(_written(DESCRIPTOR, rows), rows)
    assert np.array_equal(
        _written(DESCRIPTOR, np.broadcast_to(np.array(1.5, ">f4"), (2, 3, 4))), np.full((2, 3, 4), 1.5)
    )


POOL = (np.arange(6 * 4 * 2 * 8, dtype=np.float32) / 3).reshape(6, 4, 2, 8)
TABLES, LENGTHS = np.array([[5, 0], [2, -1]]), np.array([7, 3])


@pytest.mark.parametrize("options", [{}, {"compact": False, "scrub": False}], ids=["compact", "as it lies"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8])
@pytest.mark.parametrize("form", FORMS)
def test_a_page_pool_is_saved_by_value(form: str, dtype: Any, options: dict[str, Any]) -> None:
    key, value = POOL.astype(dtype), (POOL + 1).astype(dtype)
    out = io.BytesIO()
    given = [(FORMS[form](key), FORMS[form](value))]
    hw.save_snapshot(out, given, seq_lens=LENGTHS, block_tables=TABLES, **options)
    expected = hw.gather_kv(key, value, TABLES, LENGTHS)
    with hw.load_snapshot(out.getvalue()) as snapshot:
        found = snapshot.gather(0)
        snapshot.file.verify()
    for name in ("keys", "values"):
        assert found[name].dtype == np.dtype(dtype)
        assert found[name].tobytes() == np.ascontiguousarray(expected[name][:, :7]).tobytes()


@pytest.mark.parametrize("kind", ["int64", ">i4", "uint8", "list", "strided", "fortran"])
def test_tables_and_lengths_come_in_any_form(kind: str) -> None:
    forms: dict[str, Callable[[Array], Any]] = {
        "list": lambda array: array.tolist(),
        "strided": padded,
        "fortran": np.asfortranarray,
    }
    form = forms.get(kind, lambda array: array.clip(0 if kind == "uint8" else None).astype(kind))
    out = io.BytesIO()
    hw.save_snapshot(out, [(POOL, POOL)], seq_lens=form(LENGTHS), block_tables=form(TABLES))
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert snapshot.seq_lens.tolist() == [7, 3]
        assert snapshot.gather(0)["keys"][0, 4].tobytes() == POOL[0, 0].tobytes()


@pytest.mark.parametrize(
    "element_type", [t for t in vars(hw).values() if isinstance(t, hw.ElementType)], ids=lambda t: t.name
)
def test_every_element_type_comes_back_bit_for_bit(element_type: hw.ElementType) -> None:
    """From raw bytes, and from the array that was read."""
    count = 24  # whole bytes in every width
    size = count * element_type.bits // 8
    raw = bytes((k * 37 + 11) & 0xFF for k in range(size))
    descriptor = hw.TensorDescriptor(element_type, (2, 3, 4), hw.RowMajorLayout(), (hw.BufferHandle(size),))
    once = _tensor(descriptor, raw)
    assert once.buffers[0].tobytes() == raw
    again = _tensor(descriptor, once.numpy())
    assert again.buffers[0].tobytes() == raw


@pytest.mark.parametrize(
    "buffer",
    [
        *(np.zeros((2, 3, 4), dtype) for dtype in ("f8", "i4", "O", "M8[s]", "U1")),
        np.zeros(24, ">f8"), np.zeros((2, 3, 3), np.float32), "text", 96, None, [0.0] * 24,
    ],
    ids=lambda buffer: f"{type(buffer).__name__} {getattr(buffer, 'dtype', '')} {getattr(buffer, 'shape', '')}",
)  # fmt: skip
def test_what_is_not_the_tensors_is_refused(buffer: Any) -> None:
    out = io.BytesIO()
    with hw.create(out) as writer:
        with pytest.raises(hw.BufferSizeError):
            writer.add("t", DESCRIPTOR, [buffer])
        writer.add("t", DESCRIPTOR, [VALUES])  # nothing was written, and the writer goes on
    assert hw.open(out.getvalue())["t"].numpy().tobytes() == VALUES.tobytes()


def _tensor(descriptor: hw.TensorDescriptor, buffer: Any) -> hw.Tensor:
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("t", descriptor, [buffer])
    return hw.open(out.getvalue())["t"]


def _written(descriptor: hw.TensorDescriptor, array: Any) -> Array:
    return _tensor(descriptor, array).numpy()
