"""Composites: who is a member of whom, what members must be, and the values that they make together."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_slow import buffer, dense, private

from hurray_wire.arrays.composite import Node, assemble, check_members, check_tree, group_members
from hurray_wire.arrays.sparse import read_sparse
from hurray_wire.errors import BufferSizeError, IncompatibleError, InvalidFileError, LimitError, UnsupportedError
from hurray_wire.limits import Limits
from hurray_wire.model import element_types as et
from hurray_wire.model.descriptor import TensorDescriptor
from hurray_wire.model.element_types import ElementType
from hurray_wire.model.layouts import CompositeLayout, CooLayout, RowMajorLayout
from hurray_wire.model.sections import CompositeMember, Shard


def head(
    rule: str | int,
    count: int,
    shape: Sequence[int] = (2, 3),
    *,
    op: str | None = None,
    element_type: ElementType = et.int16,
    **sections: Any,
) -> TensorDescriptor:
    return TensorDescriptor(element_type, tuple(shape), CompositeLayout(rule, count, op), **sections)


def box(
    offset: Sequence[int],
    shape: Sequence[int],
    parent: Sequence[int] = (2, 3),
    *,
    role: str | None = None,
    element_type: ElementType = et.int16,
) -> TensorDescriptor:
    member = None if role is None else CompositeMember(role)
    shard = Shard(tuple(parent), tuple(offset))
    return dense(element_type, shape, RowMajorLayout(), shard=shard, composite_member=member)


def base(**changes: Any) -> TensorDescriptor:
    return box((0, 0), (2, 3), role="base", **changes)


def correction(offset: Sequence[int], shape: Sequence[int], **changes: Any) -> TensorDescriptor:
    return box(offset, shape, role="correction", **changes)


def of(descriptor: TensorDescriptor, values: Any) -> tuple[TensorDescriptor, np.ndarray]:
    return descriptor, np.array(values).astype(descriptor.element_type.dtype).reshape(descriptor.shape)


PLAIN = dense(et.uint8, (4,), RowMajorLayout())


# ---- who belongs to whom ---------------------------------------------------------------------------------------------


def shape_of(nodes: Sequence[Node]) -> list[Any]:
    return [node.number if not node.members else (node.number, shape_of(node.members)) for node in nodes]


def test_members_follow_their_head_in_write_order() -> None:
    group = [head("group", count) for count in range(4)]
    order = [PLAIN, group[3], PLAIN, group[2], PLAIN, group[0], PLAIN, PLAIN, group[1], group[1], PLAIN]
    roots = group_members(order)
    assert shape_of(roots) == [0, (1, [2, (3, [4, 5]), 6]), 7, (8, [(9, [10])])]
    assert roots[1].descriptor is order[1]
    assert roots[1].members[1].members[0].descriptor is PLAIN
    assert group_members([]) == ()


@pytest.mark.parametrize(
    ("order", "number", "declared", "found"),
    [
        ([head("group", 1)], 0, 1, 0),
        ([PLAIN, head("group", 3), PLAIN, PLAIN], 1, 3, 2),
        ([head("group", 2), PLAIN, head("group", 1)], 2, 1, 0),
        ([head("group", 2), head("group", 1), PLAIN], 0, 2, 1),
        ([head("group", (1 << 20) - 1)], 0, (1 << 20) - 1, 0),
    ],
)
def test_a_composite_that_misses_members_is_refused(
    order: list[TensorDescriptor], number: int, declared: int, found: int
) -> None:
    with pytest.raises(InvalidFileError) as caught:
        group_members(order)
    assert (caught.value.rule, caught.value.declared, caught.value.found) == ("composite.torn", declared, found)
    assert f"tensor {number} " in str(caught.value)


@pytest.mark.parametrize("innermost", [0, 1])
def test_composites_nest_eight_deep_and_no_deeper(innermost: int) -> None:
    eight = [head("group", 1)] * 7 + [head("group", innermost)] + [PLAIN] * innermost
    node = group_members(eight)[0]
    depth = 1
    while node.members and node.members[0].descriptor is not PLAIN:
        node, depth = node.members[0], depth + 1
    assert depth == 8
    with pytest.raises(InvalidFileError) as caught:
        group_members([head("group", 1), *eight])
    assert (caught.value.rule, caught.value.found) == ("composite.depth", 9)


def test_composites_side_by_side_are_not_nested() -> None:
    assert len(group_members([head("group", 1), PLAIN] * 20)) == 20


def test_the_members_of_one_head_are_bounded() -> None:
    limits = Limits(max_members=2)
    assert len(group_members([head("group", 2), PLAIN, PLAIN], limits=limits)[0].members) == 2
    with pytest.raises(LimitError) as caught:
        group_members([head("group", 3), PLAIN, PLAIN, PLAIN], limits=limits)
    assert (caught.value.rule, caught.value.found) == ("limit.members", 3)


def test_a_hundred_thousand_members_are_found_in_one_pass() -> None:
    count = 100_000
    roots = group_members([head("group", count), *[PLAIN] * count])
    assert [node.number for node in roots[0].members] == list(range(1, count + 1))


def test_a_tree_is_checked_to_its_leaves() -> None:
    good = [head("group", 2), PLAIN, head("partition", 2), box((0, 0), (2, 1)), box((0, 1), (2, 2))]
    check_tree(group_members(good))
    with pytest.raises(InvalidFileError) as caught:
        check_tree(group_members([*good[:4], box((0, 1), (2, 1))]))
    assert caught.value.rule == "composite.coverage"
    with pytest.raises(InvalidFileError) as caught:
        check_tree(group_members([PLAIN, base()]))
    assert caught.value.rule == "composite.member-section"
    assert "tensor 1 " in str(caught.value)


# ---- what members must be --------------------------------------------------------------------------------------------

LEFT, RIGHT = box((0, 0), (2, 1)), box((0, 1), (2, 2))
WIDE, WIDE_EXTENSION = private(16)


@pytest.mark.parametrize(
    ("of_head", "members", "rule"),
    [
        (head("partition", 2), [LEFT], "composite.torn"),
        (head("group", 1), [PLAIN, PLAIN], "composite.torn"),
        (head("partition", 2), [LEFT, box((0, 1), (2, 2), element_type=et.uint16)], "composite.element-type"),
        (head("partition", 2), [LEFT, dense(et.int16, (2, 2), RowMajorLayout())], "composite.shard"),
        (head("partition", 2), [LEFT, box((0, 1), (2, 2), (2, 4))], "composite.parent-shape"),
        (head("partition", 2), [LEFT, box((0, 0, 1), (1, 2, 2), (1, 2, 3))], "composite.parent-shape"),
        (head("partition", 2), [LEFT, box((0, 2), (2, 1))], "composite.coverage"),
        (head("partition", 2), [LEFT, box((0, 0), (2, 3))], "composite.overlap"),
        (head("partition", 2, shape=(None, 3)), [LEFT, RIGHT], "composite.parent-shape"),
        (head("partition", 2), [LEFT, box((0, 1), (2, 2), role="correction")], "composite.member-section"),
        (head("group", 1), [base()], "composite.member-section"),
        (head("overlay", 1, op="add"), [box((0, 0), (2, 3))], "composite.member-section"),
        (head("overlay", 1, op="add"), [correction((0, 0), (2, 3))], "composite.base"),
        (head("overlay", 1, op="add"), [box((0, 0), (1, 3), role="base")], "composite.base"),
        (head("overlay", 2, op="add"), [base(), base()], "composite.base"),
        (head("overlay", 2, op="add"), [base(), correction((0, 0), (1, 1), parent=(2, 2))], "composite.parent-shape"),
        (
            head("overlay", 2, op="add"),
            [base(), correction((0, 0), (1, 1), element_type=et.int8)],
            "composite.element-type",
        ),
        (head("overlay", 1, op="add"), [head("partition", 0, (1, 3), shard=Shard((2, 3), (0, 0)))], "composite.base"),
        (
            head("partition", 1, element_type=WIDE, extension_type=WIDE_EXTENSION),
            [box((0, 0), (2, 3), element_type=et.int16)],
            "composite.element-type",
        ),
        (
            head("partition", 1, element_type=WIDE, extension_type=WIDE_EXTENSION),
            [
                dense(
                    WIDE,
                    (2, 3),
                    RowMajorLayout(),
                    shard=Shard((2, 3), (0, 0)),
                    extension_type=replace(WIDE_EXTENSION, is_signed=True),
                )
            ],
            "composite.element-type",
        ),
    ],
)
def test_members_that_break_a_rule_are_refused(
    of_head: TensorDescriptor, members: list[TensorDescriptor], rule: str
) -> None:
    with pytest.raises(InvalidFileError) as caught:
        check_members(of_head, members)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("of_head", "members"),
    [
        (head("partition", 2), [RIGHT, LEFT]),
        (head("partition", 1), [head("group", 7, shard=Shard((2, 3), (0, 0)))]),
        (head("overlay", 1, op="replace"), [base()]),
        (head("overlay", 3, op="add"), [base(), correction((1, 1), (1, 2)), correction((0, 0), (2, 3))]),
        (head("overlay", 1, op="add"), [head("partition", 2, shard=Shard((2, 3), (0, 0)))]),
        (head("group", 3), [PLAIN, LEFT, head("group", 0)]),
        (head("group", 0), []),
        (head("partition", 0, (0, 3)), []),
        (head(0xF1, 2), [PLAIN, base()]),
    ],
)
def test_members_that_keep_the_rules_pass(of_head: TensorDescriptor, members: list[TensorDescriptor]) -> None:
    check_members(of_head, members)


def test_only_a_head_has_members() -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_members(PLAIN, [])
    assert caught.value.rule == "layout.composite"


# ---- values ----------------------------------------------------------------------------------------------------------


def test_a_partition_is_put_together() -> None:
    members = [of(RIGHT, [[2, 3], [5, 6]]), of(LEFT, [[1], [4]])]
    found = assemble(head("partition", 2), members)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int16
    assert found.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("op", "expected"), [("replace", [[9, 9, 3], [9, 8, 7]]), ("add", [[10, 11, 3], [13, 22, 13]])]
)
def test_an_overlay_is_its_base_with_corrections_in_order(op: str, expected: list[Any]) -> None:
    members = [
        of(base(), [[1, 2, 3], [4, 5, 6]]),
        of(correction((0, 0), (2, 2)), [[9, 9], [9, 9]]),
        of(correction((1, 1), (1, 2)), [[8, 7]]),
    ]
    assert np.array(assemble(head("overlay", 3, op=op), members)).tolist() == expected
    assert members[0][1].tolist() == [[1, 2, 3], [4, 5, 6]]


def sparse_member(offset: Sequence[int], shape: Sequence[int], role: str | None, entries: dict[Any, int]) -> Any:
    values = struct.pack(f"<{len(entries)}h", *entries.values())
    indices = struct.pack(f"<{2 * len(entries)}Q", *(i for at in entries for i in at))
    descriptor = TensorDescriptor.build(
        et.int16,
        shape,
        CooLayout(len(entries)),
        [len(values), len(indices)],
        shard=Shard((2, 3), tuple(offset)),
        composite_member=None if role is None else CompositeMember(role),
    )
    return descriptor, read_sparse(descriptor, [buffer(values), buffer(indices)])


@pytest.mark.parametrize(("op", "expected"), [("replace", [[1, 2, 3], [4, 0, 7]]), ("add", [[1, 2, 3], [4, 5, 13]])])
def test_a_sparse_correction_touches_what_it_stores(op: str, expected: list[Any]) -> None:
    members = [
        of(base(), [[1, 2, 3], [4, 5, 6]]),
        sparse_member((1, 1), (1, 2), "correction", {(0, 1): 7, (0, 0): 0}),
        sparse_member((0, 0), (2, 3), "correction", {}),
    ]
    assert np.array(assemble(head("overlay", 3, op=op), members)).tolist() == expected


def test_a_sparse_base_or_part_is_zero_elsewhere() -> None:
    members = [sparse_member((0, 0), (2, 3), "base", {(1, 2): 5}), of(correction((0, 0), (1, 1)), [[4]])]
    assert np.array(assemble(head("overlay", 2, op="add"), members)).tolist() == [[4, 0, 0], [0, 0, 5]]
    parts = [sparse_member((0, 1), (2, 2), None, {(0, 0): 5, (1, 1): 6}), of(LEFT, [[1], [4]])]
    assert np.array(assemble(head("partition", 2), parts)).tolist() == [[1, 5, 0], [4, 0, 6]]


def test_a_group_is_the_tuple_of_its_members() -> None:
    first, second = np.arange(4, dtype=np.uint8), np.ones((2, 1), np.int16)
    found = assemble(head("group", 2), [(PLAIN, first), (LEFT, second)])
    assert isinstance(found, tuple)
    assert found[0] is first
    assert found[1] is second
    assert assemble(head("group", 0), []) == ()


def test_composites_within_composites_are_assembled_from_within() -> None:
    inner = head("partition", 2, (2, 2), shard=Shard((2, 3), (0, 1)))
    halves = [of(box((k, 0), (1, 2), (2, 2)), [[10 * k, 10 * k + 1]]) for k in range(2)]
    outer = head("partition", 2), [of(LEFT, [[7], [8]]), (inner, halves)]
    found = assemble(head("group", 2), [(PLAIN, None), outer])
    assert found[1].tolist() == [[7, 0, 1], [8, 10, 11]]
    overlay = (
        head("overlay", 2, op="add"),
        [
            (head("partition", 2, shard=Shard((2, 3), (0, 0))), [of(LEFT, [[1], [2]]), of(RIGHT, [[3, 4], [5, 6]])]),
            of(correction((1, 0), (1, 1)), [[100]]),
        ],
    )
    assert np.array(assemble(*overlay)).tolist() == [[1, 3, 4], [102, 5, 6]]


def test_64_dimensions_are_assembled_like_two() -> None:
    parent, part = (2,) + (1,) * 63, (1,) * 64
    offsets = [(k,) + (0,) * 63 for k in range(2)]
    parts = [of(box(offset, part, parent), 7 + k) for k, offset in enumerate(offsets)]
    assert np.array(assemble(head("partition", 2, parent), parts)).reshape(-1).tolist() == [7, 8]
    indices = np.zeros(64, "<u8").tobytes()
    descriptor = TensorDescriptor.build(
        et.int16,
        part,
        CooLayout(1),
        [2, len(indices)],
        shard=Shard(parent, offsets[1]),
        composite_member=CompositeMember("correction"),
    )
    stored = read_sparse(descriptor, [buffer(b"\x05\x00"), buffer(indices)])
    overlay = [of(box(offsets[0], parent, parent, role="base"), [1, 2]), (descriptor, stored)]
    assert np.array(assemble(head("overlay", 2, parent, op="add"), overlay)).reshape(-1).tolist() == [1, 7]


def test_a_scalar_can_be_a_composite() -> None:
    parts = [of(box((), (), ()), 5)]
    assert np.array(assemble(head("partition", 1, ()), parts)).tolist() == 5
    overlay = [of(box((), (), (), role="base"), 5), of(box((), (), (), role="correction"), 4)]
    assert np.array(assemble(head("overlay", 2, (), op="add"), overlay)).tolist() == 9


def test_bits_survive_a_partition() -> None:
    patterns = np.array([0x7F800001, 0xFFC12345, 0x80000000], "<u4")
    members = [(box((k,), (1,), (3,), element_type=et.float32), patterns[k : k + 1].view("<f4")) for k in range(3)]
    found = assemble(head("partition", 3, (3,), element_type=et.float32), members)
    assert isinstance(found, np.ndarray)
    assert found.view("<u4").tolist() == patterns.tolist()


@pytest.mark.parametrize("element_type", [t for t in et.ALL if t is not et.float128], ids=lambda t: t.name)
def test_sums_stay_in_the_type_of_the_head(element_type: ElementType) -> None:
    one = box((0,), (2,), (2,), role="base", element_type=element_type)
    two = box((0,), (1,), (2,), role="correction", element_type=element_type)
    found = assemble(head("overlay", 2, (2,), op="add", element_type=element_type), [of(one, [1, 1]), of(two, [1])])
    assert isinstance(found, np.ndarray)
    assert found.dtype == element_type.dtype
    total = {et.bool_: 1, et.int2: -2}.get(element_type, 2)  # or, and wrapped around
    assert found.astype(np.complex128).tolist() == [total, 1]


def test_a_sum_beyond_the_type_makes_no_warning() -> None:
    one = box((0,), (1,), (1,), role="base", element_type=et.float16)
    two = box((0,), (1,), (1,), role="correction", element_type=et.float16)
    composite = head("overlay", 2, (1,), op="add", element_type=et.float16)
    with np.errstate(all="raise"):
        assert np.array(assemble(composite, [of(one, [60000]), of(two, [60000])])).tolist() == [np.inf]


@pytest.mark.parametrize("op", ["add", "replace"])
def test_opaque_types_are_replaced_but_not_added(op: str) -> None:
    one = box((0,), (2,), (2,), role="base", element_type=et.float128)
    two = box((1,), (1,), (2,), role="correction", element_type=et.float128)
    members = [
        (one, np.frombuffer(bytes(range(32)), "V16")),
        (two, np.frombuffer(b"x" * 16, "V16")),
    ]
    composite = head("overlay", 2, (2,), op=op, element_type=et.float128)
    if op == "replace":
        found = assemble(composite, members)
        assert isinstance(found, np.ndarray)
        assert found.tobytes() == bytes(range(16)) + b"x" * 16
        return
    with pytest.raises(UnsupportedError) as caught:
        assemble(composite, members)
    assert caught.value.rule == "composite.add"


def test_a_private_rule_has_no_values() -> None:
    with pytest.raises(UnsupportedError) as caught:
        assemble(head(0xF0, 1), [(PLAIN, np.zeros(4, np.uint8))])
    assert (caught.value.rule, caught.value.found) == ("composite.private", 0xF0)


def test_a_group_is_no_part_of_an_array() -> None:
    group = head("group", 1, shard=Shard((2, 3), (0, 0)))
    with pytest.raises(IncompatibleError) as caught:
        assemble(head("partition", 1), [(group, [(PLAIN, np.zeros(4, np.uint8))])])
    assert caught.value.rule == "composite.group"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (np.zeros((2, 1), np.uint16), "array.dtype"),
        (np.zeros((1, 2), np.int16), "array.shape"),
        (np.zeros((2, 1), ml_dtypes.bfloat16), "array.dtype"),
    ],
)
def test_values_have_the_shape_and_type_of_their_descriptor(values: np.ndarray, rule: str) -> None:
    with pytest.raises(BufferSizeError) as caught:
        assemble(head("partition", 2), [(LEFT, values), of(RIGHT, [[2, 3], [5, 6]])])
    assert caught.value.rule == rule


def test_an_assembled_array_is_bounded() -> None:
    members = [of(RIGHT, [[2, 3], [5, 6]]), of(LEFT, [[1], [4]])]
    assert np.array(assemble(head("partition", 2), members, limits=Limits(max_dense_bytes=12))).size == 6
    with pytest.raises(LimitError) as caught:
        assemble(head("partition", 2), members, limits=Limits(max_dense_bytes=11))
    assert caught.value.rule == "limit.dense-bytes"
