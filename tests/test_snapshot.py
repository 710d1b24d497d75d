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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp_rank": 4, "tp_size": 4}, "tp.rank 4 is not one of 4 ranks"),
        ({"pp_rank": 2, "pp_size": 1}, "pp.rank 2 is not one of 1 ranks"),
        ({"tp_rank": 0}, "tp.rank is given without tp.size"),
        ({"pp_size": 2}, "pp.size is given without pp.rank"),
        ({"tp_rank": -1, "tp_size": 2}, "tp.rank is -1, not a whole number"),
        ({"tp_rank": 0.0, "tp_size": 2}, "tp.rank is 0.0, not a whole number"),
        ({"tp_rank": False, "tp_size": 2}, "tp.rank is False, not a whole number"),
        ({"first_token": 2**63}, "first_token is 9223372036854775808, not a whole number"),
        ({"model_id": 7}, "model.id is 7, not a string"),
        ({"engine": b"e"}, "engine is b'e', not a string"),
        ({"model_id": "b", "metadata": {"model.id": "a"}}, "'model.id' is in metadata and given as model_id= too"),
        ({"metadata": {"tp.rank": 3, "tp.size": 2}}, "tp.rank 3 is not one of 2 ranks"),
        ({"metadata": {"tp.rank": "0", "tp.size": 2}}, "tp.rank is '0', not a whole number"),
    ],
)
def test_an_identity_that_cannot_be_or_is_said_twice_is_refused(options, said):
    with pytest.raises(hw.IncompatibleError) as refused:
        saved(**options)
    assert refused.value.rule == "snapshot.identity"
    assert said in refused.value.message


def test_numbers_of_an_identity_may_be_those_of_numpy():
    with hw.load_snapshot(saved(tp_rank=np.int64(1), tp_size=np.uint8(2), metadata={"model.id": "m"})) as snapshot:
        assert {"tp.rank": 1, "tp.size": 2, "model.id": "m"}.items() <= snapshot.metadata.items()


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 0, -0.5, 1e300, 1e-60, [1.0, np.nan], [0.0, 1.0]])
def test_a_scale_that_no_number_survives_is_refused(scale):
    with pytest.raises(hw.IncompatibleError, match=r"'layers.0.key' is .*, not a finite float32 above 0") as refused:
        saved(scales={"layers.0.key": scale})
    assert refused.value.rule == "snapshot.scale"


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        (0.5, "not 0.5"),
        ("all", "not 'all'"),
        ([0.5, 0.25], "not 0.5"),
        (np.float32(0.5), "not np.float32(0.5)"),
        ([(1.0,), (1.0,)], "1 scales are no such pair"),
        ({0: 0.5}, "not 0.5"),
        ({"layers.0.key": "half"}, "is not a number"),
        ({"layers.0.key": 1j}, "is not a number"),
        ([(1.0, 1.0)], "1 scales for 2 layers"),
        ({9: (1.0, 1.0)}, "'key of layer 9', which is not written"),
    ],
)
def test_what_scales_may_be_is_told_to_whoever_gives_something_else(scales, said):
    with pytest.raises(hw.IncompatibleError) as refused:
        saved(scales=scales)
    assert refused.value.rule == "snapshot.scale"
    assert said in refused.value.message


@pytest.mark.parametrize("form", [list, np.array], ids=["lists", "array"])
def test_scales_by_layer_are_pairs(form):
    with hw.open(saved(scales=form([[0.5, 2.0], [4.0, 8.0]]))) as file:
        found = [float(file[f"layers.{layer}.{role}.scale"].numpy()) for layer in (0, 1) for role in ("key", "value")]
    assert found == [0.5, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("dtype", "element_type"),
    [("float8_e4m3", hw.float8_e4m3), ("float8_e5m2", hw.float8_e5m2), ("u1", hw.uint8), ("int8", hw.int8)],
)
def test_raw_bits_are_named_in_words(dtype, element_type):
    raw = np.arange(PAGES * PAGE * HEADS * DIM, dtype=np.uint8).reshape(PAGES, PAGE, HEADS, DIM)
    with hw.load_snapshot(saved([(raw, raw)], dtype=dtype)) as snapshot:
        assert snapshot[0].key.descriptor.element_type == element_type
        assert snapshot[0].key.page_pool.view(np.uint8)[0].tolist() == raw[5].tolist()


def test_a_scale_of_raw_bits_is_refused_until_they_have_a_name():
    raw = np.arange(PAGES * PAGE * HEADS * DIM, dtype=np.uint8).reshape(PAGES, PAGE, HEADS, DIM)
    with pytest.raises(hw.IncompatibleError, match=r"'layers.0.key' is given as uint8.*dtype='float8_e4m3'") as refused:
        saved([(raw, raw)], scales=[(0.5, 0.5)])
    assert refused.value.rule == "snapshot.scale"
    with hw.load_snapshot(saved([(raw, raw)], scales=[(0.5, 0.5)], dtype="float8_e4m3")) as snapshot:
        found = snapshot[0].key.gather([0], dequantize=True).values[0, 0, 0]
    expected = raw[TABLES[0][0], 0, 0].view(ml_dtypes.float8_e4m3fn).astype(np.float32) * 0.5
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["fp8", object(), hw.ElementType("private_f0", 0xF0, 8, None)], ids=repr)
def test_a_name_of_no_type_is_refused(dtype):
    with pytest.raises(hw.UnsupportedError) as refused:
        saved(dtype=dtype)
    assert refused.value.rule == "element-type.dtype"
    if dtype == "fp8":
        assert "'fp8'; it is a NumPy type or one of float16, bfloat16" in refused.value.message


def test_a_layout_left_open_is_found_and_recorded():
    one = np.stack(LAYERS[0], axis=1)  # [num_pages, 2, page_size, num_heads, head_dim]
    sizes = {"page_size": PAGE, "num_heads": HEADS, "head_dim": DIM}
    assert saved([one], layout="auto", **sizes) == saved([one], layout="vllm-blocks-first", **sizes)
    with hw.load_snapshot(saved([one], layout="auto", **sizes)) as snapshot:
        assert snapshot.metadata["source.layout"] == "vllm-blocks-first"
        assert snapshot.gather(0)["keys"].tolist() == padded(LAYERS[0][0])
    sequences = [LAYERS[0][0].reshape(-1, HEADS, DIM)]
    dense = saved([(sequences, sequences)], layout="auto", block_tables=None, seq_lens=[5])
    with hw.load_snapshot(dense) as snapshot:
        assert snapshot.metadata["source.layout"] == "dense-thd"
        assert snapshot.gather(0)["keys"][0].tolist() == sequences[0][:5].tolist()


def test_a_layout_that_is_not_the_only_one_is_not_guessed():
    with pytest.raises(hw.IncompatibleError, match="could be split-nhd, split-hnd") as refused:
        saved(layout="auto")
    assert refused.value.rule == "adapter.ambiguous"
    assert "dense-thd" not in refused.value.message  # there are block tables
    with pytest.raises(hw.IncompatibleError, match="jax-rpa and dense-thd"):
        saved(layout="nhd")


def test_without_tables_the_forms_of_them_are_told():
    with pytest.raises(TypeError, match="made of nothing; give block_tables and seq_lens, or block_table, seq_ptr and"):
        saved(block_tables=None, seq_lens=None)


def test_errors_name_the_arguments_of_the_call():
    with pytest.raises(hw.InvalidDescriptorError, match=r"^index_type is 'u32'; there are 'auto', 'uint32', 'uint64'"):
        saved(index_type="u32")
    with pytest.raises(hw.InvalidFileError, match=r"^alignment is 96, not a power of two in ") as refused:
        saved(alignment=96)
    assert refused.value.rule == "container.alignment"


def test_a_file_of_other_tensors_is_no_snapshot(tmp_path):
    path = tmp_path / "dense.hrry"
    with hw.create(path) as writer:
        writer.add("weights", hw.TensorDescriptor.build(hw.float32, (3,), hw.RowMajorLayout(), (12,)), [bytes(12)])
    with pytest.raises(hw.IncompatibleError, match=r"tensors \(1\), none is block-paged; hw\.open") as refused:
        hw.load_snapshot(path)
    assert refused.value.rule == "snapshot.no-tensor"
    with hw.open(path) as file:
        assert file.snapshot().layers == ()
    out = io.BytesIO()
    with hw.create(out, metadata={"hurray_wire.snapshot": 1}):
        pass
    with hw.load_snapshot(out.getvalue()) as snapshot:
        assert snapshot.layers == ()


def test_a_snapshot_tells_how_many_layers_it_has():
    assert repr(hw.load_snapshot(saved())) == "<hurray_wire.Snapshot of 2 layers>"
    assert repr(hw.load_snapshot(saved(LAYERS[:1]))) == "<hurray_wire.Snapshot of 1 layer>"


def test_a_value_that_int8_lacks_is_named_with_its_place():
    keys = LAYERS[0][0].copy()
    keys[2, 1, 0, 0] = np.nan
    with pytest.raises(
        hw.IncompatibleError, match=r"slot 1 of page 2 of 'layers.0.key' .* int8 has no NaN or infinity"
    ):
        saved([(keys, None)], quantize="int8")


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


@pytest.mark.parametrize(
    "masked",
    [
        {"block_tables": np.ma.masked_less(TABLES, 0)},
        {"seq_lens": np.ma.masked_equal(LENS, 0)},
        {"block_tables": None, "block_table": np.ma.masked_less([5, 2, 5, 6, 1], 2), "seq_ptr": [0, 2, 5, 5]},
    ],
)
def test_what_a_mask_hides_is_not_written(masked):
    with pytest.raises(hw.UnsupportedError, match="is a masked array") as caught:
        saved(**masked)
    assert caught.value.rule == "adapter.array-kind"


def test_masked_pools_and_arrays_of_objects_are_refused():
    keys, values = pools(0)
    for wrong in (np.ma.masked_equal(keys, 1), keys.astype(object)):
        with pytest.raises(hw.UnsupportedError):
            saved([(wrong, values)])


def test_a_name_that_ends_in_zst_is_compressed_and_a_wrong_path_is_refused_at_once(tmp_path):
    for name, options, magic in (("a.zst", {}, b"\x28\xb5\x2f\xfd"), ("b.zst", {"zstd": False}, b"HRRY")):
        hw.save_snapshot(tmp_path / name, LAYERS, block_tables=TABLES, seq_lens=LENS, **options)
        assert (tmp_path / name).read_bytes()[:4] == magic
    with pytest.raises(IsADirectoryError):
        hw.save_snapshot(f"{tmp_path}/new/", LAYERS, block_tables=TABLES, seq_lens=LENS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zst", "b.zst"]
