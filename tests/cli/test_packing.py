"""hurray-pack: which arrays it takes, what of them it writes, and what it refuses."""

import os
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from cli_cases import (
    DIM,
    HEADS,
    LAYERS,
    LENS,
    PAGE,
    PAGES,
    STALE,
    STALE_BYTES,
    cache,
    check_summary,
    one_error,
    pack,
    packed,
    pool,
    tokens,
    unpack,
    write_folder,
    write_npz,
    write_safetensors,
)

import hurray_wire as hw


def refused(capsys, *arguments, code=1):
    assert pack(*arguments) == code
    return one_error(capsys, "hurray-pack")


def check_content(path, layers=LAYERS, seqs=(0, 1)):
    """Every token of every sequence, layer and role is the one that the formula finds in the dump."""
    with hw.load_snapshot(path) as snapshot:
        assert snapshot.layers == tuple(layers)
        assert snapshot.seq_lens.tolist() == [LENS[seq] for seq in seqs]
        for layer in layers:
            for role in ("key", "value"):
                tensor = getattr(snapshot[layer], role)
                assert tensor.descriptor.element_type == hw.bfloat16
                expected = np.concatenate([tokens(pool(layer, role), seq) for seq in seqs])
                assert tensor.ragged().view(np.uint16).tolist() == expected.tolist()


@pytest.mark.parametrize("write", [write_safetensors, write_npz, write_folder])
def test_a_dump_in_any_form_becomes_the_same_snapshot(write, tmp_path):
    source = write(tmp_path / {"write_npz": "d.npz"}.get(write.__name__, "dump"), cache())
    assert pack(source, "-o", tmp_path / "out.hrry") == 0
    check_content(tmp_path / "out.hrry")
    assert (tmp_path / "out.hrry").read_bytes() == packed(tmp_path).read_bytes()


def test_pages_and_slots_of_nobody_are_not_written(tmp_path):
    assert STALE_BYTES not in packed(tmp_path).read_bytes()


def test_keep_pool_writes_the_pool_as_it_is(tmp_path):
    path = packed(tmp_path, "--keep-pool")
    with hw.load_snapshot(path) as snapshot:
        assert snapshot[1].key.page_pool.view(np.uint16).tolist() == pool(1, "key").tolist()
        assert snapshot[1].key.block_table.tolist() == [5, 2, 5, 6, 1]
    check_content(path)


def test_layers_and_sequences_are_chosen_in_order(tmp_path):
    path = packed(tmp_path, "--layers", "2,0", "--seqs", "1,0,1")
    check_content(path, layers=(0, 2), seqs=(1, 0, 1))


def test_layers_that_are_not_chosen_are_not_read(tmp_path):
    arrays = cache()
    arrays["layers.1.key"] = np.zeros((3, 1), np.float16)  # fits nothing
    source = write_npz(tmp_path / "d.npz", arrays)
    assert pack(source, "-o", tmp_path / "out.hrry", "--layers", "0,2") == 0
    check_content(tmp_path / "out.hrry", layers=(0, 2))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--layers", "0-7", "there is no layer 3; there are 0-2"),
        ("--layers", "0-4294967294", "there is no layer 3; there are 0-2"),
        ("--seqs", "0,2", "there is no sequence 2; there are 0-1"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(option, value, words, tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache())
    assert refused(capsys, source, "-o", tmp_path / "o", option, value) == words
    assert not (tmp_path / "o").exists()


def test_identity_and_metadata_are_recorded(tmp_path):
    path = packed(tmp_path, "--model-id", "m", "--model-revision", "r", "--meta", "a=b=c", "--meta", "empty=")
    metadata = hw.load_snapshot(path).metadata
    expected = {"model.id": "m", "model.revision": "r", "a": "b=c", "empty": "", "source.layout": "split-nhd"}
    assert {key: metadata[key] for key in expected} == expected


def test_parts_of_a_cache_are_recorded_as_the_integers_they_are(tmp_path, capsys):
    given = {"tp.rank": 1, "tp.size": 2, "pp.rank": 0, "pp.size": 3, "first_token": 64}
    pairs = [word for key, value in given.items() for word in ("--meta", f"{key}={value}")]
    path = packed(tmp_path, *pairs, "--meta", "tp.note=1")
    with hw.load_snapshot(path) as snapshot:
        found = {key: snapshot.metadata[key] for key in given}
        assert found == given
        assert {type(value) for value in found.values()} == {int}
        assert snapshot.metadata["tp.note"] == "1"
    assert unpack(path, "--expect", "tp.rank=1,first_token=64") == 0


def test_int8_is_written_when_asked(tmp_path, capsys):
    halves = np.linspace(-2, 2, PAGES * PAGE * HEADS * DIM).astype(np.float16).reshape(PAGES, PAGE, HEADS, DIM)
    source = write_npz(tmp_path / "d.npz", {**cache(()), "layers.0.key": halves}, dtypes={})
    assert pack(source, "-o", tmp_path / "o", "--quantize", "int8", "--quiet") == 0
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert snapshot[0].key.descriptor.element_type == hw.int8
        real = snapshot[0].key.ragged(dequantize=True)
    expected = np.concatenate([tokens(halves, seq) for seq in (0, 1)]).astype(np.float32)
    assert np.abs(real - expected).max() <= 2 / 254 * (1 + 2**-15)
    integers = write_npz(tmp_path / "i.npz", {**cache(()), "layers.0.key": np.zeros_like(halves, np.int16)}, dtypes={})
    assert "int16" in refused(capsys, integers, "-o", tmp_path / "p", "--quantize", "int8")


def test_alignment_and_index_type_are_those_asked_for(tmp_path):
    path = packed(tmp_path, "--alignment", "65536", "--index-type", "uint64")
    assert int.from_bytes(path.read_bytes()[16:20], "little") == 65536
    with hw.load_snapshot(path) as snapshot:
        assert snapshot[0].key.block_table.dtype == np.uint64


def test_equal_pages_are_written_once_when_asked(tmp_path):
    arrays = cache()
    for layer in LAYERS:
        for role in ("key", "value"):
            arrays[f"layers.{layer}.{role}"][6] = arrays[f"layers.{layer}.{role}"][5]
    source = write_safetensors(tmp_path / "d", arrays)
    assert pack(source, "-o", tmp_path / "plain") == 0
    assert pack(source, "-o", tmp_path / "dedup", "--deduplicate") == 0
    pages = [hw.load_snapshot(tmp_path / name)[0].key.layout.num_pages for name in ("plain", "dedup")]
    assert pages == [4, 3]
    assert unpack(tmp_path / "plain", "--diff", tmp_path / "dedup") == 0


def test_a_name_in_zst_and_zstd_both_compress(tmp_path):
    source = write_safetensors(tmp_path / "d", cache())
    for target, options in (("a.hrry.zst", []), ("b", ["--zstd"]), ("c", ["--zstd=7"]), ("p", ["--zstd", "--planes"])):
        assert pack(*options, source, "-o", tmp_path / target) == 0
        assert (tmp_path / target).read_bytes()[:4] == bytes.fromhex("28b52ffd")
        check_content(tmp_path / target)
    assert (tmp_path / "a.hrry.zst").read_bytes() == (tmp_path / "b").read_bytes()


# Names of arrays


def test_arrays_that_are_not_used_are_named(tmp_path, capsys):
    arrays = {**cache(), "token_ids": np.arange(17, dtype=np.int32), "layers.01.key": np.zeros(1, np.int32)}
    source = write_safetensors(tmp_path / "d", arrays)
    assert pack(source, "-o", tmp_path / "o") == 0
    assert capsys.readouterr().err == "hurray-pack: not used: token_ids, layers.01.key\n"
    assert pack(source, "-o", tmp_path / "o", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_cache_of_no_layer_has_names_without_one(tmp_path):
    arrays = {"key": pool(0, "key"), "value": pool(0, "value"), **cache(())}
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o") == 0
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert snapshot.layers == (None,)
        assert snapshot[None].key.name == "key"


def test_a_dump_without_a_cache_says_what_it_has(tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", {"model.layers.0.k": pool(0, "key"), **cache(())})
    words = refused(capsys, source, "-o", tmp_path / "o")
    assert words == (
        f"{source}: there is no array 'layers.0.key' as the layout split-nhd has it; there are model.layers.0.k, "
        "block_tables, seq_lens"
    )


@pytest.mark.parametrize("missing", ["seq_lens", "block_tables"])
def test_a_dump_without_whole_tables_says_which_forms_there_are(missing, tmp_path, capsys):
    arrays = cache((0,))
    del arrays[missing]
    words = refused(capsys, write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o")
    assert "the block tables come as block_tables with seq_lens, or block_table with seq_ptr and seq_lens, or" in words


@pytest.mark.parametrize(
    "tables",
    [
        {"block_table": [5, 2, 5, 6, 1], "seq_ptr": [0, 2, 5], "seq_lens": LENS},
        {"block_table": [5, 2, 5, 6, 1], "seq_ptr": [0, 2, 5], "last_page_len": [2, 3]},
        {
            "token_slots": [
                [20, 21, 22, 23, 8, 9, -1, -1, -1, -1, -1],
                [20, 21, 22, 23, 24, 25, 26, 27, 4, 5, 6],
            ],
            "seq_lens": LENS,
        },
    ],
)
def test_block_tables_come_in_every_form_of_engines(tables, tmp_path):
    arrays = {name: array for name, array in cache().items() if name not in ("block_tables", "seq_lens")}
    arrays |= {name: np.array(values, np.int32) for name, values in tables.items()}
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o") == 0
    check_content(tmp_path / "o")


def test_a_page_that_is_not_there_is_refused_by_sequence_and_position(tmp_path, capsys):
    arrays = cache((0,))
    arrays["block_tables"][1, 1] = PAGES
    words = refused(capsys, write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o")
    assert "sequence 1 names page 7 of a pool of 7 at position 1" in words


# Layouts


@pytest.mark.parametrize(
    ("layout", "name", "axes"),
    [
        ("split-hnd", "layers.0.key", (PAGES, HEADS, PAGE, DIM)),
        ("vllm-kv-first", "layers.0", (2, PAGES, PAGE, HEADS, DIM)),
        ("trtllm-pool", "kv_cache", (PAGES, 3, 2, HEADS, PAGE, DIM)),
    ],
)
def test_arrays_of_a_layout_have_its_names_and_axes(layout, name, axes, tmp_path):
    keys = [np.stack([pool(layer, "key"), pool(layer, "value")]) for layer in LAYERS]  # [2, P, S, H, D] each
    stacked = np.stack(keys)  # [L, 2, P, S, H, D]
    arrays = {
        "split-hnd": {
            f"layers.{layer}.{role}": keys[layer][number].transpose(0, 2, 1, 3)
            for layer in LAYERS
            for number, role in enumerate(("key", "value"))
        },
        "vllm-kv-first": {f"layers.{layer}": keys[layer] for layer in LAYERS},
        "trtllm-pool": {"kv_cache": stacked.transpose(2, 0, 1, 4, 3, 5)},
    }[layout]
    assert arrays[name].shape == axes
    source = write_npz(tmp_path / "d.npz", {**arrays, **cache(())})
    assert pack(source, "-o", tmp_path / "o", "--layout", layout, "--page-size", PAGE) == 0
    check_content(tmp_path / "o")
    assert hw.load_snapshot(tmp_path / "o").metadata["source.layout"] == layout
    assert pack(source, "-o", tmp_path / "some", "--layout", layout, "--layers", "2,1") == 0
    check_content(tmp_path / "some", layers=(1, 2))


def dump_of(layout, path):
    """The same cache as an engine with this layout holds it, in an .npz file."""
    pools = {(layer, role): pool(layer, role) for layer in LAYERS for role in ("key", "value")}
    pairs = {f"layers.{layer}": np.stack([pools[layer, "key"], pools[layer, "value"]]) for layer in LAYERS}
    arrays = {
        "split-nhd": {f"layers.{layer}.{role}": bits for (layer, role), bits in pools.items()},
        "split-hnd": {f"layers.{layer}.{role}": bits.transpose(0, 2, 1, 3) for (layer, role), bits in pools.items()},
        "sglang-slots": {
            f"layers.{layer}.{role}": bits.reshape(-1, HEADS, DIM) for (layer, role), bits in pools.items()
        },
        "vllm-kv-first": pairs,
        "trtllm-pool": {"kv_cache": np.stack(list(pairs.values())).transpose(2, 0, 1, 4, 3, 5)},
    }[layout]
    return write_npz(path, {**arrays, **cache(())})


@pytest.mark.parametrize("layout", ["split-nhd", "split-hnd", "sglang-slots", "vllm-kv-first", "trtllm-pool"])
def test_the_layout_auto_is_the_one_that_names_and_shapes_allow(layout, tmp_path):
    source = dump_of(layout, tmp_path / "d.npz")
    sizes = ["--page-size", PAGE, "--num-heads", HEADS]
    assert pack(source, "-o", tmp_path / "o", "--layout", "auto", *sizes) == 0
    check_content(tmp_path / "o")
    assert pack(source, "-o", tmp_path / "named", "--layout", layout, *sizes) == 0
    assert (tmp_path / "o").read_bytes() == (tmp_path / "named").read_bytes()
    assert pack(source, "-o", tmp_path / "o", "--layout", "auto", *sizes, "--layers", "2,1") == 0
    check_content(tmp_path / "o", layers=(1, 2))


def test_the_layout_auto_says_which_there_could_be(tmp_path, capsys):
    source = dump_of("split-hnd", tmp_path / "d.npz")
    words = refused(capsys, source, "-o", tmp_path / "o", "--layout", "auto")
    assert words == f"{source}: the arrays could be split-nhd, split-hnd, jax-paged; name one with --layout"
    ragged = {"layers.0.key": np.zeros((17, HEADS, DIM), np.uint16), "seq_lens": np.array(LENS)}
    dense = write_npz(tmp_path / "n.npz", ragged)
    words = refused(capsys, dense, "-o", tmp_path / "o", "--layout", "auto")
    assert words == f"{dense}: the arrays could be sglang-slots, dense-thd; name one with --layout"
    assert not (tmp_path / "o").exists()


def test_the_layout_auto_takes_arrays_by_their_names(tmp_path, capsys):
    """Four axes, the third even: jax-rpa has such arrays as well, with keys and values in them, but not as fused."""
    arrays = {"layers.0": pool(0, "key"), **cache(())}
    sizes = ["--page-size", PAGE, "--num-heads", 1, "--head-dim", DIM, "--quiet"]
    assert pack(write_npz(tmp_path / "d.npz", arrays), "-o", tmp_path / "o", "--layout", "auto", *sizes) == 0
    assert hw.load_snapshot(tmp_path / "o").metadata["source.layout"] == "jax-rpa"
    fused = write_npz(tmp_path / "f.npz", {"layers.0.fused": pool(0, "key"), **cache(())})
    assert "no layout" in refused(capsys, fused, "-o", tmp_path / "p", "--layout", "auto", *sizes)
    latent = {"layers.0.fused": pool(0, "key").reshape(PAGES, PAGE, HEADS * DIM), **cache(())}
    assert pack(write_npz(tmp_path / "l.npz", latent), "-o", tmp_path / "p", "--layout", "auto") == 0
    assert hw.load_snapshot(tmp_path / "p").metadata["source.layout"] == "mla"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "the arrays have the names and shapes of no layout"),
        ({"k": np.zeros((7, 4, 2, 3), np.float16)}, "the arrays have the names and shapes of no layout"),
        ({"layers.0.key": np.zeros((7, 4), np.float16)}, "the arrays have the names and shapes of no layout"),
        ({"layers.0.fused": np.zeros((7, 4, 656), np.uint8)}, "fp8_ds_mla records"),
    ],
)
def test_the_layout_auto_of_what_is_no_cache_is_refused(arrays, words, tmp_path, capsys):
    source = write_npz(tmp_path / "d.npz", {**arrays, **cache(())}, dtypes={})
    assert words in refused(capsys, source, "-o", tmp_path / "o", "--layout", "auto")


def test_a_layout_with_two_forms_that_fit_is_refused_until_the_form_is_said(tmp_path, capsys):
    both = np.stack([pool(0, "key"), pool(0, "value")], axis=1)
    source = write_npz(tmp_path / "d.npz", {"layers.0": both, **cache(())})
    arguments = (source, "-o", tmp_path / "o", "--layout", "vllm-blocks-first")
    words = refused(capsys, *arguments)
    assert "say --form nhd or --form hnd, or --page-size and --num-heads" in words
    for said in (["--form", "nhd"], ["--page-size", PAGE], ["--num-heads", HEADS]):
        assert pack(*arguments, *said) == 0
        check_content(tmp_path / "o", layers=(0,))


@pytest.mark.parametrize(
    ("renamed", "missing", "there"),
    [
        ("layers.0.key", "layers.0.key", "layers.1.key"),
        ("layers.1.value", "layers.1.value", "layers.0.value"),
        ("layers.2.key", "layers.2.key", "layers.0.key"),
    ],
)
def test_a_layer_without_what_the_others_have_is_refused(renamed, missing, there, tmp_path, capsys):
    arrays = cache()
    arrays[f"{renamed}s"] = arrays.pop(renamed)
    source = write_safetensors(tmp_path / "d", arrays)
    words = refused(capsys, source, "-o", tmp_path / "o")
    assert words.startswith(f"{source}: there is no {missing!r}, though there is {there!r}")
    assert not (tmp_path / "o").exists()
    others = [layer for layer in LAYERS if not renamed.startswith(f"layers.{layer}.")]
    assert pack(source, "-o", tmp_path / "o", "--layers", ",".join(map(str, others))) == 0
    check_content(tmp_path / "o", layers=others)


def test_a_cache_of_keys_alone_is_packed(tmp_path):
    arrays = {name: array for name, array in cache().items() if not name.endswith(".value")}
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o") == 0
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert [tensor.layout.kv_role for tensor in snapshot.tensors] == ["key"] * 3


@pytest.mark.parametrize(
    ("option", "value"), [("--page-size", 3), ("--num-heads", 3), ("--head-dim", 4), ("--value-head-dim", 4)]
)
def test_declared_sizes_are_checked_against_the_arrays(option, value, tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache((0,)))
    assert "declared" in refused(capsys, source, "-o", tmp_path / "o", option, value)


def test_a_page_size_that_the_dump_tells_is_checked(tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache((0,)), metadata={"page_size": "16", "model": "m"})
    assert "where the caller declared 16" in refused(capsys, source, "-o", tmp_path / "o")
    assert pack(source, "-o", tmp_path / "o", "--page-size", PAGE) == 0
    for told in ("4", "", "four", "-4", "4.0", "0", "4" * 5000):
        write_safetensors(tmp_path / "d", cache((0,)), metadata={"page_size": told})
        assert pack(source, "-o", tmp_path / "o", "--quiet") == 0


@pytest.mark.parametrize("form", ["batch", "left-padded batch", "ragged"])
def test_a_cache_without_pages_is_cut_into_pages(form, tmp_path, capsys):
    arrays = {"seq_lens": np.array(LENS, np.int32)}
    for layer in LAYERS:
        for role in ("key", "value"):
            sequences = [tokens(pool(layer, role), seq) for seq in (0, 1)]
            if form == "ragged":
                arrays[f"layers.{layer}.{role}"] = np.concatenate(sequences)
                continue
            padded = np.full((2, HEADS, max(LENS), DIM), STALE, np.uint16)
            for seq, length in enumerate(LENS):
                start = max(LENS) - length if form.startswith("left") else 0
                padded[seq, :, start : start + length] = sequences[seq].transpose(1, 0, 2)
            arrays[f"layers.{layer}.{role}"] = padded
    source = write_safetensors(tmp_path / "d", arrays)
    command = [source, "-o", tmp_path / "o", "--layout", "dense-thd"]
    command += ["--left-padded"] if form.startswith("left") else []
    assert pack(*command, "--page-size", PAGE) == 0
    assert "3 layers (0-2), 2 sequences, 17 tokens\n5 pages a layer, " in capsys.readouterr().out
    check_content(tmp_path / "o")
    assert STALE_BYTES not in (tmp_path / "o").read_bytes()
    assert pack(*command, "--layers", "2,0", "--seqs", "1") == 0
    check_content(tmp_path / "o", layers=(0, 2), seqs=(1,))
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert snapshot.metadata["source.layout"] == "dense-thd"
        assert snapshot[0].key.layout.page_size == 16


def test_a_cache_without_pages_needs_lengths_and_whole_layers(tmp_path, capsys):
    padded = np.zeros((2, HEADS, max(LENS), DIM), np.uint16)
    arrays = {"layers.0.key": padded, "layers.1.key": padded, "layers.1.value": padded}
    source = write_safetensors(tmp_path / "d", arrays)
    command = (source, "-o", tmp_path / "o", "--layout", "dense-thd")
    assert "there is no array 'seq_lens'" in refused(capsys, *command)
    source = write_safetensors(tmp_path / "d", {**arrays, "seq_lens": np.array(LENS, np.int32)})
    assert "there is no 'layers.0.value', though there is 'layers.1.value'" in refused(capsys, *command)
    assert "there is no sequence 2; there are 0-1" in refused(capsys, *command, "--seqs", "2")


# Element types


def test_bits_are_taken_as_the_type_that_the_dump_tells(tmp_path):
    arrays = cache((0,))
    arrays["layers.0.value"] = (pool(0, "value") & 0xFF).astype(np.uint8)
    source = write_npz(tmp_path / "d.npz", arrays, {"layers.0.key": "bfloat16", "layers.0.value": "float8_e5m2"})
    assert pack(source, "-o", tmp_path / "o") == 0
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert snapshot[0].key.descriptor.element_type == hw.bfloat16
        assert snapshot[0].value.descriptor.element_type == hw.float8_e5m2


def test_bits_that_the_dump_says_nothing_of_are_what_the_user_says(tmp_path, capsys):
    nameless = {name: array.view("V2") if array.dtype == np.uint16 else array for name, array in cache().items()}
    source = tmp_path / "d.npz"
    np.savez(source, **nameless)
    assert "bare bytes without a type" in refused(capsys, source, "-o", tmp_path / "o")
    assert pack(source, "-o", tmp_path / "o", "--dtype", "bfloat16") == 0
    check_content(tmp_path / "o")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('{"layers.0.key": "bfloat61"}', "an element type 'bfloat61', which there is not"),
        ('{"layers.0.key": 7}', "an element type 7, which there is not"),
        ('{"layers.0.key": "float8_e4m3"}', "layers.0.key holds uint16, not the bits of float8_e4m3fn"),
        ("{", "the entry 'dtypes' is not JSON"),
        ("[" * 100_000, "the entry 'dtypes' is not JSON"),
        ("[]", "the entry 'dtypes' is not a JSON object"),
    ],
)
def test_an_entry_of_types_that_makes_no_sense_is_refused(entry, words, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", **cache((0,)), dtypes=np.array(entry))
    assert words in refused(capsys, tmp_path / "d.npz", "-o", tmp_path / "o")


def test_fnuz_float8_is_refused_by_its_name(tmp_path, capsys):
    arrays = {name: array.astype(np.uint8) if array.ndim == 4 else array for name, array in cache((0,)).items()}
    kinds = {"layers.0.key": "F8_E4M3FNUZ", "layers.0.value": "F8_E4M3FNUZ"}
    source = write_safetensors(tmp_path / "d", arrays, kinds)
    assert "float8_e4m3fnuz" in refused(capsys, source, "-o", tmp_path / "o")


def test_scales_of_a_float8_cache_go_along(tmp_path):
    arrays = {name: array.astype(np.uint8) if array.ndim == 4 else array for name, array in cache((0,)).items()}
    arrays["layers.0.key.scale"] = np.array([0.5, 4.0], np.float32)
    arrays["layers.0.value.scale"] = np.array(0.25, np.float32)
    kinds = {"layers.0.key": "F8_E4M3", "layers.0.value": "F8_E4M3"}
    assert pack(write_safetensors(tmp_path / "d", arrays, kinds), "-o", tmp_path / "o") == 0
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        real = snapshot[0].key.ragged(dequantize=True)
    stored = np.concatenate([tokens(arrays["layers.0.key"], seq) for seq in (0, 1)]).view(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(real, stored.astype(np.float32) * np.array([[0.5], [4.0]]), equal_nan=True)


def test_a_scale_of_what_is_not_packed_is_refused(tmp_path, capsys):
    arrays = {**cache((0,)), "layers.3.key.scale": np.array(0.5, np.float32)}
    source = write_safetensors(tmp_path / "d", arrays)
    assert "a scale is given for 'layers.3.key', which is not written" in refused(capsys, source, "-o", tmp_path / "o")
    assert pack(source, "-o", tmp_path / "o", "--layers", "0") == 0


# Damaged and foreign input


@pytest.mark.parametrize("content", [b"x", b"\0" * 64, b"PK\x03\x04" + b"\0" * 40, b"\xff" * 8 + b"{}"])
def test_a_file_that_is_no_dump_is_refused(content, tmp_path, capsys):
    (tmp_path / "d").write_bytes(content)
    assert refused(capsys, tmp_path / "d", "-o", tmp_path / "o").startswith(f"{tmp_path / 'd'}: ")


def test_a_dump_cut_anywhere_is_refused(tmp_path, capsys):
    for write in (write_safetensors, write_npz):
        whole = tmp_path / f"{write.__name__}.npz"
        write(whole, cache((0,)))
        data = whole.read_bytes()
        for length in range(0, len(data), 61):
            whole.write_bytes(data[:length])
            refused(capsys, whole, "-o", tmp_path / "o")


def test_pickled_arrays_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "d.npz", **{**cache((0,)), "seq_lens": np.array([object(), None])})
    assert "seq_lens: cannot be read: " in refused(capsys, tmp_path / "d.npz", "-o", tmp_path / "o")


def test_two_arrays_of_one_name_are_refused(tmp_path, capsys):
    source = write_npz(tmp_path / "d.npz", cache((0,)))
    with zipfile.ZipFile(source, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("seq_lens.npy", b"")
    assert "two arrays have the same name" in refused(capsys, source, "-o", tmp_path / "o")


# What it says


def test_the_summary_tells_pages_written_and_pages_there(tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache())
    assert pack(source, "-o", tmp_path / "o") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path / 'o'}: 3 layers (0-2), 2 sequences, 17 tokens"
    assert second.startswith("4 of 7 pages a layer, ")


def test_the_summary_for_programs_is_json(tmp_path, capsys):
    source = write_safetensors(tmp_path / "d", cache())
    assert pack(source, "-o", tmp_path / "o", "--json") == 0
    check_summary(capsys.readouterr().out, tmp_path / "o")


@pytest.mark.parametrize("lens", [[0, 0], []])
def test_a_batch_without_tokens_is_packed(lens, tmp_path, capsys):
    arrays = {**cache((0,)), "block_tables": np.empty((len(lens), 3), np.int32), "seq_lens": np.array(lens, np.int32)}
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "o") == 0
    assert "0 of 7 pages a layer" in capsys.readouterr().out
    assert hw.load_snapshot(tmp_path / "o").seq_lens.tolist() == lens


# .npy files by hand: the header of a version 1.0 file, and 48 bytes of elements
NPY_FAULTS = {
    "a bracket that is not closed": "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4",
    "no Python": "{'descr': '<,4', 'fortran_order': False, 'shape': (3, 4), } 1 1",
    "a type of nothing": "{'descr': (), 'fortran_order': False, 'shape': (3, 4), }",
    "a size that is no number": "{'descr': 'f4,f4', 'fortran_order': False, 'shape': (True,), }",
    "brackets within brackets": "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 300 + ")" * 300 + ", }",
    "signs before a number": "{'descr': " + "-" * 9000 + "1, 'fortran_order': False, 'shape': (3, 4), }",
    "a negative size of elements of no bytes": "{'descr': {}, 'fortran_order': True, 'shape': (-1,), }",
    "elements of no bytes": "{'descr': '|V0', 'fortran_order': True, 'shape': (4, 0), }",
    "a negative size": "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4), }",
    "more than there is": "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4, 2), }",
    "more than there can be": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 62}, 4), }}",
    "more than can be counted": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 80},), }}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
    "not the header of an array": "'descr'",
    "bytes that are no text": "\xff\xfe",
}


def npy(header, version=(1, 0)):
    raw = header.encode("latin-1")
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(raw)) + raw + bytes(48)


@pytest.mark.parametrize("form", ["folder", "npz"])
@pytest.mark.parametrize("fault", NPY_FAULTS)
def test_a_damaged_npy_file_is_one_line(fault, form, tmp_path, capsys):
    source = write_folder(tmp_path / "dump", cache())
    (tmp_path / "dump" / "layers.1.value.npy").write_bytes(npy(NPY_FAULTS[fault]))
    if form == "npz":
        with zipfile.ZipFile(tmp_path / "dump.npz", "w") as archive:
            for file in (tmp_path / "dump").iterdir():
                archive.write(file, file.name)
        source = tmp_path / "dump.npz"
    assert "layers.1.value" in refused(capsys, source, "-o", tmp_path / "o")


def test_a_pipe_with_the_name_of_an_array_is_one_line(tmp_path, capsys):
    source = write_folder(tmp_path / "dump", cache())
    key = tmp_path / "dump" / "layers.0.key.npy"
    key.rename(tmp_path / "key")
    os.mkfifo(key)
    assert f"{key}: not a regular file" in refused(capsys, source, "-o", tmp_path / "o")
    key.unlink()
    key.mkdir()
    assert f"{key}: not a regular file" in refused(capsys, source, "-o", tmp_path / "o")
    key.rmdir()
    key.symlink_to(tmp_path / "key")
    assert pack(source, "-o", tmp_path / "o", "--quiet") == 0
    check_content(tmp_path / "o")


def test_an_npy_file_of_a_version_for_records_is_one_line(tmp_path, capsys):
    source = write_folder(tmp_path / "dump", cache())
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }"
    (tmp_path / "dump" / "layers.1.value.npy").write_bytes(npy(header, (3, 0)))
    assert "version 3.0" in refused(capsys, source, "-o", tmp_path / "o")


def test_a_file_that_python_2_has_written_packs_without_a_warning(tmp_path, capsys):
    source = write_folder(tmp_path / "dump", cache())
    lengths = npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2L,), }")[:-48] + struct.pack("<2i", 6, 11)
    (tmp_path / "dump" / "seq_lens.npy").write_bytes(lengths)
    assert pack(source, "-o", tmp_path / "o", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "scale", [np.array(1 + 2j), np.array([1, 2], np.complex64), np.array("0.5"), np.array([True, True]), np.array(b"1")]
)
def test_a_scale_that_is_no_real_number_is_refused(scale, tmp_path, capsys):
    source = write_npz(tmp_path / "dump.npz", {**cache((0,)), "layers.0.key.scale": scale})
    assert "layers.0.key.scale holds" in refused(capsys, source, "-o", tmp_path / "o")


def test_a_scale_beyond_float32_is_refused(tmp_path, capsys):
    source = write_npz(tmp_path / "dump.npz", {**cache((0,)), "layers.0.key.scale": np.array(1e300)})
    assert "not a finite float32 above 0" in refused(capsys, source, "-o", tmp_path / "o")
