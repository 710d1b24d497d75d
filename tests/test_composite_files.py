"""Composites in a file (spec/layouts.md): several tensors as one array, or refused by the rule they break."""

import io

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.store import writer as writer_module

FLOAT = np.arange(12, dtype=np.float32).reshape(3, 4)


def head(rule, members, combine=None, shape=(3, 4)):
    return hw.TensorDescriptor(hw.float32, shape, hw.CompositeLayout(rule, members, combine))


def box(values, offset, *, role=None, parent=(3, 4), **options):
    """A member: its descriptor and buffers."""
    element_type = options.pop("element_type", hw.float32)
    descriptor = hw.TensorDescriptor.build(
        element_type,
        values.shape,
        hw.RowMajorLayout(),
        (values.nbytes,),
        shard=hw.Shard(parent, offset),
        composite_member=None if role is None else hw.CompositeMember(role),
        **options,
    )
    return descriptor, [values]


def write(target, *tensors):
    with hw.create(target) as writer:
        for number, (descriptor, buffers) in enumerate(tensors):
            writer.add(f"t{number}", descriptor, buffers)


def written(*tensors):
    out = io.BytesIO()
    write(out, *tensors)
    return out.getvalue()


def test_a_partition_is_put_together():
    data = written(
        (head("partition", 3), []),
        box(FLOAT[:2], (0, 0)),
        box(FLOAT[2:, :1].copy(), (2, 0)),
        box(FLOAT[2:, 1:].copy(), (2, 1)),
    )
    with hw.open(data) as file:
        whole = file["t0"]
        assert isinstance(whole, hw.CompositeTensor)
        assert [member.name for member in whole.members] == ["t1", "t2", "t3"]
        assert np.array_equal(whole.numpy(), FLOAT)
        file.verify()


@pytest.mark.parametrize(("combine", "expected"), [("replace", 100.0), ("add", 105.0)])
def test_an_overlay_is_its_base_with_corrections(combine, expected):
    correction = np.full((1, 1), 100, np.float32)
    data = written(
        (head("overlay", 2, combine), []), box(FLOAT, (0, 0), role="base"), box(correction, (1, 1), role="correction")
    )
    with hw.open(data) as file:
        values = file["t0"].numpy()
        file.verify()
    assert values[1, 1] == expected
    values[1, 1] = 5
    assert np.array_equal(values, FLOAT)


def test_a_quantized_base_counts_with_its_real_values():
    stored = np.full((3, 4), 6, np.int8)
    base = box(stored, (0, 0), role="base", element_type=hw.int8, quantization=hw.PerTensorAffine(0.5, 2))
    correction = box(np.full((1, 2), 0.25, np.float32), (2, 2), role="correction")
    with hw.open(written((head("overlay", 2, "add"), []), base, correction)) as file:
        values = file["t0"].numpy()
        file.verify()
    assert values.tolist() == [[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2.25, 2.25]]


def test_a_group_is_its_members_and_no_array():
    alone = hw.TensorDescriptor.build(hw.uint8, (2,), hw.RowMajorLayout(), (2,))
    inner = head("partition", 2)
    data = written(
        (head("group", 2), []),
        (inner, []),
        box(FLOAT[:1], (0, 0)),
        box(FLOAT[1:], (1, 0)),
        (alone, [b"ab"]),
        (alone, [b"cd"]),
    )
    with hw.open(data) as file:
        group = file["t0"]
        assert [member.name for member in group.members] == ["t1", "t4"]
        assert np.array_equal(group.members[0].numpy(), FLOAT)
        with pytest.raises(hw.UnsupportedError) as caught:
            group.numpy()
        assert caught.value.rule == "layout.dense"
        assert file["t5"].numpy().tolist() == [99, 100]


UNFIT = pytest.mark.parametrize(
    ("tensors", "rule"),
    [
        ([(head("partition", 2), []), box(FLOAT, (0, 0))], "composite.torn"),
        ([(head("partition", 1), []), box(FLOAT[:2], (0, 0))], "composite.coverage"),
        ([(head("partition", 2), []), box(FLOAT, (0, 0)), box(FLOAT[:1], (1, 0))], "composite.overlap"),
        ([(head("partition", 1), []), box(FLOAT, (0, 0), parent=(4, 4))], "composite.parent-shape"),
        ([(head("overlay", 1, "add"), []), box(FLOAT, (0, 0), role="correction")], "composite.base"),
        ([(head("overlay", 1, "add"), []), box(FLOAT[:1], (0, 0), role="base")], "composite.base"),
        ([(head("overlay", 1, "add"), []), box(FLOAT, (0, 0))], "composite.member-section"),
        (
            [(head("partition", 1), []), box(FLOAT.astype(np.float64), (0, 0), element_type=hw.float64)],
            "composite.element-type",
        ),
        ([(head("group", 1), [])] * 9 + [box(FLOAT, (0, 0))], "composite.depth"),
    ],
)


class Uncounted:
    """Stands in for the writer's count of members: whatever comes is fine."""

    open = ()

    def after(self, descriptor):
        return self

    def check_whole(self, what):
        pass


@UNFIT
def test_members_that_do_not_fit_are_refused_by_their_rule(tensors, rule, monkeypatch):
    with monkeypatch.context() as unchecked:
        unchecked.setattr(writer_module, "Members", lambda *_: Uncounted())
        unchecked.setattr(writer_module, "group_members", lambda descriptors: ())
        data = written(*tensors)
    file = hw.open(data)
    for action in (lambda: file["t0"].members, file.verify):
        with pytest.raises(hw.InvalidFileError) as caught:
            action()
        assert caught.value.rule == rule


@UNFIT
def test_members_that_do_not_fit_are_not_written(tensors, rule, tmp_path):
    with pytest.raises(hw.InvalidFileError) as caught:
        write(tmp_path / "cache.hrry", *tensors)
    assert caught.value.rule == rule
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_does_not_fit_may_be_followed_by_one_that_does():
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("t0", head("partition", 2))
        writer.add("t1", *box(FLOAT[:1], (0, 0)))
        for _ in range(2):
            with pytest.raises(hw.InvalidFileError) as caught:
                writer.add("t2", *box(FLOAT[2:], (2, 0)))
            assert caught.value.rule == "composite.coverage"
        writer.add("t2", *box(FLOAT[1:], (1, 0)))
    with hw.open(out.getvalue()) as file:
        file.verify()
        assert np.array_equal(file["t0"].numpy(), FLOAT)


def test_a_member_without_a_composite_is_not_written():
    with hw.create(io.BytesIO()) as writer:
        with pytest.raises(hw.InvalidFileError) as caught:
            writer.add("t", *box(FLOAT, (0, 0), role="base"))
        assert caught.value.rule == "composite.member-section"
