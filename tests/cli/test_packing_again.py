"""hurray-pack of a Hurray file: the same sequences in another form, or some of them, and what means nothing then."""

import subprocess

import numpy as np
import pytest
from cli_cases import (
    LENS,
    PAGE,
    STALE_BYTES,
    cache,
    check_summary,
    finished,
    one_error,
    pack,
    packed,
    pool,
    process,
    tokens,
    unpack,
    write_npz,
    write_safetensors,
)

import hurray_wire as hw

ZSTD = bytes.fromhex("28b52ffd")


def check(path, layers=(0, 1, 2), seqs=(0, 1)):
    """Whole, and every token of these layers and sequences is the one that the formula finds in the dump."""
    with hw.load_snapshot(path) as snapshot:
        snapshot.verify()
        assert snapshot.layers == tuple(layers)
        assert snapshot.seq_lens.tolist() == [LENS[seq] for seq in seqs]
        for layer in layers:
            for role in ("key", "value"):
                found = getattr(snapshot[layer], role).ragged().view(np.uint16)
                assert found.tolist() == np.concatenate([tokens(pool(layer, role), seq) for seq in seqs]).tolist()


def refused(capsys, *arguments, code=1):
    capsys.readouterr()
    assert pack(*arguments) == code
    return one_error(capsys, "hurray-pack")


@pytest.fixture
def dump(tmp_path):
    return write_safetensors(tmp_path / "dump", cache())


@pytest.mark.parametrize("before", [[], ["--zstd"], ["--zstd", "--planes"]])
@pytest.mark.parametrize("after", [[], ["--zstd"], ["--zstd=7"], ["--zstd", "--planes"]])
def test_every_form_becomes_every_form_as_if_it_had_been_packed_so(before, after, tmp_path):
    path = packed(tmp_path, *before)
    assert pack(path, "-o", tmp_path / "again", "--quiet", *after) == 0
    check(tmp_path / "again")
    (tmp_path / "direct").mkdir()
    assert (tmp_path / "again").read_bytes() == packed(tmp_path / "direct", *after).read_bytes()


def test_a_name_in_zst_compresses(tmp_path):
    assert pack(packed(tmp_path), "-o", tmp_path / "small.hrry.zst") == 0
    assert (tmp_path / "small.hrry.zst").read_bytes()[:4] == ZSTD
    check(tmp_path / "small.hrry.zst")


def test_layers_and_sequences_are_chosen_in_order(tmp_path):
    assert pack(packed(tmp_path), "-o", tmp_path / "part", "--layers", "2,0", "--seqs", "1,0,1") == 0
    check(tmp_path / "part", layers=(0, 2), seqs=(1, 0, 1))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--layers", "1-4294967294", "there is no layer 3; there are 0-2"),
        ("--seqs", "0,2", "there is no sequence 2; there are 0-1"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(option, value, words, tmp_path, capsys):
    path = packed(tmp_path)
    assert refused(capsys, path, "-o", tmp_path / "o", option, value) == words
    assert not (tmp_path / "o").exists()


def test_the_pool_is_kept_when_asked_and_trimmed_otherwise(tmp_path):
    path = packed(tmp_path, "--keep-pool")
    assert pack(path, "-o", tmp_path / "kept", "--keep-pool") == 0
    with hw.load_snapshot(tmp_path / "kept") as snapshot:
        assert snapshot[1].key.page_pool.view(np.uint16).tolist() == pool(1, "key").tolist()
    assert pack(path, "-o", tmp_path / "trimmed") == 0
    assert STALE_BYTES in path.read_bytes()
    assert STALE_BYTES not in (tmp_path / "trimmed").read_bytes()
    check(tmp_path / "trimmed")


def test_metadata_stays_but_for_what_is_given(tmp_path):
    path = packed(tmp_path, "--model-id", "m", "--model-revision", "r", "--meta", "a=1", "--meta", "b=2")
    given = ["--model-id", "n", "--meta", "b=3", "--meta", "tp.rank=1", "--meta", "tp.size=2"]
    assert pack(path, "-o", tmp_path / "o", *given) == 0
    metadata = hw.load_snapshot(tmp_path / "o").metadata
    expected = {"model.id": "n", "model.revision": "r", "a": "1", "b": "3", "tp.rank": 1, "tp.size": 2}
    expected["source.layout"] = "split-nhd"
    assert {key: metadata[key] for key in expected} == expected


@pytest.mark.parametrize("meta", [["--meta", "tp.rank=0"], ["--meta", "hurray_wire.snapshot=2"]])
def test_metadata_that_cannot_be_is_refused(meta, tmp_path, capsys):
    assert "(rule snapshot." in refused(capsys, packed(tmp_path), "-o", tmp_path / "o", *meta)
    assert not (tmp_path / "o").exists()


def test_alignment_is_that_asked_for(tmp_path):
    path = packed(tmp_path, "--alignment", "65536")
    for asked, found in (([], 4096), (["--alignment", "8192"], 8192)):
        assert pack(path, "-o", tmp_path / "o", *asked) == 0
        assert int.from_bytes((tmp_path / "o").read_bytes()[16:20], "little") == found
        check(tmp_path / "o")


@pytest.mark.parametrize("options", [[], ["--zstd"], ["--zstd", "--planes"]])
def test_the_file_may_be_replaced_by_what_it_is_written_as(options, tmp_path):
    path = packed(tmp_path, *options)
    (tmp_path / "link").symlink_to(path)
    assert pack(path, "-o", path, "--layers", "0-1") == 0
    check(path, layers=(0, 1))
    assert pack(path, "-o", tmp_path / "link", "--layers", "1", "--zstd", "--planes") == 0
    check(path, layers=(1,))
    assert (tmp_path / "link").is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache.hrry", "link", "source.safetensors"]


def test_a_file_that_cannot_be_written_again_stays(tmp_path, capsys):
    path = packed(tmp_path)
    before = path.read_bytes()
    refused(capsys, path, "-o", path, "--meta", "pp.size=4")
    assert path.read_bytes() == before


def test_the_lengths_that_a_file_lacks_are_given(tmp_path, capsys):
    path, bare = packed(tmp_path), tmp_path / "bare"
    with hw.open(path) as file, hw.create(bare) as writer:
        for name in file.names:
            if name != "seq_lens":
                writer.add(name, file[name].descriptor, file[name].buffers)
    assert refused(capsys, bare, "-o", tmp_path / "o").endswith("--seq-lens gives them")
    assert pack(bare, "-o", tmp_path / "o", "--seq-lens", "6,11") == 0
    check(tmp_path / "o")


def test_what_belongs_to_no_layer_goes_along(tmp_path, capsys):
    arrays = {"key": pool(0, "key"), "value": pool(0, "value"), **cache(())}
    assert pack(write_safetensors(tmp_path / "d", arrays), "-o", tmp_path / "a") == 0
    assert pack(tmp_path / "a", "-o", tmp_path / "b") == 0
    assert "a cache of no layer, 2 sequences, 17 tokens" in capsys.readouterr().out
    assert unpack(tmp_path / "a", "--diff", tmp_path / "b") == 0
    assert "there is no layer 0; there are none" in refused(capsys, tmp_path / "a", "-o", tmp_path / "c", "--layers=0")


def test_a_file_of_other_tensors_is_no_snapshot(tmp_path, capsys):
    descriptor = hw.TensorDescriptor.build(hw.uint8, [3], hw.RowMajorLayout(), [3])
    with hw.create(tmp_path / "t") as writer:
        writer.add("t", descriptor, [b"abc"])
    words = refused(capsys, tmp_path / "t", "-o", tmp_path / "o")
    assert words == f"{tmp_path / 't'}: no snapshot: none of its tensors (1) is block-paged"


def test_a_snapshot_of_no_layer_is_written_again(tmp_path, capsys):
    path = tmp_path / "none"
    with hw.create(path, metadata={"hurray_wire.snapshot": 1, "note": "x"}):
        pass
    assert pack(path, "-o", tmp_path / "o") == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'o'}: a cache of no layer, 0 sequences, 0 tokens\n")
    with hw.load_snapshot(tmp_path / "o") as snapshot:
        assert snapshot.layers == ()
        assert snapshot.metadata["note"] == "x"


# Where it comes from, and where it goes


@pytest.mark.parametrize("options", [[], ["--zstd"], ["--zstd", "--planes"]])
def test_a_file_comes_from_standard_input(options, tmp_path):
    path = packed(tmp_path, *options)
    with path.open("rb") as file:
        code, _, err = finished("pack", "-", "-o", tmp_path / "o", "--quiet", "--layers", "1", stdin=file)
    assert (code, err) == (0, b"")
    check(tmp_path / "o", layers=(1,))


@pytest.mark.parametrize("target", ["o", "o.zst"])
def test_a_stream_becomes_a_file(target, dump, tmp_path):
    with process("pack", dump, "-o", "-", "--quiet", stdout=subprocess.PIPE) as sender:
        code, _, err = finished("pack", "-", "-o", tmp_path / target, "--quiet", stdin=sender.stdout)
    assert (code, err, sender.returncode) == (0, b"", 0)
    check(tmp_path / target)
    _, stream, _ = finished("pack", dump, "-o", "-", "--quiet")
    (tmp_path / "stream").write_bytes(stream)
    assert pack(tmp_path / "stream", "-o", tmp_path / "p", "--seqs", "1", "--quiet") == 0
    check(tmp_path / "p", seqs=(1,))


@pytest.mark.parametrize("options", [[], ["--zstd", "--planes"]])
def test_a_file_becomes_a_stream(options, tmp_path):
    path = packed(tmp_path, *options)
    choice = ["--layers", "0,2", "--seqs", "1", "--model-id", "m"]
    with process("pack", path, "-o", "-", *choice, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sender:
        code, _, err = finished("pack", "-", "-o", tmp_path / "o", "--quiet", stdin=sender.stdout)
        told = sender.stderr.read()
    assert (code, err, sender.returncode) == (0, b"", 0)
    assert told == b"hurray-pack: 2 layers (0,2), 1 sequence, 11 tokens\n"
    check(tmp_path / "o", layers=(0, 2), seqs=(1,))
    assert hw.load_snapshot(tmp_path / "o").metadata["model.id"] == "m"


def test_a_url_is_read_like_a_file(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/hurray-again/cache.hrry", packed(tmp_path).read_bytes())
    try:
        assert pack("memory://hurray-again/cache.hrry", "-o", tmp_path / "o", "--layers", "1") == 0
    finally:
        fsspec.filesystem("memory").rm("/hurray-again", recursive=True)
    check(tmp_path / "o", layers=(1,))
    assert pack((tmp_path / "cache.hrry").as_uri(), "-o", tmp_path / "o") == 0
    check(tmp_path / "o")


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_damaged_input_is_one_line_and_no_output(kind, dump, tmp_path, capsys):
    whole = packed(tmp_path).read_bytes() if kind == "file" else finished("pack", dump, "-o", "-", "--quiet")[1]
    cut = tmp_path / "cut"
    for length in (4, 9, 63, 64, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        assert refused(capsys, cut, "-o", tmp_path / "o").startswith(f"{cut}: "), length
        assert not (tmp_path / "o").exists()
    cut.write_bytes(whole + b"x")
    assert str(cut) in refused(capsys, cut, "-o", tmp_path / "o")


# Options


@pytest.mark.parametrize(
    "option",
    [
        ["--layout", "split-nhd"],
        ["--layout", "auto"],
        ["--form", "nhd"],
        ["--left-padded"],
        ["--page-size", "4"],
        ["--num-heads", "2"],
        ["--head-dim", "3"],
        ["--value-head-dim", "3"],
        ["--dtype", "bfloat16"],
        ["--deduplicate"],
        ["--index-type", "auto"],
        ["--quantize", "int8"],
    ],
)
def test_an_option_about_arrays_is_refused_even_if_it_says_what_is_so(option, tmp_path, capsys):
    path = packed(tmp_path)
    words = refused(capsys, path, "-o", tmp_path / "o", *option, code=2)
    assert words == f"{option[0]} is about arrays, and {path} is a Hurray file already"
    assert not (tmp_path / "o").exists()


def test_all_options_about_arrays_are_named_at_once(tmp_path, capsys):
    path = packed(tmp_path)
    words = refused(capsys, path, "-o", "o", "--page-size=4", "--deduplicate", "--layout=mla", "--layers=0", code=2)
    assert words == f"--layout, --page-size and --deduplicate are about arrays, and {path} is a Hurray file already"


def test_lengths_of_a_dump_are_an_array_of_it(dump, tmp_path, capsys):
    assert "in the array seq_lens" in refused(capsys, dump, "-o", tmp_path / "o", "--seq-lens", "6,11", code=2)


def test_a_stream_is_not_written_over_the_file_it_comes_from(tmp_path):
    path = packed(tmp_path)
    before = path.read_bytes()
    for source in (path, "-"):
        with path.open("ab") as out, path.open("rb") as file:
            code, _, err = finished("pack", source, "-o", "-", stdin=file, stdout=out)
        said = "standard input" if source == "-" else path
        expected = f"hurray-pack: error: standard output is {said} itself, which is read while it is written\n"
        assert (code, err.decode()) == (2, expected)
    assert path.read_bytes() == before


# What it says


def test_the_summary_is_like_that_of_a_dump(tmp_path, capsys):
    path = packed(tmp_path, "--keep-pool")
    assert pack(path, "-o", tmp_path / "o", "--layers", "1", "--seqs", "0") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path / 'o'}: 1 layer (1), 1 sequence, 6 tokens"
    assert second.startswith("2 of 7 pages a layer, ")
    assert pack(path, "-o", tmp_path / "o", "--json") == 0
    check_summary(capsys.readouterr().out, tmp_path / "o")


def test_numbers_of_a_quantized_cache_stay_what_they_are(tmp_path):
    halves = np.linspace(-2, 2, pool(0, "key").size).astype(np.float16).reshape(pool(0, "key").shape)
    source = write_npz(tmp_path / "d.npz", {**cache(()), "layers.0.key": halves}, dtypes={})
    assert pack(source, "-o", tmp_path / "a", "--quantize", "int8") == 0
    assert pack(tmp_path / "a", "-o", tmp_path / "b.zst", "--seqs", "1") == 0
    with hw.load_snapshot(tmp_path / "a") as before, hw.load_snapshot(tmp_path / "b.zst") as after:
        assert after[0].key.descriptor.element_type == hw.int8
        assert after[0].key.layout.page_size == PAGE
        expected = before[0].key.gather([1], dequantize=True).values
        assert np.array_equal(after[0].key.gather([0], dequantize=True).values, expected)
