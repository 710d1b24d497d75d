"""Snapshots (spec/snapshot.md): saved from arrays as engines hold them, found by descriptor, gathered by length."""

import io
import struct

import ml_dtypes
import numpy as np
import pytest

import hurray_wire as hw

PAGE, HEADS, DIM, PAGES = 4, 2, 3, 7
TABLES = [[5, 2, -1], [5, 6, 1], [-7, 99, 2**31 - 1]]
LENS = [6, 12, 0]


def pools(layer, dtype=np.float32):
    """Keys and values with a distinct value for every element."""
    size = PAGES * PAGE * HEADS * DIM
    keys = (np.arange(size) + 1000 * layer + 1).reshape(PAGES, PAGE, HEADS, DIM)
    return keys.astype(dtype), (keys + 500).astype(dtype)


LAYERS = [pools(0), pools(1)]


def saved(layers=LAYERS, **options):
    out = io.BytesIO()
    arguments = {"block_tables": TABLES, "seq_lens": LENS} | options
    hw.save_snapshot(out, layers, **arguments)
    return out.getvalue()


def tokens(pool, table, length):
    """The tokens of one sequence, one by one."""
    return [pool[table[t // PAGE], t % PAGE].tolist() for t in range(length)]


def padded(pool):
    rows = []
    for table, length in zip(TABLES, LENS, strict=True):
        rows.append(tokens(pool, table, length) + [np.zeros((HEADS, DIM)).tolist()] * (12 - length))
    return rows


def test_what_was_saved_is_gathered():
    with hw.load_snapshot(saved()) as snapshot:
        assert snapshot.layers == (0, 1)
        assert snapshot.seq_lens.tolist() == LENS
        for layer, (keys, values) in enumerate(LAYERS):
            batch = snapshot.gather(layer)
            assert list(batch) == ["keys", "values", "mask"]
            assert batch["keys"].tolist() == padded(keys)
            assert batch["values"].tolist() == padded(values)
            assert batch["mask"].sum(axis=1).tolist() == LENS


def test_names_follow_layers_and_roles_and_lengths_come_first():
    with hw.open(saved()) as file:
        assert file.names == ("seq_lens", "layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value")
        assert file["seq_lens"].numpy().dtype == np.uint32
        layout = file["layers.1.value"].descriptor.layout
        assert (layout.kv_role, layout.layer_index, layout.block_table_index_type) == ("value", 1, "uint32")
        assert file["layers.1.value"].shape == (18, HEADS, DIM)


def test_by_default_only_referenced_pages_and_used_slots_leave():
    with hw.load_snapshot(saved()) as snapshot:
        key = snapshot[0].key
        assert key.block_table.tolist() == [0, 1, 0, 2, 3]
        pool = key.page_pool
        assert pool.shape == (4, PAGE, HEADS, DIM)
        expected = LAYERS[0][0][[5, 2, 6, 1]].copy()
        expected[1, 2:] = 0  # page 2 holds two tokens of sequence 0
        assert np.array_equal(pool, expected)


def test_the_pool_is_kept_as_it_is_on_request():
    with hw.load_snapshot(saved(compact=False, scrub=False)) as snapshot:
        assert np.array_equal(snapshot[1].value.page_pool, LAYERS[1][1])
        assert snapshot[1].value.block_table.tolist() == [5, 2, 5, 6, 1]
        assert snapshot.gather(1)["values"].tolist() == padded(LAYERS[1][1])


def test_tensors_are_found_by_descriptor_and_not_by_name():
    renamed = io.BytesIO()
    with hw.open(saved()) as file, hw.create(renamed) as writer:
        for number, name in enumerate(reversed(file.names)):
            tensor = file[name]
            writer.add(name if name == "seq_lens" else f"tensor {number}", tensor.descriptor, tensor.buffers)
    with hw.load_snapshot(renamed.getvalue()) as snapshot:
        assert snapshot.layers == (0, 1)
        assert snapshot[0].key.name == "tensor 3"
        assert snapshot.gather(0)["keys"].tolist() == padded(LAYERS[0][0])


@pytest.mark.parametrize(
    "table",
    [
        {"block_tables": np.array(TABLES)},
        {"block_tables": np.array(TABLES, dtype=">i8")},
        {"block_tables": [[5, 2], [5, 6, 1], []]},
        {"block_tables": None, "block_table": [5, 2, 5, 6, 1], "seq_ptr": [0, 2, 5, 5]},
        {"block_tables": None, "block_table": [5, 2, 0, 5, 6, 1, 3], "seq_ptr": [0, 3, 6, 7]},
        {"block_tables": None, "block_table": [5, 2, 5, 6, 1], "seq_ptr": [0, 2, 5, 5], "last_page_len": [2, 4, 0]},
    ],
)
def test_every_form_of_table_gives_the_same_snapshot(table):
    if "last_page_len" in table:
        table = table | {"seq_lens": None}
    assert saved(**table) == saved()


def test_layers_are_chosen_and_numbered_by_the_caller():
    by_index = saved({7: LAYERS[0], 30: {"key": LAYERS[1][0]}})
    with hw.load_snapshot(by_index) as snapshot:
        assert snapshot.layers == (7, 30)
        assert snapshot[30].value is None
        assert list(snapshot.gather(30)) == ["keys", "mask"]
        with pytest.raises(KeyError, match="layers 7, 30"):
            _ = snapshot[0]
    assert saved(LAYERS, layer_indices=[7, 8]) != saved()
    with hw.load_snapshot(saved([LAYERS[0]], layer_indices=[None])) as snapshot:
        assert snapshot.layers == (None,)
        assert snapshot[None].key.name == "key"


def test_identity_goes_into_the_metadata():
    data = saved(model_id="m", model_revision="r", engine="e", tp_rank=0, tp_size=2, metadata={"note": "n"})
    with hw.load_snapshot(data) as snapshot:
        metadata = snapshot.metadata
    assert metadata["hurray_wire.snapshot"] == 1
    assert metadata["producer"].startswith("hurray_wire ")
    named = {"model.id": "m", "model.revision": "r", "engine": "e", "tp.rank": 0, "tp.size": 2, "note": "n"}
    assert named.items() <= metadata.items()
    assert metadata["source.layout"] == "split-nhd"
    assert "pp.rank" not in metadata


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"block_tables": [[5, 7], [5, 6, 1], []]}, hw.InvalidDescriptorError, "block-paged.page-id"),
        ({"block_tables": [[5, -1], [5, 6, 1], []]}, hw.InvalidDescriptorError, "block-paged.page-id"),
        ({"seq_lens": [6, 13, 0]}, hw.IncompatibleError, "snapshot.seq-lens-pages"),
        ({"seq_lens": [6, 12]}, hw.IncompatibleError, "snapshot.seq-lens-count"),
        ({"metadata": {"hurray_wire.crc32c": [1]}}, hw.InvalidFileError, "snapshot.reserved-key"),
        ({"index_type": "int64"}, hw.InvalidDescriptorError, "block-paged.index-type"),
        ({"layout": "nhd"}, hw.IncompatibleError, "adapter.name"),
        ({"page_size": 16}, hw.BufferSizeError, None),
        ({"num_heads": 4}, hw.BufferSizeError, None),
        ({"scales": {"layers.5.key": 1.0}}, hw.IncompatibleError, "snapshot.scale"),
        ({"scales": {"layers.0.key": [1.0, 2.0, 3.0]}}, hw.BufferSizeError, "snapshot.scale"),
    ],
)
def test_what_is_wrong_is_refused_before_a_file_appears(tmp_path, options, error, rule):
    path = tmp_path / "cache.hrry"
    path.write_bytes(b"the old file")
    with pytest.raises(error) as caught:
        hw.save_snapshot(path, LAYERS, **({"block_tables": TABLES, "seq_lens": LENS} | options))
    if rule is not None:
        assert caught.value.rule == rule
    assert path.read_bytes() == b"the old file"
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache.hrry"]


def test_a_misspelt_argument_and_no_layers_are_refused():
    with pytest.raises(TypeError):
        saved(modelid="m")
    with pytest.raises(hw.HurrayError):
        saved([])


def test_a_bad_page_within_a_length_is_named():
    with pytest.raises(hw.InvalidDescriptorError, match=r"sequence 1"):
        saved(block_tables=[[5, 2], [5, 99, 1], []])


@pytest.mark.parametrize("index_type", ["uint32", "uint64"])
def test_the_index_type_can_be_chosen(index_type):
    with hw.load_snapshot(saved(index_type=index_type)) as snapshot:
        assert snapshot[0].key.layout.block_table_index_type == index_type
        assert snapshot[0].key.block_table.dtype == np.dtype(index_type)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, ">f4"])
def test_every_cache_type_keeps_its_bits(dtype):
    bits = np.random.default_rng(1).integers(0, 256, (PAGES, PAGE, HEADS, DIM, 4), dtype=np.uint8)
    pool = (
        bits.view(dtype)[..., :1].reshape(PAGES, PAGE, HEADS, DIM)
        if np.dtype(dtype).itemsize < 4
        else bits.view(dtype)[..., 0]
    )
    with hw.load_snapshot(saved([(pool, pool)])) as snapshot:
        values, mask = snapshot[0].key.gather(seqs=[1])
        assert mask.all()
        little = pool.astype(np.dtype(dtype).newbyteorder("<"))
        expected = b"".join(little[page].tobytes() for page in (5, 6, 1))
        assert values.tobytes() == expected


def test_the_same_input_gives_the_same_bytes():
    assert saved() == saved()
    strided = [tuple(np.repeat(pool, 2, axis=3)[..., ::2] for pool in layer) for layer in LAYERS]
    assert saved(strided) == saved()


def test_an_empty_batch_is_a_snapshot():
    data = saved(block_tables=np.zeros((0, 3), np.int32), seq_lens=[])
    with hw.load_snapshot(data) as snapshot:
        assert snapshot.seq_lens.tolist() == []
        assert snapshot[0].key.page_pool.shape == (0, PAGE, HEADS, DIM)
        assert snapshot.gather(0)["keys"].shape == (0, 0, HEADS, DIM)
        snapshot.verify()


def test_companion_scales_dequantize_a_float8_cache():
    pool = np.ones((PAGES, PAGE, HEADS, DIM), ml_dtypes.float8_e4m3fn)
    data = saved([(pool, pool)], scales=[([0.5, 2.0], 3.0)])
    with hw.load_snapshot(data) as snapshot:
        assert snapshot.file["layers.0.key.scale"].numpy().tolist() == [0.5, 2.0]
        batch = snapshot.gather(0, dequantize=True)
        assert batch["keys"].dtype == np.float32
        assert batch["keys"][0, :6].tolist() == [[[0.5] * DIM, [2.0] * DIM]] * 6
        assert batch["values"][1].tolist() == [[[3.0] * DIM] * HEADS] * 12
        assert not batch["keys"][0, 6:].any()


def test_a_wide_length_is_recorded_wide():
    layout = hw.BlockPagedLayout(2**32 - 1, 2, 0, 1, kv_role="key", layer_index=0)
    pool = hw.TensorDescriptor.build(hw.uint8, (2**32, 0, 1), layout, (0, 8, 8))
    lengths = hw.TensorDescriptor.build(hw.uint64, (1,), hw.RowMajorLayout(), (8,))
    out = io.BytesIO()
    with hw.create(out) as writer:
        writer.add("k", pool, [b"", struct.pack("<2I", 0, 1), struct.pack("<2I", 0, 2)])
        writer.add("seq_lens", lengths, [struct.pack("<Q", 2**32)])
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert snapshot.seq_lens.tolist() == [2**32]
        assert snapshot.gather(0, max_len=3)["keys"].shape == (1, 3, 0, 1)


def test_two_tensors_of_one_layer_and_role_are_refused():
    out = io.BytesIO()
    with hw.open(saved()) as file, hw.create(out) as writer:
        for name in ("layers.0.key", "again"):
            tensor = file["layers.0.key"]
            writer.add(name, tensor.descriptor, tensor.buffers)
    with pytest.raises(hw.InvalidFileError) as caught:
        hw.load_snapshot(out.getvalue())
    assert caught.value.rule == "snapshot.duplicate-role"


def test_a_newer_kind_of_snapshot_is_refused():
    out = io.BytesIO()
    with hw.create(out, metadata={"hurray_wire.snapshot": 2}):
        pass
    with pytest.raises(hw.IncompatibleError) as caught:
        hw.load_snapshot(out.getvalue())
    assert caught.value.rule == "snapshot.version"


def test_saving_over_the_mapped_source_is_safe(tmp_path):
    path = tmp_path / "cache.hrry"
    path.write_bytes(saved())
    with hw.load_snapshot(path) as snapshot:
        key, value = snapshot[0].key, snapshot[0].value
        tables = {"block_table": key.block_table, "seq_ptr": key.seq_ptr, "seq_lens": snapshot.seq_lens}
        hw.save_snapshot(path, [(key.page_pool, value.page_pool)], **tables)
        expected = [token for t, n in zip(TABLES, LENS, strict=True) for token in tokens(LAYERS[0][0], t, n)]
        assert key.ragged().tolist() == expected
    with hw.load_snapshot(path) as snapshot:
        assert snapshot.gather(0)["keys"].tolist() == padded(LAYERS[0][0])


def test_progress_is_told_in_bytes():
    told = []
    saved(progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]
    assert len(told) == 5
