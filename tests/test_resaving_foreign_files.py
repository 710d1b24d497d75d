"""Writing again what other writers have made: nothing of it is lost, changed or invented, and what cannot stay is said.

What a snapshot of ours becomes is told in ``test_resaving.py``.
"""

import io
import struct

import numpy as np
import pytest

import hurray_wire as hw

VECTOR = hw.TensorDescriptor.build(hw.uint8, (3,), hw.RowMajorLayout(), (3,))


def group(members):
    return hw.TensorDescriptor(hw.uint8, (), hw.CompositeLayout("group", members)), []


def paged(layer, role="key", content=b"abcd"):
    """Four tokens in one page."""
    layout = hw.BlockPagedLayout(4, 1, 0, 1, kv_role=role, layer_index=layer)
    descriptor = hw.TensorDescriptor.build(hw.uint8, (4, 1, 1), layout, (4, 4, 8))
    return descriptor, [content, struct.pack("<I", 0), struct.pack("<2I", 0, 1)]


def written(metadata=None, **tensors):
    out = io.BytesIO()
    with hw.create(out, metadata=metadata, checksums=False) as writer:
        for name, (descriptor, buffers) in tensors.items():
            writer.add(name.replace("_scale", ".scale"), descriptor, buffers)
    return out.getvalue()


def again(data, *, given=None, **options):
    out = io.BytesIO()
    with hw.load_snapshot(data, seq_lens=given) as snapshot:
        snapshot.save(out, checksums=False, **options)
    return hw.open(out.getvalue())


def refused(data, error=hw.IncompatibleError, *, given=None, **options):
    """The error that saving and sending raise, both before the first byte."""
    caught = []
    for way in ("save", "send"):
        out = io.BytesIO()
        with hw.load_snapshot(data, seq_lens=given) as snapshot, pytest.raises(error) as info:
            getattr(snapshot, way)(out, **options)
        assert out.getvalue() == b""
        caught.append(info.value)
    assert str(caught[0]) == str(caught[1])
    return caught[0]


# Composites


def test_a_group_that_would_lose_a_member_is_refused_by_its_name():
    data = written(heads=group(2), k0=paged(0), k1=paged(1), other=(VECTOR, [b"xyz"]))
    error = refused(data, layers=[0])
    assert (error.rule, error.found) == ("composite.torn", "k1")
    assert "the composite 'heads' would lose its member 'k1'" in str(error)


def test_a_group_within_a_group_loses_no_member_either():
    data = written(outer=group(2), first=(VECTOR, [b"xyz"]), inner=group(1), k0=paged(0), k1=paged(1))
    assert "'inner' would lose its member 'k0'" in str(refused(data, layers=[1]))
    with again(data, layers=[0]) as file:
        assert file.names == ("seq_lens", "outer", "first", "inner", "k0")
        assert [member.name for member in file["outer"].members] == ["first", "inner"]


def test_a_scale_that_is_a_member_is_not_left_out():
    scale = hw.TensorDescriptor.build(hw.float32, (), hw.RowMajorLayout(), (4,)), [struct.pack("<f", 2)]
    data = written(k0=paged(0), scales=group(1), k0_scale=scale, k1=paged(1))
    assert "'scales' would lose its member 'k0.scale'" in str(refused(data, layers=[1]))


def test_a_head_that_has_the_name_of_a_scale_keeps_its_members():
    with again(written(k0=paged(0), k0_scale=group(1), x=(VECTOR, [b"xyz"]), k1=paged(1)), layers=[1]) as file:
        assert file.names == ("seq_lens", "k0.scale", "x", "k1")
        assert [member.name for member in file["k0.scale"].members] == ["x"]


def test_a_whole_snapshot_keeps_its_groups_as_they_are():
    data = written(heads=group(2), k0=paged(0), k1=paged(1), other=(VECTOR, [b"xyz"]))
    for options in ({}, {"layers": [1, 0]}, {"seqs": [0]}):
        with again(data, **options) as file:
            assert file.names == ("seq_lens", "heads", "k0", "k1", "other")
            assert [member.name for member in file["heads"].members] == ["k0", "k1"]
            assert file["other"].numpy().tobytes() == b"xyz"


def test_lengths_within_a_group_stay_there():
    lengths = hw.TensorDescriptor.build(hw.uint64, (1,), hw.RowMajorLayout(), (8,)), [struct.pack("<Q", 4)]
    with again(written(heads=group(2), k0=paged(0), seq_lens=lengths)) as file:
        assert file.names == ("heads", "k0", "seq_lens")
        assert [member.name for member in file["heads"].members] == ["k0", "seq_lens"]
        assert (file["seq_lens"].dtype, file["seq_lens"].numpy().tolist()) == (np.uint64, [4])


def test_lengths_that_are_part_of_an_array_stay_or_are_refused():
    """The lengths are a box of a larger array, which other lengths would not be."""
    sections = {"shard": hw.Shard(parent_shape=(1,), shard_offset=(0,))}
    lengths = hw.TensorDescriptor.build(hw.uint32, (1,), hw.RowMajorLayout(), (4,), **sections)
    head = hw.TensorDescriptor(hw.uint32, (1,), hw.CompositeLayout("partition", 1))
    data = written(whole=(head, []), seq_lens=(lengths, [struct.pack("<I", 4)]), k0=paged(0))
    with again(data) as file:
        assert file["whole"].numpy().tolist() == [4]
    assert refused(data, hw.InvalidFileError, seqs=[]).rule == "composite.shard"


# Names that mean something


def test_a_cache_with_the_name_of_the_lengths_is_not_replaced_by_them():
    data = written(seq_lens=paged(0), v0=paged(0, "value"))
    error = refused(data, given=[4])
    assert error.rule == "snapshot.seq-lens-type"
    assert "'seq_lens' is uint8 [4, 1, 1]" in str(error)


def test_a_vector_with_the_name_of_the_lengths_that_is_none_is_not_replaced():
    assert refused(written(seq_lens=(VECTOR, [b"xyz"]), k0=paged(0)), given=[4]).rule == "snapshot.seq-lens-type"


def test_a_cache_with_the_name_of_a_scale_is_no_scale():
    data = written(a=paged(0), a_scale=paged(1, content=b"efgh"))
    with hw.open(data) as file:
        assert file["a"].companion_scale is None
        assert file["a"].gather(dequantize=True).values.reshape(-1).tolist() == [97, 98, 99, 100]
    with again(data, layers=[1]) as file:
        assert file.names == ("seq_lens", "a.scale")
        assert bytes(file["a.scale"].buffers[0]) == b"efgh"
    with again(data, layers=[0]) as file:
        assert file.names == ("seq_lens", "a")


def test_layers_are_sent_in_the_order_asked_for_whatever_their_names():
    data = written(a=paged(0), b=paged(1), a_scale=paged(2))
    for layers, names in (([0, 1, 2], ["a", "b", "a.scale"]), ([2, 0], ["a.scale", "a"])):
        out = io.BytesIO()
        with hw.load_snapshot(data) as snapshot:
            snapshot.send(out, layers=layers)
        received = hw.receive_snapshot(io.BytesIO(out.getvalue()))
        assert list(received.file.names) == ["seq_lens", *names]


# Metadata


@pytest.mark.parametrize(
    "told",
    [
        {"tp.rank": 1},
        {"tp.rank": 3, "tp.size": 2},
        {"tp.size": 2.0, "tp.rank": 0},
        {"pp.size": True},
        {"engine": ["vllm", "0.6"]},
        {"model.id": b"x"},
        {"first_token": -1},
        {"source.layout": 7},
        {"large": (1 << 64) - 1, "numbers": [1 << 63, 0], "floats": [0.5, -0.0], "flags": [True, False]},
    ],
    ids=str,
)
def test_what_another_writer_has_said_stays_and_nothing_is_added(told):
    ours = {"hurray_wire.snapshot": 1, "producer": f"hurray_wire {hw.__version__}"}
    with again(written(told, k0=paged(0))) as file:
        assert repr(file.metadata) == repr(told | ours)
    out = io.BytesIO()
    with hw.load_snapshot(written(told, k0=paged(0))) as snapshot:
        snapshot.send(out)
    assert repr(hw.receive_snapshot(io.BytesIO(out.getvalue())).metadata) == repr(told | ours)


@pytest.mark.parametrize(
    ("told", "given", "words"),
    [
        ({}, {"tp.rank": 1}, "tp.rank is given without tp.size"),
        ({"tp.size": 2}, {"tp.rank": 2}, "tp.rank 2 is not one of 2 ranks"),
        ({"tp.size": [2]}, {"tp.rank": 1}, "tp.size is [2], not a whole number"),
        ({"engine": "vllm"}, {"engine": ["vllm"]}, "engine is ['vllm'], not a string"),
        ({}, {"first_token": -1}, "first_token is -1"),
    ],
)
def test_what_the_caller_says_is_held_to_the_rules(told, given, words):
    error = refused(written(told, k0=paged(0)), metadata=given)
    assert error.rule == "snapshot.identity"
    assert words in str(error)


def test_what_the_caller_says_completes_what_is_there():
    told = {"tp.size": 2, "pp.rank": 7, "engine": ["vllm"]}
    with again(written(told, k0=paged(0)), metadata={"tp.rank": np.uint8(1), "source.layout": "mine"}) as file:
        metadata = file.metadata
    assert {key: metadata[key] for key in told} == told
    assert (metadata["tp.rank"], metadata["source.layout"]) == (1, "mine")


# Where it goes


@pytest.mark.parametrize("way", ["save", "send"])
@pytest.mark.parametrize("zstd", [False, True])
def test_the_object_that_is_read_is_not_written_over(way, zstd):
    out = io.BytesIO()
    pool = np.ones((1, 4, 1, 2), np.float16)
    hw.save_snapshot(out, [(pool, pool)], seq_lens=[4], block_tables=[[0]], zstd=zstd)
    before = out.getvalue()
    with hw.load_snapshot(out) as snapshot:
        with pytest.raises(ValueError, match="is read from this very object"):
            getattr(snapshot, way)(out)
        assert out.getvalue() == before
        another = io.BytesIO()
        getattr(snapshot, way)(another)
        assert another.getvalue()
