"""The rules of the block-paged layout (spec/block-paged.md)."""

import numpy as np
import pytest

import hurray_wire as hw
from hurray_wire.model.block_paged import check_seq_lens, known_seq_lens


def layout(**changes):
    fields = {"page_size": 4, "num_pages": 5, "paged_axis": 0, "num_seqs": 2} | changes
    return hw.BlockPagedLayout(**fields)


def test_the_defaults_are_key_no_layer_and_uint32():
    made = layout()
    assert (made.kv_role, made.layer_index, made.block_table_index_type) == ("key", None, "uint32")
    assert (made.tag, made.name, made.buffer_count) == (0x0A, "block_paged", 3)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"page_size": 0}, "block-paged.page-size"),
        ({"page_size": 1 << 32}, "block-paged.page-size"),
        ({"num_pages": -1}, "block-paged.num-pages"),
        ({"num_pages": 1 << 64}, "block-paged.num-pages"),
        ({"paged_axis": 1}, "block-paged.paged-axis"),
        ({"num_seqs": 1 << 32}, "block-paged.num-seqs"),
        ({"kv_role": "query"}, "block-paged.kv-role"),
        ({"kv_role": 0}, "block-paged.kv-role"),
        ({"layer_index": 0xFFFFFFFF}, "block-paged.layer-index"),
        ({"layer_index": -1}, "block-paged.layer-index"),
        ({"block_table_index_type": "int32"}, "block-paged.index-type"),
        ({"page_size": 4.0}, "block-paged.page-size"),
    ],
)
def test_a_value_that_the_format_does_not_allow_is_refused_by_its_rule(changes, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        layout(**changes)
    assert caught.value.rule == rule


@pytest.mark.parametrize("shape", [[9, 2], [9], [], [9, 2, 8, 1]])
def test_the_rank_is_three(shape):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        layout().validate_against_shape(shape)
    assert caught.value.rule == "block-paged.rank"


@pytest.mark.parametrize("kind", [list, np.array, lambda v: np.array(v, np.uint32), lambda v: np.array(v, ">u8")])
def test_shared_pages_and_empty_sequences_are_valid_tables(kind):
    layout().validate_index_buffers(seq_ptr=kind([0, 2, 3]), block_table=kind([0, 1, 0]))
    layout().validate_index_buffers(seq_ptr=kind([0, 0, 3]), block_table=kind([4, 1, 0]))
    layout(num_seqs=0).validate_index_buffers(seq_ptr=kind([0]), block_table=[])


@pytest.mark.parametrize(
    ("seq_ptr", "block_table", "rule"),
    [
        ([0, 2], [0, 1], "block-paged.seq-ptr-length"),
        ([1, 2, 3], [0, 1, 0], "block-paged.seq-ptr-start"),
        ([0, 3, 2], [0, 1], "block-paged.seq-ptr-order"),
        ([0, 2, 3], [0, 1], "block-paged.seq-ptr-end"),
        ([0, 2, 2], [0, 1, 2], "block-paged.seq-ptr-end"),
        ([0, 2, 3], [0, 5, 0], "block-paged.page-id"),
        ([0, 2, 3], [0, -1, 0], "block-paged.page-id"),
        ([0, 2, 3], [0, 2**63, 0], "block-paged.page-id"),
        ([0.0, 2.0, 3.0], [0, 1, 0], "block-paged.index-type"),
        ([[0, 2, 3]], [0, 1, 0], "block-paged.index-type"),
    ],
)
def test_a_broken_table_is_refused_by_its_rule(seq_ptr, block_table, rule):
    with pytest.raises(hw.InvalidDescriptorError) as caught:
        layout().validate_index_buffers(seq_ptr=seq_ptr, block_table=block_table)
    assert caught.value.rule == rule


def test_a_bad_page_id_is_named_with_its_sequence_and_position():
    with pytest.raises(hw.InvalidDescriptorError, match=r"block_table\[2\] \(sequence 1, page 0 of it\) names page 7"):
        layout().validate_index_buffers(seq_ptr=[0, 2, 4], block_table=[0, 1, 7, 9])


def test_a_falling_seq_ptr_of_unsigned_integers_does_not_wrap():
    falling = np.array([0, 3, 1], dtype=np.uint64)
    with pytest.raises(hw.InvalidDescriptorError, match="falls from 3 to 1 at sequence 1"):
        layout().validate_index_buffers(seq_ptr=falling, block_table=[0])


def test_a_pool_larger_than_the_index_type_has_no_id_that_is_too_large():
    big = layout(num_pages=2**63)
    big.validate_index_buffers(seq_ptr=[0, 1, 2], block_table=np.array([2**32 - 1, 0], dtype=np.uint32))


def test_quantization_compatibility_follows_page_slots_and_axes():
    per_block = hw.PerBlockAffine.symmetric
    good = [
        hw.PerTensorAffine(0.5, 3),
        hw.PerChannelAffine.symmetric(axis=1, scale_buffer_index=3),
        hw.PerChannelAffine.asymmetric(axis=2, scale_buffer_index=3, zero_point_buffer_index=4),
        per_block(axis=0, block_size=4, scale_buffer_index=3, scale_type=hw.float32),
    ]
    bad = [
        hw.PerChannelAffine.symmetric(axis=0, scale_buffer_index=3),
        per_block(axis=0, block_size=8, scale_buffer_index=3, scale_type=hw.float32),
        per_block(axis=1, block_size=4, scale_buffer_index=3, scale_type=hw.float32),
        hw.Nf4(axis=0, block_size=8, scale_buffer_index=3),
        hw.Mxfp(axis=2, block_size=16, scale_buffer_index=3),
    ]
    for scheme in good:
        layout().validate_quantization_compatibility(scheme)
    for scheme in bad:
        with pytest.raises(hw.InvalidDescriptorError) as caught:
            layout().validate_quantization_compatibility(scheme)
        assert caught.value.rule == "block-paged.quantization"


@pytest.mark.parametrize(
    ("seq_ptr", "total", "lengths"),
    [
        ([0], 0, []),
        ([0, 3], 9, [9]),
        ([0, 2, 3], 12, [8, 4]),
        ([0, 0, 0], 0, [0, 0]),
    ],
)
def test_lengths_are_known_where_only_one_split_is_possible(seq_ptr, total, lengths):
    assert known_seq_lens(np.array(seq_ptr, np.uint32), page_size=4, total_tokens=total).tolist() == lengths


@pytest.mark.parametrize(
    ("seq_ptr", "total", "rule"),
    [
        ([0, 2, 3], 9, "snapshot.seq-lens-unknown"),
        ([0, 2, 3], 13, "snapshot.seq-lens-sum"),
        ([0], 1, "snapshot.seq-lens-sum"),
    ],
)
def test_lengths_are_never_guessed(seq_ptr, total, rule):
    with pytest.raises(hw.IncompatibleError) as caught:
        known_seq_lens(np.array(seq_ptr, np.uint32), page_size=4, total_tokens=total)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("lengths", "total", "rule"),
    [
        ([8], 8, "snapshot.seq-lens-count"),
        ([9, 0], 9, "snapshot.seq-lens-pages"),
        ([-1, 4], 3, "snapshot.seq-lens-pages"),
        ([8, 4], 11, "snapshot.seq-lens-sum"),
        (np.array([2**63, 0], np.uint64), 2**63, "snapshot.seq-lens-pages"),
    ],
)
def test_lengths_must_agree_with_pages_and_total(lengths, total, rule):
    with pytest.raises(hw.IncompatibleError) as caught:
        check_seq_lens(np.asarray(lengths), np.array([0, 2, 3], np.uint32), page_size=4, total_tokens=total)
    assert caught.value.rule == rule
