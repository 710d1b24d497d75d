"""Comparing snapshots: equal by what the sequences hold, and the first place where they do not."""

import io

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire import diff
from hurray_wire.diff import Difference, first_difference

PAGE, HEADS, DIM, PAGES = 4, 2, 3, 7
TABLES, LENS = [[5, 2, -1], [5, 6, 1]], [6, 11]


def pools(layer, dtype=np.float32):
    size = PAGES * PAGE * HEADS * DIM
    keys = (np.arange(size) + 7 * layer).reshape(PAGES, PAGE, HEADS, DIM).astype(dtype)
    return keys, (keys + 1).astype(dtype)


def cache():
    return {layer: list(pools(layer)) for layer in (0, 3)}


def saved(layers, **options):
    out = io.BytesIO()
    batch = {"block_tables": TABLES, "seq_lens": LENS} | options
    hw.save_snapshot(out, {index: tuple(entry) for index, entry in layers.items()}, **batch)
    return hw.load_snapshot(out.getvalue())


def compared(ours, theirs):
    found = first_difference(ours, theirs)
    assert (first_difference(theirs, ours) is None) == (found is None)
    return found


def test_a_snapshot_is_equal_to_itself():
    assert compared(saved(cache()), saved(cache())) is None


def test_pages_their_order_stale_slots_names_and_metadata_do_not_count():
    ours = saved(cache(), metadata={"a": 1})
    theirs = cache()
    for entry in theirs.values():
        for pool in entry:
            pool[[0, 3, 4]] = 99
            pool[2, 2:] = 99
            pool[1, 3:] = 99
    assert compared(ours, saved(theirs, compact=False, scrub=False, zstd=True, index_type="uint64")) is None


def test_the_page_size_does_not_count():
    """The same tokens in pages of 1, made by hand: page p of token slot p."""
    layers = {index: [pool.reshape(-1, 1, HEADS, DIM) for pool in entry] for index, entry in cache().items()}
    slots = [[TABLES[seq][t // PAGE] * PAGE + t % PAGE for t in range(LENS[seq])] for seq in (0, 1)]
    assert compared(saved(cache()), saved(layers, block_tables=slots)) is None


def test_a_snapshot_from_a_stream_is_compared_like_a_file():
    out = io.BytesIO()
    layers = {index: tuple(entry) for index, entry in cache().items()}
    hw.send_snapshot(out, layers, block_tables=TABLES, seq_lens=LENS)
    assert compared(saved(cache()), hw.receive_snapshot(io.BytesIO(out.getvalue()))) is None


@pytest.mark.parametrize(
    ("layer", "role", "page", "slot", "expected"),
    [
        (0, 0, 5, 0, (0, "key", 0, 0)),
        (0, 1, 5, 3, (0, "value", 0, 3)),
        (0, 0, 2, 1, (0, "key", 0, 5)),
        (3, 0, 6, 2, (3, "key", 1, 6)),
        (3, 1, 1, 2, (3, "value", 1, 10)),
    ],
)
def test_the_first_differing_token_is_named(layer, role, page, slot, expected):
    theirs = cache()
    theirs[layer][role][page, slot, 1, 2] += 0.5
    found = compared(saved(cache()), saved(theirs))
    assert found.what == "value"
    assert (found.layer, found.role, found.seq, found.token) == expected
    assert (found.head, found.dim) == (1, 2)
    here = cache()[layer][role][page, slot, 1, 2]
    assert (found.ours, found.theirs) == (str(here), str(here + np.float32(0.5)))
    layer, role, seq, token = expected
    assert str(found) == (
        f"layer {layer}, {role}, sequence {seq}, token {token}, head 1, dim 2: "
        f"value: {found.ours} here, {found.theirs} there"
    )


def test_layers_come_before_roles_before_sequences_before_tokens():
    theirs = cache()
    changes = [(3, 0, 5, 0), (0, 1, 5, 0), (0, 0, 1, 0), (0, 0, 6, 0), (0, 0, 2, 1)]
    places = [(3, "key", 0, 0), (0, "value", 0, 0), (0, "key", 1, 8), (0, "key", 1, 4), (0, "key", 0, 5)]
    for (layer, role, page, slot), place in zip(changes, places, strict=True):
        theirs[layer][role][page, slot, 0, 0] += 1
        found = compared(saved(cache()), saved(theirs))
        assert (found.layer, found.role, found.seq, found.token) == place


@pytest.mark.parametrize("group", [1, 200, 1 << 20])
def test_how_many_sequences_are_read_together_changes_nothing(group, monkeypatch):
    monkeypatch.setattr(diff, "_GROUP_BYTES", group)
    tables, lens = [[5], [2], [], [6], [1]], [4, 1, 0, 4, 3]
    theirs = cache()
    theirs[3][1][6, 1, 0, 1] = -1
    ours, changed = (saved(layers, block_tables=tables, seq_lens=lens) for layers in (cache(), theirs))
    found = compared(ours, changed)
    assert (found.layer, found.role, found.seq, found.token, found.dim) == (3, "value", 3, 1, 1)
    assert compared(ours, saved(cache(), block_tables=tables, seq_lens=lens)) is None


def test_bits_are_compared_and_not_numbers():
    ours, theirs = cache(), cache()
    ours[0][0][5, 0, 0, 0] = theirs[0][0][5, 0, 0, 0] = np.nan
    assert compared(saved(ours), saved(theirs)) is None
    ours[0][0][5, 1, 0, 0], theirs[0][0][5, 1, 0, 0] = 0.0, -0.0
    found = compared(saved(ours), saved(theirs))
    assert (found.token, found.ours, found.theirs) == (1, "0.0", "-0.0")


def test_layers_are_compared_first():
    ours = cache()
    theirs = {0: ours[0]}
    theirs[0][0][5] += 1
    assert compared(saved(ours), saved(theirs)) == Difference("layers", [0, 3], [0])
    assert str(Difference("layers", [0, 3], [0])) == "layers: [0, 3] here, [0] there"


def test_the_number_of_sequences_and_their_lengths_are_compared():
    found = compared(saved(cache()), saved(cache(), block_tables=TABLES[:1], seq_lens=LENS[:1]))
    assert found == Difference("sequences", 2, 1)
    found = compared(saved(cache()), saved(cache(), seq_lens=[6, 10]))
    assert found == Difference("tokens", 11, 10, seq=1)
    assert str(found) == "sequence 1: tokens: 11 here, 10 there"


def test_roles_are_compared():
    theirs = cache()
    theirs[3][1] = None
    found = compared(saved(cache()), saved(theirs))
    assert found == Difference("roles", ["key", "value"], ["key"], 3)


def test_types_of_the_same_size_are_not_the_same():
    ours = {0: [pool.astype(np.float16) for pool in pools(0)]}
    theirs = {0: [ours[0][0], ours[0][1].view(ml_dtypes.bfloat16)]}
    found = compared(saved(ours), saved(theirs))
    assert found == Difference("type", "float16", "bfloat16", 0, "value")


def test_heads_and_widths_of_the_same_size_are_not_the_same():
    theirs = {0: [pool.reshape(PAGES, PAGE, DIM, HEADS) for pool in pools(0)]}
    found = compared(saved({0: pools(0)}), saved(theirs))
    assert found == Difference("shape", [HEADS, DIM], [DIM, HEADS], 0, "key")


def test_scales_beside_a_tensor_are_compared():
    ours = saved(cache(), scales={"layers.3.value": np.float32(0.1)})
    assert compared(ours, saved(cache(), scales={"layers.3.value": np.float32(0.1)})) is None
    found = compared(ours, saved(cache()))
    assert (found.what, found.layer, found.role, found.theirs) == ("scale", 3, "value", None)
    found = compared(ours, saved(cache(), scales={"layers.3.value": np.float32([0.1, 0.1])}))
    assert found.what == "scale"


def test_tensors_of_no_layer_are_compared():
    ours, theirs = {None: list(pools(0))}, {None: list(pools(0))}
    theirs[None][1][2, 1, 0, 0] = -5
    found = compared(saved(ours), saved(theirs))
    assert str(found).startswith("no layer, value, sequence 0, token 5, head 0, dim 0: value: ")


def test_a_snapshot_without_tensors_is_equal_to_another():
    def empty():
        out = io.BytesIO()
        with hw.create(out):
            pass
        return hw.open(out.getvalue()).snapshot()

    assert compared(empty(), empty()) is None
    assert compared(empty(), saved(cache())).what == "layers"


# Quantized tensors, which save_snapshot makes its own way: here by hand, 2 pages of 2 slots, 1 head of 1.


def quantized(scales, *, stored=(1, 2, 3, 4), table=(0, 1), scheme="slots"):
    schemes = {
        "slots": hw.PerBlockAffine.symmetric(axis=0, block_size=2, scale_buffer_index=3, scale_type=hw.float32),
        "heads": hw.PerChannelAffine.symmetric(axis=1, scale_buffer_index=3),
    }
    buffers = [np.array(stored, np.int8), np.array(table, np.uint32), np.array([0, len(table)], np.uint32)]
    buffers.append(np.array(scales, np.float32))
    layout = hw.BlockPagedLayout(2, 2, 0, 1, "key", 0)
    shape = (2 * len(table), 1, 1)
    sizes = [buffer.nbytes for buffer in buffers]
    descriptor = hw.TensorDescriptor.build(hw.int8, shape, layout, sizes, quantization=schemes[scheme])
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("k", descriptor, buffers)
    return hw.load_snapshot(out.getvalue())


def test_scales_of_the_tokens_count_where_the_numbers_are_equal():
    ours = quantized([1, 1, 1, 1])
    assert compared(ours, quantized([1, 1, 1, 1])) is None
    found = compared(ours, quantized([1, 1, 2, 1]))
    assert (found.what, found.seq, found.token) == ("value", 0, 2)
    assert (found.ours, found.theirs) == ("3.0", "6.0")


def test_scales_of_pages_that_are_not_used_do_not_count():
    ours, theirs = quantized([1, 1, 1, 1], table=(0,)), quantized([1, 1, 9, 9], table=(0,))
    assert compared(ours, theirs) is None


def test_scales_move_with_their_pages():
    ours = quantized([1, 2, 3, 4])
    assert compared(ours, quantized([3, 4, 1, 2], stored=(3, 4, 1, 2), table=(1, 0))) is None
    assert compared(ours, quantized([1, 2, 3, 4], stored=(3, 4, 1, 2), table=(1, 0))).token == 0


def test_schemes_are_compared():
    found = compared(quantized([1, 1, 1, 1]), quantized([1], scheme="heads"))
    assert found == Difference("quantization", "per_block_affine", "per_channel_affine", 0, "key")


def test_lengths_that_are_not_known_are_refused():
    layout = hw.BlockPagedLayout(2, 2, 0, 2, "key", 0)
    buffers = [np.zeros(4, np.float32), np.array([0, 1], np.uint32), np.array([0, 1, 2], np.uint32)]
    out = io.BytesIO()
    with hw.create(out) as writer:
        sizes = [buffer.nbytes for buffer in buffers]
        writer.add("k", hw.TensorDescriptor.build(hw.float32, (3, 1, 1), layout, sizes), buffers)
    with pytest.raises(hw.IncompatibleError, match="pass seq_lens="):
        first_difference(hw.load_snapshot(out.getvalue()), hw.load_snapshot(out.getvalue()))
