"""Sparse tensors: the named arrays, the dense array they stand for, and every rule that their indices can break."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_slow import bits_of, buffer, packed_bits, plain, private
from hypothesis import given, settings
from hypothesis import strategies as st
from requirements import require

from hurray_wire.arrays import sparse
from hurray_wire.arrays.packing import pack
from hurray_wire.arrays.sparse import Coo, Csc, Csf, Csr, Sparse, read_sparse
from hurray_wire.errors import InvalidFileError, LimitError, UnsupportedError
from hurray_wire.limits import Limits
from hurray_wire.model import element_types as et
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType, buffer_bytes
from hurray_wire.model.layouts import CooLayout, CscLayout, CsfLayout, CsrLayout, Layout, RowMajorLayout

BIG = (1 << 64) - 2  # the greatest index there is


def words(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def make(
    layout: Layout,
    shape: Sequence[int],
    values: bytes,
    *indices: Sequence[int],
    element_type: ElementType = et.uint8,
    **sections: Any,
) -> tuple[TensorDescriptor, list[np.ndarray]]:
    held = [values, *map(words, indices)]
    descriptor = TensorDescriptor.build(element_type, shape, layout, map(len, held), **sections)
    return descriptor, [buffer(b) for b in held]


def read(*arguments: Any, **sections: Any) -> Any:
    return read_sparse(*make(*arguments, **sections))


def refused(rule: str, *arguments: Any) -> InvalidFileError:
    with pytest.raises(InvalidFileError) as caught:
        read(*arguments)
    assert caught.value.rule == rule
    return caught.value


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_coo_by_hand() -> None:
    found = read(CooLayout(3), (2, 3), b"\x05\x06\x07", [1, 2, 0, 0, 1, 0])
    assert isinstance(found, Coo)
    assert found.indices.tolist() == [[1, 2], [0, 0], [1, 0]]
    assert found.indices.dtype == np.uint64
    assert (found.shape, found.nnz, found.is_sorted) == ((2, 3), 3, False)
    assert found.to_dense().tolist() == [[6, 0, 0], [7, 0, 5]]


def test_csr_by_hand() -> None:
    found = read(CsrLayout(4), (3, 4), b"\x0b\x0c\x0d\x0e", [1, 0, 2, 3], [0, 1, 1, 4])
    assert isinstance(found, Csr)
    assert found.col_indices.tolist() == [1, 0, 2, 3]
    assert found.row_ptr.tolist() == [0, 1, 1, 4]
    assert found.to_dense().tolist() == [[0, 11, 0, 0], [0, 0, 0, 0], [12, 0, 13, 14]]


def test_csc_by_hand() -> None:
    found = read(CscLayout(3), (3, 2), b"\x0b\x0c\x0d", [2, 0, 1], [0, 1, 3])
    assert isinstance(found, Csc)
    assert found.row_indices.tolist() == [2, 0, 1]
    assert found.col_ptr.tolist() == [0, 1, 3]
    assert found.to_dense().tolist() == [[0, 12], [0, 13], [11, 0]]


def test_csf_by_hand() -> None:
    # dimension 2 at the root: under 0 the elements (0, 1) and (1, 0), under 3 the element (1, 2) of dimensions 0 and 1
    tree = [0, 2], [0, 3], [0, 2, 3], [0, 1, 1], [0, 1, 2, 3], [1, 0, 2]
    found = read(CsfLayout(3, (2, 0, 1)), (2, 3, 4), b"\x0b\x0c\x0d", *tree)
    assert isinstance(found, Csf)
    assert [pos.tolist() for pos in found.pos] == [[0, 2], [0, 2, 3], [0, 1, 2, 3]]
    assert [crd.tolist() for crd in found.crd] == [[0, 3], [0, 1, 1], [1, 0, 2]]
    assert found.mode_order == (2, 0, 1)
    expected = np.zeros((2, 3, 4), int)
    expected[0, 1, 0], expected[1, 0, 0], expected[1, 2, 3] = 11, 12, 13
    assert found.to_dense().tolist() == expected.tolist()


def test_rows_need_not_be_sorted() -> None:
    found = read(CsrLayout(3), (2, 4), b"\x01\x02\x03", [3, 0, 2], [0, 3, 3])
    assert found.to_dense().tolist() == [[2, 0, 3, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "shape", "indices"),
    [
        (CooLayout(0, is_sorted=True), (2, 0, 3), [[]]),
        (CooLayout(0), (2, 3), [[]]),
        (CsrLayout(0), (0, 3), [[], [0]]),
        (CsrLayout(0), (2, 0), [[], [0, 0, 0]]),
        (CscLayout(0), (3, 0), [[], [0]]),
        (CsfLayout(0, (0, 1, 2)), (2, 3, 1), [[0, 0], [], [0], [], [0], []]),
    ],
)
def test_a_tensor_without_stored_values_is_zero(layout: Layout, shape: tuple[int, ...], indices: list[Any]) -> None:
    found = read(layout, shape, b"", *indices)
    assert found.nnz == 0
    assert found.to_dense().tolist() == np.zeros(shape).tolist()


@pytest.mark.parametrize("layout", [CooLayout(2), CsrLayout(2), CscLayout(2)], ids=lambda layout: layout.name)
def test_buffers_may_hold_more_than_is_used(layout: Layout) -> None:
    indices = [[0, 1, 1, 0, BIG, 5]] if isinstance(layout, CooLayout) else [[1, 0, BIG], [0, 1, 2, 77]]
    assert read(layout, (2, 2), b"\x05\x06\x63", *indices).to_dense().tolist() == (
        [[0, 6], [5, 0]] if isinstance(layout, CscLayout) else [[0, 5], [6, 0]]
    )


def test_arrays_are_views_of_the_buffers() -> None:
    descriptor, buffers = make(CsrLayout(1), (1, 2), b"\x00\x00\x80\x3f", [1], [0, 1], element_type=et.float32)
    found = read_sparse(descriptor, buffers)
    assert isinstance(found, Csr)
    for array, held in zip((found.values, found.col_indices, found.row_ptr), buffers, strict=True):
        assert np.shares_memory(array, held)
        assert not array.flags.writeable


@pytest.mark.parametrize("element_type", [*et.ALL, private(2)[0], private(24)[0]], ids=lambda t: t.name)
def test_values_of_every_type_keep_their_bits(element_type: ElementType) -> None:
    raw = np.random.default_rng(5).integers(0, 256, buffer_bytes(element_type, 5), np.uint8).tobytes()
    extension = private(element_type.bits)[1] if element_type.is_private else None
    found = read(
        CooLayout(5), (9,), raw, [8, 1, 0, 4, 5], element_type=element_type, extension_type=extension
    ).to_dense()
    stored = [packed_bits(raw, element_type.bits, i) for i in range(5)]
    assert bits_of(found, element_type.bits) == [
        stored[i] if i is not None else 0 for i in (2, 1, *[None] * 2, 3, 4, *[None] * 2, 0)
    ]


# ---- against the plain decoder ---------------------------------------------------------------------------------------


@st.composite
def entries(draw: st.DrawFn, rank: st.SearchStrategy[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    shape = tuple(draw(st.integers(1, 4)) for _ in range(draw(rank)))
    at = st.tuples(*[st.integers(0, dim - 1) for dim in shape])
    return shape, draw(st.lists(at, max_size=12, unique=True))


def tree_of(entries: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[list[int]]:
    """pos and crd of each level, for entries that ascend in this order of their dimensions."""
    paths = [tuple(at[mode] for mode in order) for at in entries]
    buffers = []
    parents: list[tuple[int, ...]] = [()]
    for level in range(len(order)):
        nodes = sorted({path[: level + 1] for path in paths})
        crd = [node[-1] for node in nodes]
        pos = [sum(node[:-1] < parent for node in nodes) for parent in parents] + [len(nodes)]
        buffers += [pos, crd]
        parents = nodes
    return buffers


def against_plain(descriptor: TensorDescriptor, buffers: list[np.ndarray]) -> None:
    expected = plain.sparse_elements(plain.decode_descriptor(descriptor.encode()), [b.tobytes() for b in buffers])
    assert read_sparse(descriptor, buffers).to_dense().reshape(-1).tolist() == expected


@given(entries(st.integers(1, 4)), st.booleans())
@settings(deadline=None)
def test_coo_stands_for_what_the_plain_decoder_says(case: Any, is_sorted: bool) -> None:
    shape, found = case
    found = sorted(found) if is_sorted else found
    flat = [i for at in found for i in at]
    against_plain(*make(CooLayout(len(found), is_sorted), shape, bytes(range(1, len(found) + 1)), flat))


@given(entries(st.just(2)), st.booleans())
@settings(deadline=None)
def test_csr_and_csc_stand_for_what_the_plain_decoder_says(case: Any, by_rows: bool) -> None:
    shape, found = case
    axis = 0 if by_rows else 1
    found.sort(key=lambda at: (at[axis], at))
    pointers = [sum(at[axis] < i for at in found) for i in range(shape[axis] + 1)]
    layout = CsrLayout(len(found)) if by_rows else CscLayout(len(found))
    minor = [at[1 - axis] for at in found]
    against_plain(*make(layout, shape, bytes(range(1, len(found) + 1)), minor, pointers))


@given(entries(st.integers(3, 5)), st.data())
@settings(deadline=None)
def test_csf_stands_for_what_the_plain_decoder_says(case: Any, data: st.DataObject) -> None:
    shape, found = case
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    values = bytes(range(1, len(found) + 1))
    against_plain(*make(CsfLayout(len(found), order), shape, values, *tree_of(found, order)))


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [3, 1 << 31, 1 << 32, 1 << 63, BIG])
def test_coordinates_lie_within_the_shape(index: int) -> None:
    error = refused("sparse.bounds", CooLayout(2), (4, 3), b"ab", [0, 0, 1, index])
    assert (error.declared, error.found) == (3, index)
    assert "indices[1, 1]" in str(error)
    error = refused("sparse.bounds", CsrLayout(2), (2, 3), b"ab", [1, index], [0, 1, 2])
    assert (error.declared, error.found) == (3, index)
    assert "col_indices[1]" in str(error)
    error = refused("sparse.bounds", CscLayout(2), (3, 2), b"ab", [1, index], [0, 1, 2])
    assert "row_indices[1]" in str(error)
    tree = [0, 1], [0], [0, 1], [index], [0, 1], [0]
    error = refused("sparse.bounds", CsfLayout(1, (0, 2, 1)), (9, 9, 3), b"a", *tree)
    assert "crd_1[0]" in str(error)


def test_nothing_lies_within_an_empty_dimension() -> None:
    refused("sparse.bounds", CooLayout(1), (2, 0), b"a", [0, 0])


def test_a_shape_beyond_63_bits_has_bounds_too() -> None:
    shape = (BIG, BIG)
    found = read(CooLayout(2), shape, b"ab", [BIG - 1, 0, 0, BIG - 1])
    assert found.indices.tolist() == [[BIG - 1, 0], [0, BIG - 1]]
    refused("sparse.bounds", CooLayout(2), shape, b"ab", [BIG - 1, 0, 0, BIG])


@pytest.mark.parametrize(
    "flat", [[1, 0, 0, 2], [0, 2, 0, 1], [0, 0, 1, 1, 1, 0], [BIG - 1, 0, 1, 0]], ids=["first", "last", "later", "big"]
)
def test_coordinates_said_to_be_sorted_ascend(flat: list[int]) -> None:
    shape, count = (BIG, 3), len(flat) // 2
    refused("sparse.order", CooLayout(count, is_sorted=True), shape, bytes(count), flat)
    assert read(CooLayout(count), shape, bytes(count), flat).nnz == count


@pytest.mark.parametrize("shape", [(4, 4), (BIG, BIG)], ids=["small", "big"])
@pytest.mark.parametrize(("is_sorted", "flat"), [(True, [0, 1, 2, 3, 2, 3]), (False, [2, 3, 0, 1, 2, 3])])
def test_no_coordinate_is_stored_twice(shape: tuple[int, int], is_sorted: bool, flat: list[int]) -> None:
    error = refused("sparse.duplicate", CooLayout(3, is_sorted), shape, b"abc", flat)
    assert "[2, 3]" in str(error)
    assert (error.declared, error.found) == ((1, 2) if is_sorted else (0, 2))


def test_a_repeat_is_found_among_coordinates_that_look_alike_in_64_bits() -> None:
    # row * BIG + column, the place in row-major order, is the same modulo 2**64
    assert (1 * BIG + 2) % (1 << 64) == 0
    assert refused("sparse.duplicate", CooLayout(3), (BIG, BIG), b"abc", [0, 0, 1, 2, 0, 0]).found == 2


@pytest.mark.parametrize("columns", [[0, 1, 1], [1, 0, 1]], ids=["neighbours", "apart"])
def test_no_column_comes_twice_in_a_row(columns: list[int]) -> None:
    error = refused("sparse.duplicate", CsrLayout(4), (2, 3), b"abcd", [0, *columns], [0, 1, 4])
    assert "[1, 1]" in str(error)
    assert read(CsrLayout(4), (4, 3), b"abcd", [0, *columns], [0, 1, 2, 3, 4]).nnz == 4


@pytest.mark.parametrize(
    ("pointers", "found"),
    [
        ([1, 1, 2], 1),
        ([0, 2, 1], 1),
        ([0, 1, 1], 1),
        ([0, 1, 3], 3),
        ([0, BIG, 2], 2),
        ([0, 1, 1 << 63], 1 << 63),
    ],
    ids=["start", "falls", "short", "long", "huge", "wraps"],
)
def test_pointers_start_at_0_never_fall_and_end_at_nnz(pointers: list[int], found: int) -> None:
    for layout in (CsrLayout(2), CscLayout(2)):
        assert refused("sparse.pointer", layout, (2, 2), b"ab", [0, 1], pointers).found == found


TREE: list[list[int]] = [[0, 2], [0, 3], [0, 2, 3], [0, 1, 1], [0, 1, 2, 3], [1, 0, 2]]


@pytest.mark.parametrize(
    ("level", "replacement", "rule", "words_of_error"),
    [
        (0, [1, 2], "sparse.pointer", "pos_0 starts"),
        (0, [0, 1], "sparse.pointer", "pos_0 ends"),
        (0, [0, 1, 2], "sparse.level", "pos_0 has 3"),
        (1, [3, 0], "sparse.order", "crd_0[1]"),
        (1, [3, 3], "sparse.duplicate", "crd_0[1]"),
        (1, [0, 3, 3], "sparse.pointer", "pos_0 ends"),
        (2, [0, 3], "sparse.level", "pos_1 has 2"),
        (2, [0, 4, 3], "sparse.pointer", "pos_1 falls"),
        (3, [1, 0, 1], "sparse.order", "crd_1[1] is 0 after 1 in fiber 0"),
        (3, [0, 0, 1], "sparse.duplicate", "crd_1[1]"),
        (4, [0, 1, 2], "sparse.level", "pos_2 has 3"),
        (4, [0, 1, 2, 2], "sparse.pointer", "pos_2 ends"),
        (5, [1, 0, 3], "sparse.bounds", "crd_2[2]"),
        (5, [1, 0, 2, 2], "sparse.pointer", "pos_2 ends"),
    ],
)
def test_a_tree_is_consistent_from_level_to_level(
    level: int, replacement: list[int], rule: str, words_of_error: str
) -> None:
    tree = [*TREE[:level], replacement, *TREE[level + 1 :]]
    assert words_of_error in str(refused(rule, CsfLayout(3, (2, 0, 1)), (2, 3, 4), b"abc", *tree))


def test_a_tree_has_a_leaf_for_every_value() -> None:
    tree = [*TREE[:4], [0, 1, 2, 3], [1, 0, 2]]
    assert "crd_2 has 3 entries, not 2" in str(
        refused("sparse.level", CsfLayout(2, (2, 0, 1)), (2, 3, 4), b"ab", *tree)
    )


def test_a_large_tensor_is_checked_by_arrays() -> None:
    nnz = 300_000
    flat = np.random.default_rng(0).permutation(nnz).astype("<u8")
    indices = np.stack([flat // 1000, flat % 1000], axis=1)
    descriptor = TensorDescriptor.build(et.uint8, (300, 1000), CooLayout(nnz), [nnz, nnz * 16])
    values = buffer(np.ones(nnz, np.uint8).tobytes())
    assert read_sparse(descriptor, [values, indices.reshape(-1).view(np.uint8)]).to_dense().all()
    indices[-1] = indices[1234]
    with pytest.raises(InvalidFileError) as caught:
        read_sparse(descriptor, [values, indices.reshape(-1).view(np.uint8)])
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("sparse.duplicate", 1234, nnz - 1)


def test_other_layouts_and_dynamic_shapes_are_refused() -> None:
    for descriptor, rule in (
        (TensorDescriptor.build(et.uint8, (1,), RowMajorLayout(), [1]), "layout.sparse"),
        (TensorDescriptor.build(et.uint8, (None,), CooLayout(1), [1, 8]), "descriptor.dynamic"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            read_sparse(descriptor, [buffer(bytes(handle.byte_size)) for handle in descriptor.buffers])
        assert caught.value.rule == rule


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_a_dense_array_is_bounded() -> None:
    found = read(CooLayout(1), (1 << 20, 1 << 20), b"a", [5, 6])
    with pytest.raises(LimitError) as caught:
        found.to_dense()
    assert (caught.value.rule, caught.value.found) == ("limit.dense-bytes", 1 << 40)
    with pytest.raises(LimitError) as caught:
        read(CooLayout(1), (1 << 60, 1 << 60), b"a", [5, 6]).to_dense()
    assert caught.value.rule == "limit.addressable"


def test_unpacked_values_are_bounded() -> None:
    descriptor, buffers = make(
        CooLayout(9), (9,), pack(np.ones(9, np.bool_), et.bool_).tobytes(), range(9), element_type=et.bool_
    )
    with pytest.raises(LimitError) as caught:
        read_sparse(descriptor, buffers, limits=Limits(max_dense_bytes=8))
    assert caught.value.rule == "limit.dense-bytes"
    assert read_sparse(descriptor, buffers, limits=Limits(max_dense_bytes=9)).to_dense().all()


# ---- SciPy -----------------------------------------------------------------------------------------------------------

FORMS: list[Any] = [
    pytest.param(lambda: read(CooLayout(3), (2, 3), b"\x05\x06\x07", [1, 2, 0, 0, 1, 0]), "coo", id="coo"),
    pytest.param(lambda: read(CsrLayout(3), (2, 4), b"\x01\x02\x03", [3, 0, 2], [0, 3, 3]), "csr", id="csr"),
    pytest.param(lambda: read(CscLayout(3), (3, 2), b"\x0b\x0c\x0d", [2, 0, 1], [0, 1, 3]), "csc", id="csc"),
]


@pytest.mark.parametrize(("make_one", "form"), FORMS)
def test_scipy_holds_the_same(make_one: Callable[[], Sparse], form: str) -> None:
    require(find_spec("scipy"), "SciPy is not installed")
    found = make_one()
    theirs = found.to_scipy()
    assert theirs.format == form
    assert theirs.shape == found.shape
    assert theirs.toarray().tolist() == found.to_dense().tolist()
    theirs.data[:] = 1  # a copy: the buffers are read-only
    theirs.sum_duplicates()
    assert theirs.sum() == 3


@pytest.mark.parametrize(
    ("layout", "shape", "indices", "element_type"),
    [
        (CsfLayout(1, (0, 1, 2)), (1, 1, 1), [[0, 1], [0]] * 3, et.uint8),
        (CooLayout(1), (2,), [[0]], et.uint8),
        (CooLayout(1), (2, BIG), [[0, 0]], et.uint8),
        (CsrLayout(1), (1, 2), [[0], [0, 1]], et.int4),
    ],
)
def test_what_scipy_has_no_form_for_is_refused(
    layout: Layout, shape: tuple[int, ...], indices: list[Any], element_type: ElementType
) -> None:
    require(find_spec("scipy"), "SciPy is not installed")
    values = bytes(buffer_bytes(element_type, 1))
    with pytest.raises(UnsupportedError) as caught:
        read(layout, shape, values, *indices, element_type=element_type).to_scipy()
    assert caught.value.rule == "sparse.scipy"


# those that SciPy itself names when it is given another
SCIPY_TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SCIPY_TYPES += ["float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("element_type", et.ALL, ids=lambda t: t.name)
def test_scipy_takes_the_types_that_it_computes_with(element_type: ElementType) -> None:
    require(find_spec("scipy"), "SciPy is not installed")
    found = read(CscLayout(1), (2, 1), bytes(buffer_bytes(element_type, 1)), [1], [0, 1], element_type=element_type)
    if element_type.name in SCIPY_TYPES:
        assert found.to_scipy().dtype == element_type.dtype
        return
    with pytest.raises(UnsupportedError) as caught:
        found.to_scipy()
    assert caught.value.rule == "sparse.scipy"


def test_without_scipy_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(sparse.importlib, "import_module", missing)
    with pytest.raises(ImportError, match="not installed: pip install scipy"):
        read(CsrLayout(1), (1, 2), b"a", [0], [0, 1]).to_scipy()


def test_a_value_of_int4_is_not_its_byte() -> None:
    found = read(CooLayout(2), (3,), b"\xf7", [2, 0], element_type=et.int4).to_dense()
    assert found.dtype == ml_dtypes.int4
    assert found.astype(int).tolist() == [-1, 0, 7]
