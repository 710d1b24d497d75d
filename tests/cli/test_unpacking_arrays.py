"""hurray-unpack -o: the arrays that come out, in every form and file, and the names that they may have."""

import json

import numpy as np
import pytest
from cli_cases import (
    DIM,
    HEADS,
    LAYERS,
    LENS,
    PAGE,
    TABLES,
    cache,
    one_error,
    pack,
    packed,
    pool,
    tokens,
    unpack,
    write_npz,
    write_safetensors,
)
from safetensors import safe_open

import hurray_wire as hw


def arrays_of(path):
    """The arrays of an .npz file or a folder, without help of the code under test."""
    if path.is_dir():
        return {file.stem: np.load(file, allow_pickle=False) for file in path.iterdir()}
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def unpacked(path, *arguments, target="arrays.npz"):
    assert unpack(path, "-o", f"{path.parent}/{target}", *arguments) == 0
    return arrays_of(path.parent / target)


def logical_of(pages, table, length, page_size):
    """The tokens of a sequence in pools that were unpacked, by the formula."""
    return [pages[table[t // page_size], t % page_size].tolist() for t in range(length)]


def logical(pages, table, length):
    return logical_of(pages, table, length, PAGE)


@pytest.mark.parametrize("target", ["arrays.npz", "arrays/"])
def test_pages_hold_the_sequences_with_tables_padded_with_minus_one(target, tmp_path):
    arrays = unpacked(packed(tmp_path), target=target)
    pools = [f"layers.{layer}.{role}" for layer in LAYERS for role in ("key", "value")]
    assert sorted(arrays) == sorted([*pools, "block_tables", "seq_lens", "dtypes"])
    assert json.loads(str(arrays["dtypes"])) == dict.fromkeys(pools, "bfloat16")
    assert (arrays["seq_lens"].dtype, arrays["seq_lens"].tolist()) == (np.int32, LENS)
    tables = arrays["block_tables"]
    assert (tables.dtype, tables.shape, tables[0, 2]) == (np.int32, (2, 3), -1)
    assert tables[0, 0] == tables[1, 0]  # what was shared is shared
    for layer in LAYERS:
        for role in ("key", "value"):
            pages = arrays[f"layers.{layer}.{role}"]
            assert (pages.dtype, pages.shape) == (np.uint16, (4, PAGE, HEADS, DIM))
            for seq in (0, 1):
                assert logical(pages, tables[seq], LENS[seq]) == tokens(pool(layer, role), seq).tolist()


def test_a_kept_pool_comes_back_as_it_was(tmp_path):
    arrays = unpacked(packed(tmp_path, "--keep-pool"))
    assert arrays["block_tables"].tolist() == TABLES
    assert all(np.array_equal(arrays[name], array) for name, array in cache().items() if array.ndim == 4)


def test_ragged_puts_sequences_in_a_row(tmp_path):
    arrays = unpacked(packed(tmp_path), "--as", "ragged", "--layers", "2,0")
    assert list(arrays) == [
        "layers.2.key",
        "layers.2.value",
        "layers.0.key",
        "layers.0.value",
        "seq_lens",
        "dtypes",
    ]
    expected = np.concatenate([tokens(pool(2, "value"), seq) for seq in (0, 1)])
    assert arrays["layers.2.value"].tolist() == expected.tolist()
    assert arrays["layers.2.value"].shape == (17, HEADS, DIM)
    assert arrays["seq_lens"].tolist() == LENS


def test_padded_puts_sequences_side_by_side_with_a_mask(tmp_path):
    arrays = unpacked(packed(tmp_path), "--as", "padded", "--seqs", "1,0,1")
    values = arrays["layers.1.key"]
    assert values.shape == (3, 11, HEADS, DIM)
    assert arrays["mask"].dtype == np.bool_
    for row, seq in enumerate((1, 0, 1)):
        assert values[row, : LENS[seq]].tolist() == tokens(pool(1, "key"), seq).tolist()
        assert not values[row, LENS[seq] :].any()
        assert arrays["mask"][row].tolist() == [True] * LENS[seq] + [False] * (11 - LENS[seq])
    assert arrays["seq_lens"].tolist() == [11, 6, 11]


def test_chosen_sequences_come_with_their_own_pages_alone(tmp_path):
    arrays = unpacked(packed(tmp_path, "--keep-pool"), "--seqs", "0")
    pages = arrays["layers.0.key"]
    assert pages.shape == (2, PAGE, HEADS, DIM)
    assert arrays["block_tables"].tolist() == [[0, 1]]
    assert logical(pages, [0, 1], 6) == tokens(pool(0, "key"), 0).tolist()
    assert not pages[1, 2:].any()  # the stale slots behind its last token


def test_chosen_sequences_keep_what_they_share(tmp_path):
    arrays = unpacked(packed(tmp_path, "--keep-pool"), "--seqs", "1,0")
    tables = arrays["block_tables"]
    assert len(arrays["layers.0.key"]) == 4
    assert tables[0, 0] == tables[1, 0]
    for row, seq in enumerate((1, 0)):
        assert logical(arrays["layers.2.value"], tables[row], LENS[seq]) == tokens(pool(2, "value"), seq).tolist()


def test_a_page_shared_by_a_longer_sequence_is_cut_where_the_chosen_one_ends(tmp_path):
    arrays = {**cache((0,)), "block_tables": np.array([[5], [5]], np.int32), "seq_lens": np.array([1, 4], np.int32)}
    path = tmp_path / "o.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", path) == 0
    (page,) = unpacked(path, "--seqs", "0")["layers.0.key"]
    assert page[0].tolist() == pool(0, "key")[5, 0].tolist()
    assert not page[1:].any()
    (page,) = unpacked(path, "--seqs", "1,0")["layers.0.key"]
    assert page.tolist() == pool(0, "key")[5].tolist()


def test_dequantized_arrays_are_real_numbers(tmp_path):
    arrays = {name: array.astype(np.float16) if array.ndim == 4 else array for name, array in cache((0,)).items()}
    arrays["layers.0.key.scale"] = np.array([0.5, 4.0], np.float32)
    path = tmp_path / "o.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", path) == 0
    expected = np.concatenate([tokens(arrays["layers.0.key"], seq) for seq in (0, 1)]).astype(np.float32)
    expected *= np.array([[0.5], [4.0]], np.float32)
    ragged = unpacked(path, "--dequantize", "--as", "ragged")
    assert ragged["layers.0.key"].dtype == np.float32
    assert ragged["layers.0.key"].tolist() == expected.tolist()
    assert "layers.0.key.scale" not in ragged
    pages = unpacked(path, "--dequantize")
    found = [t for seq in (0, 1) for t in logical(pages["layers.0.key"], pages["block_tables"][seq], LENS[seq])]
    assert found == expected.tolist()


def test_scales_go_along_and_come_back(tmp_path):
    arrays = {name: array.astype(np.uint8) if array.ndim == 4 else array for name, array in cache((0,)).items()}
    arrays |= {"layers.0.key.scale": np.array([0.5, 4.0], np.float32)}
    kinds = {"layers.0.key": "F8_E4M3", "layers.0.value": "F8_E5M2"}
    path = tmp_path / "o.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays, kinds), "-o", path) == 0
    for target in ("a.npz", "a.safetensors"):
        assert unpack(path, "-o", tmp_path / target) == 0
        assert pack(tmp_path / target, "-o", tmp_path / "again") == 0
        assert unpack(path, "--diff", tmp_path / "again") == 0


# Files


def test_safetensors_hold_types_by_their_own_names(tmp_path):
    arrays = cache((0,))
    arrays["layers.0.value"] = arrays["layers.0.value"].astype(np.uint8)
    path = tmp_path / "o.hrry"
    source = write_safetensors(tmp_path / "d", arrays, {"layers.0.value": "F8_E4M3"})
    assert pack(source, "-o", path) == 0
    assert unpack(path, "-o", tmp_path / "a.safetensors") == 0
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.metadata() == {"page_size": "4"}
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 -- no mapping
        assert file.get_tensor("block_tables").tolist() == [[0, 1, -1], [0, 2, 3]]
        assert file.get_tensor("seq_lens").tolist() == LENS
    assert kinds == {"layers.0.key": "BF16", "layers.0.value": "F8_E4M3", "block_tables": "I32", "seq_lens": "I32"}
    data = (tmp_path / "a.safetensors").read_bytes()
    assert pool(0, "key")[5].tobytes() in data
    assert int.from_bytes(data[:8], "little") % 8 == 0


@pytest.mark.parametrize("target", ["a.npz", "a.safetensors", "a/"])
@pytest.mark.parametrize("options", [[], ["--keep-pool"], ["--zstd", "--planes"]])
def test_what_is_unpacked_can_be_packed_and_holds_the_same(target, options, tmp_path):
    path = packed(tmp_path, *options)
    assert unpack(path, "-o", f"{tmp_path}/{target}") == 0
    assert pack(f"{tmp_path}/{target}", "-o", tmp_path / "again.hrry", *options) == 0
    assert unpack(path, "--diff", tmp_path / "again.hrry") == 0
    assert path.read_bytes() == (tmp_path / "again.hrry").read_bytes()


@pytest.mark.parametrize("name", list(hw.model.element_types.BY_NAME))
def test_every_element_type_goes_in_and_out_and_in_again(name, tmp_path):
    element_type = hw.model.element_types.BY_NAME[name]
    dtype, narrow = element_type.dtype, min(element_type.bits, 8)
    values = np.random.default_rng(7).integers(0, 256, (3, PAGE, 1, 2 * dtype.itemsize), np.uint8)
    values &= (1 << narrow) - 1
    own = dtype.isbuiltin == 2  # a type that NumPy's files have no name for
    pages = values.view(f"u{dtype.itemsize}" if own else dtype)
    arrays = {"layers.0.key": pages, "layers.0.value": pages[::-1]}
    tables = {"block_tables": np.array([[2, 0], [1, -1]]), "seq_lens": np.array([8, 4])}
    source = write_npz(tmp_path / "d.npz", {**arrays, **tables}, dict.fromkeys(arrays, name) if own else {})
    assert pack(source, "-o", tmp_path / "one", "--keep-pool", "--quiet") == 0
    with hw.load_snapshot(tmp_path / "one") as snapshot:
        assert snapshot[0].key.descriptor.element_type == element_type
    found = unpacked(tmp_path / "one")
    assert found["layers.0.key"].tobytes() == pages.tobytes()
    assert found["layers.0.value"].tobytes() == pages[::-1].tobytes()
    assert pack(tmp_path / "arrays.npz", "-o", tmp_path / "two", "--keep-pool", "--quiet") == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


SPLIT = ["split-nhd", "split-hnd", "jax-paged", "sglang-slots"]
JOINED = ["vllm-kv-first", "vllm-blocks-first", "vllm-packed", "jax-rpa"]
ONE_ARRAY = ["trtllm-pool", "vllm-cross-layer"]


@pytest.mark.parametrize("layout", [*SPLIT, *JOINED, *ONE_ARRAY])
@pytest.mark.parametrize("options", [[], ["--seqs", "1"]])
def test_pages_go_out_in_every_engine_layout_and_come_back(layout, options, tmp_path):
    path = packed(tmp_path)
    arrays = unpacked(path, "--layout", layout, *options)
    names = {*arrays} - {"block_tables", "seq_lens", "dtypes"}
    if layout in SPLIT:
        assert names == {f"layers.{layer}.{role}" for layer in LAYERS for role in ("key", "value")}
    elif layout in JOINED:
        assert names == {f"layers.{layer}" for layer in LAYERS}
    else:
        assert names == {"kv_cache"}
    sizes = ["--page-size", PAGE, "--num-heads", HEADS]
    again = tmp_path / "again.hrry"
    assert pack(tmp_path / "arrays.npz", "-o", again, "--layout", layout, *sizes) == 0
    if options:
        assert unpack(path, "-o", tmp_path / "plain.npz", *options) == 0
        assert pack(tmp_path / "plain.npz", "-o", path) == 0
    assert unpack(again, "--diff", path) == 0


def test_axes_of_an_engine_layout_hold_what_its_name_says(tmp_path):
    arrays = unpacked(packed(tmp_path, "--keep-pool"), "--layout", "trtllm-pool")
    one = arrays["kv_cache"]  # [num_pages, num_layers, 2, num_heads, page_size, head_dim]
    assert one.shape == (4, 3, 2, HEADS, PAGE, DIM)
    assert arrays["block_tables"].tolist() == [[0, 1, -1], [0, 2, 3]]
    assert one[2, 2, 1, 1, 3, 0] == pool(2, "value")[6, 3, 1, 0]
    assert one[0, 0, 0, 0, 1, 2] == pool(0, "key")[5, 1, 0, 2]


def test_a_layout_that_cannot_hold_the_roles_is_refused(tmp_path, capsys):
    path = packed(tmp_path)
    assert unpack(path, "-o", tmp_path / "o.npz", "--layout", "mla") == 1
    assert "mla holds fused, but layer 0 has key" in one_error(capsys, "hurray-unpack")
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize("form", ["pages", "ragged", "padded"])
def test_an_empty_batch_comes_out_empty(form, tmp_path):
    arrays = {**cache((0,)), "block_tables": np.empty((0, 3), np.int32), "seq_lens": np.empty(0, np.int32)}
    path = tmp_path / "o.hrry"
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", path) == 0
    found = unpacked(path, "--as", form)
    assert found["seq_lens"].shape == (0,)
    assert found["layers.0.key"].size == 0


# Tensors that are no part of a snapshot


def dense_file(path, tensors):
    with hw.create(path) as writer:
        for name, array, layout in tensors:
            descriptor = hw.TensorDescriptor.build(hw.float32, array.shape, layout, [array.nbytes])
            writer.add(name, descriptor, [array])
    return path


GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_file_of_dense_tensors_comes_out_by_its_names(tmp_path):
    path = dense_file(tmp_path / "f", [("w", GRID, hw.RowMajorLayout()), ("v", GRID, hw.ColMajorLayout())])
    assert unpack(path, "-o", tmp_path / "a.npz") == 0
    arrays = arrays_of(tmp_path / "a.npz")
    assert list(arrays) == ["w", "v"]
    assert arrays["w"].tolist() == arrays["v"].tolist() == GRID.tolist()
    assert unpack(path, "-o", tmp_path / "a.safetensors") == 0
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.get_tensor("v").tolist() == GRID.tolist()


def test_layers_of_a_file_without_any_are_refused(tmp_path, capsys):
    path = dense_file(tmp_path / "f", [("w", GRID, hw.RowMajorLayout())])
    assert unpack(path, "-o", tmp_path / "a.npz", "--layers", "0") == 1
    assert "there is no block-paged tensor" in one_error(capsys, "hurray-unpack")


def test_tensors_that_are_no_plain_arrays_are_named(tmp_path, capsys):
    path = tmp_path / "f"
    with hw.create(path) as writer:
        layout = hw.CooLayout(1, True)
        writer.add("s", hw.TensorDescriptor.build(hw.float32, (2, 3), layout, [4, 16]), [b"\0" * 4, b"\0" * 16])
        writer.add("w", hw.TensorDescriptor.build(hw.float32, (2, 3), hw.RowMajorLayout(), [24]), [GRID])
    assert unpack(path, "-o", tmp_path / "a.npz") == 0
    assert capsys.readouterr().err == "hurray-unpack: not written, since they are no plain arrays: s\n"
    assert list(arrays_of(tmp_path / "a.npz")) == ["w"]


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "/absolute",
        "a/b",
        "a\\b",
        "..",
        ".",
        ".hidden",
        "trailing.",
        "trailing ",
        "CON",
        "nul.txt",
        "com1",
        "lpt\u00b9",
        "C:x",
        "what?",
        "a\nb",
        "a\0b",
        "\x1b[31m",
        "\u202egnp",
        "x" * 252,
    ],
)
@pytest.mark.parametrize("target", ["out.npz", "out/"])
def test_a_name_that_is_a_path_or_a_device_is_refused(name, target, tmp_path, capsys):
    path = dense_file(tmp_path / "f", [("fine", GRID, hw.RowMajorLayout()), (name, GRID, hw.RowMajorLayout())])
    assert unpack(path, "-o", f"{tmp_path}/{target}") == 1
    assert "cannot be a file of that name: " in one_error(capsys, "hurray-unpack")
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert unpack(path, "-o", tmp_path / "out.safetensors") == 0


@pytest.mark.parametrize(("one", "two"), [("Ab", "aB"), ("ß", "SS"), ("é", "e\u0301"), ("ﬁ", "fi")])
def test_names_that_differ_only_in_case_or_form_are_refused(one, two, tmp_path, capsys):
    path = dense_file(tmp_path / "f", [(one, GRID, hw.RowMajorLayout()), (two, GRID, hw.RowMajorLayout())])
    assert unpack(path, "-o", f"{tmp_path}/out/") == 1
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    assert unpack(path, "-o", tmp_path / "out.npz") == 1
    assert "have one name where case does not count" in one_error(capsys, "hurray-unpack")


def test_a_name_that_tells_types_cannot_be_an_array(tmp_path, capsys):
    path = dense_file(tmp_path / "f", [("dtypes", GRID, hw.RowMajorLayout())])
    assert unpack(path, "-o", tmp_path / "out.npz") == 1
    assert "no array can be called 'dtypes'" in one_error(capsys, "hurray-unpack")


# Files of other writers


def paged_file(path, batches, *, lengths=None):
    """A file of float32 keys, one layer per (block_table, seq_ptr, tokens, page_size), one element a slot."""
    with hw.create(path) as writer:
        for layer, (table, ptr, total, page_size) in enumerate(batches):
            num_pages = max(table, default=-1) + 1
            pages = np.arange(num_pages * page_size, dtype=np.float32) + 100 * layer
            layout = hw.BlockPagedLayout(page_size, num_pages, 0, len(ptr) - 1, "key", layer)
            buffers = [pages, np.array(table, np.uint32), np.array(ptr, np.uint32)]
            descriptor = hw.TensorDescriptor.build(hw.float32, (total, 1, 1), layout, [b.nbytes for b in buffers])
            writer.add(f"blk.{layer}", descriptor, buffers)
        if lengths is not None:
            array = np.array(lengths, np.uint32)
            layout = hw.RowMajorLayout()
            writer.add("seq_lens", hw.TensorDescriptor.build(hw.uint32, array.shape, layout, [array.nbytes]), [array])
    return path


def test_lengths_that_are_not_recorded_are_asked_for_and_taken(tmp_path, capsys):
    path = paged_file(tmp_path / "f", [([1, 0, 2], [0, 2, 3], 5, 2)])
    for form in ("pages", "ragged", "padded"):
        assert unpack(path, "-o", tmp_path / "o.npz", "--as", form) == 1
        assert one_error(capsys, "hurray-unpack").endswith("; --seq-lens gives them")
    arrays = unpacked(path, "--as", "ragged", "--seq-lens", "3,2")
    assert arrays["layers.0.key"].reshape(-1).tolist() == [2, 3, 0, 4, 5]
    arrays = unpacked(path, "--as", "ragged", "--seq-lens", "4,1")
    assert arrays["layers.0.key"].reshape(-1).tolist() == [2, 3, 0, 1, 4]


def test_layers_with_tables_of_their_own_get_one_table(tmp_path):
    path = paged_file(tmp_path / "f", [([1, 0, 2], [0, 2, 3], 5, 2), ([0, 2, 2], [0, 2, 3], 5, 2)], lengths=[3, 2])
    arrays = unpacked(path)
    assert arrays["block_tables"].tolist() == [[0, 1], [2, -1]]
    for layer, contents in ((0, [[2, 3, 0], [4, 5]]), (1, [[100, 101, 104], [104, 105]])):
        pages = arrays[f"layers.{layer}.key"]
        for seq, content in enumerate(contents):
            assert np.ravel(logical_of(pages, arrays["block_tables"][seq], len(content), 2)).tolist() == content


def test_pools_of_different_sizes_with_one_table_are_made_alike(tmp_path):
    path = paged_file(tmp_path / "f", [([0, 1], [0, 2], 4, 2), ([0, 1], [0, 2], 4, 2)], lengths=[4])
    with hw.open(path) as file:
        assert file["blk.0"].layout.num_pages == 2
    arrays = unpacked(path)
    assert arrays["layers.1.key"].reshape(-1).tolist() == [100, 101, 102, 103]


def test_layers_of_different_page_sizes_are_cut_alike(tmp_path):
    path = paged_file(tmp_path / "f", [([1, 0], [0, 2], 4, 2), ([0], [0, 1], 4, 4)], lengths=[4])
    arrays = unpacked(path)
    assert arrays["block_tables"].tolist() == [[0, 1]]
    assert arrays["layers.0.key"].reshape(-1).tolist() == [2, 3, 0, 1]
    assert arrays["layers.1.key"].shape == (2, 2, 1, 1)
    assert arrays["layers.1.key"].reshape(-1).tolist() == [100, 101, 102, 103]


def test_layers_of_different_batches_are_refused(tmp_path, capsys):
    path = paged_file(tmp_path / "f", [([0, 1], [0, 2], 4, 2), ([0], [0, 1], 2, 2)])
    assert unpack(path, "-o", tmp_path / "o.npz", "--as", "ragged") == 1
    assert "layers.1.key is of another batch than layers.0.key" in one_error(capsys, "hurray-unpack")
    assert unpacked(path, "--as", "ragged", "--layers", "0")["seq_lens"].tolist() == [4]
    assert unpacked(path, "--as", "ragged", "--layers", "1")["seq_lens"].tolist() == [2]


def test_slack_pages_behind_a_length_stay_out_of_the_table(tmp_path):
    path = paged_file(tmp_path / "f", [([0, 1, 2], [0, 2, 3], 3, 2)], lengths=[1, 2])
    arrays = unpacked(path)
    assert arrays["block_tables"].tolist() == [[0], [2]]


def test_a_quantized_tensor_is_not_written_without_its_scales(tmp_path, capsys):
    path = tmp_path / "f"
    pages, scales = np.arange(4, dtype=np.int8), np.array([1, 2, 3, 4], np.float32)
    layout = hw.BlockPagedLayout(2, 2, 0, 1, "key", 0)
    scheme = hw.PerBlockAffine.symmetric(axis=0, block_size=2, scale_buffer_index=3, scale_type=hw.float32)
    buffers = [pages, np.array([0, 1], np.uint32), np.array([0, 2], np.uint32), scales]
    sizes = [buffer.nbytes for buffer in buffers]
    with hw.create(path) as writer:
        writer.add("k", hw.TensorDescriptor.build(hw.int8, (4, 1, 1), layout, sizes, quantization=scheme), buffers)
    for form in ("pages", "ragged", "padded"):
        assert unpack(path, "-o", tmp_path / "o.npz", "--as", form) == 1
        words = one_error(capsys, "hurray-unpack")
        assert words.startswith("layers.0.key is quantized (")
        assert words.endswith("; pass --dequantize")
        assert not (tmp_path / "o.npz").exists()
    for form in ("pages", "ragged", "padded"):
        assert unpacked(path, "--dequantize", "--as", form)["layers.0.key"].reshape(-1).tolist() == [0, 2, 6, 12]
    assert capsys.readouterr().err == ""


def test_a_quantized_dense_tensor_is_not_written_without_its_scale(tmp_path, capsys):
    path = tmp_path / "f"
    codes = np.array([0, 1, -2, 3], np.int8)
    scheme = hw.PerTensorAffine(0.5, 0)
    with hw.create(path) as writer:
        writer.add(
            "w", hw.TensorDescriptor.build(hw.int8, (4,), hw.RowMajorLayout(), [4], quantization=scheme), [codes]
        )
    assert unpack(path, "-o", tmp_path / "o.npz") == 1
    assert one_error(capsys, "hurray-unpack").startswith("w is quantized (")
    assert unpacked(path, "--dequantize")["w"].tolist() == [0, 0.5, -1, 1.5]


def test_what_was_written_is_said_in_json(tmp_path, capsys):
    path = packed(tmp_path, layers=(0,))
    assert unpack(path, "-o", tmp_path / "o.npz", "--as", "ragged", "--json") == 0
    tensor = {"dtype": "bfloat16", "shape": [17, HEADS, DIM]}
    assert json.loads(capsys.readouterr().out)["output"] == {
        "path": str(tmp_path / "o.npz"),
        "arrays": {
            "layers.0.key": tensor,
            "layers.0.value": tensor,
            "seq_lens": {"dtype": "int32", "shape": [2]},
        },
        "bytes": 2 * 17 * HEADS * DIM * 2 + 2 * 4,
    }
