"""The programs in other languages write what the cases say, read one another, and refuse what must be refused.

The judge of all of them is ``tools/plain_decoder.py``; what a case must hold is derived here from its formula.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from requirements import reference

import hurray_wire as hw

from .cases import EXPECTED, MULTI, MULTI_METADATA, MULTI_TOKENS, sequence
from .damaged import damaged, sections
from .programs import CASES, FILES, READERS, STREAMS, WRITERS, Bench, building, decode, load, plain

write_fixtures = load("tools/foreign", "write_fixtures")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("writer", WRITERS)
def test_written_case_holds_what_its_formula_says(bench: Bench, writer: str, case: str) -> None:
    names, buffers = EXPECTED[case]
    document = decode(bench.case(writer, case), CASES[case])
    tensors = document["tensors"]
    if case == "group_stream":
        assert tensors[0]["descriptor"]["layout"] == {"composition_rule": 3, "combine_op": 0, "member_count": 6}
        kv_section = tensors.pop(1)["buffers"][0]
        metadata = plain._metadata(kv_section, 0, len(kv_section))
        assert [(entry["key"], entry["kind"], entry["value"]) for entry in metadata] == MULTI_METADATA
    if names is not None:
        assert [tensor["name"] for tensor in tensors] == names
    assert [tensor["buffers"] for tensor in tensors] == buffers


@pytest.mark.parametrize("writer", WRITERS)
def test_multi_sequences_come_out_as_the_formula_puts_them(bench: Bench, writer: str) -> None:
    document = decode(bench.case(writer, "multi"), "file")
    row = 2 * 4 * 2  # bytes of a token: heads, dimensions, bfloat16
    for tensor, (pool, _, _) in zip(document["tensors"], MULTI, strict=False):
        found = plain.gather(tensor["descriptor"], tensor["buffers"], [10, 7, 0])
        assert found == [sequence(pool, tokens, row) for tokens in MULTI_TOKENS]


@pytest.mark.parametrize("writer", WRITERS)
def test_metadata_and_flags_are_those_of_the_case(bench: Bench, writer: str) -> None:
    multi = decode(bench.case(writer, "multi"), "file")
    *entries, checksums = multi["kv_metadata"]
    assert [(entry["key"], entry["kind"], entry["value"]) for entry in entries] == MULTI_METADATA
    assert (checksums["key"], checksums["element_kind"]) == ("hurray_wire.crc32c", "u64")
    assert len(checksums["value"]) == 4 * (1 + 3) + 2
    assert multi["header"]["file_flags"] == 1 | 4

    unflagged = decode(bench.case(writer, "unflagged_metadata"), "file")
    assert unflagged["header"]["file_flags"] == 2 | 4
    assert unflagged["header"]["data_buffer_alignment"] == 8192
    assert [entry["name"] for entry in unflagged["index"]] == ["bytes", "layers.3.key"]
    assert [(entry["key"], entry["value"]) for entry in unflagged["kv_metadata"]] == [
        ("producer", "foreign"),
        ("tensor_count", 2),
    ]

    empty = decode(bench.case(writer, "empty_batch"), "file")
    assert (empty["header"]["file_flags"], empty["header"]["tensor_count_hint"]) == (0, 1)
    assert empty["trailer"]["index_crc32c"] == "00000000"


@pytest.mark.parametrize("writer", WRITERS)
def test_committed_files_are_what_the_program_writes(bench: Bench, writer: str) -> None:
    committed = write_fixtures.FIXTURES
    for case in CASES:
        assert bench.case(writer, case) == (committed / write_fixtures.name_of(writer, case)).read_bytes(), case


@pytest.mark.parametrize("writer", WRITERS)
def test_written_bytes_are_those_of_the_rust_implementation(bench: Bench, writer: str) -> None:
    paged = reference() / "paged"
    assert bench.case(writer, "spec_example") == (paged / "paged_spec_example.hrry").read_bytes()
    assert bench.case(writer, "stream") == (paged / "paged.stream").read_bytes()
    assert bench.case(writer, "int8_page_slot")[64:][:193] == (paged / "paged_int8_pba.desc").read_bytes()


@pytest.mark.parametrize("reader", READERS)
def test_files_of_the_rust_implementation_dump_alike(bench: Bench, reader: str) -> None:
    paths = sorted(reference().rglob("*.hrry"))
    assert len(paths) == 3
    expected = [plain.dump(plain.decode_file(path.read_bytes())) for path in paths]
    assert bench.program(reader).dump(paths) == expected


# ---- everyone reads everyone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("reader", READERS)
def test_reader_finds_what_every_writer_wrote(bench: Bench, reader: str, form: str) -> None:
    # A writer that cannot be built here has its own tests that say so.
    cases = FILES if form == "file" else STREAMS
    written = [(writer, case) for writer in WRITERS if not building.missing(writer) for case in cases]
    expected = [plain.dump(decode(bench.case(*pair), form)) for pair in written]
    found = bench.program(reader).dump([bench.path(*pair) for pair in written], form=form)
    assert len(found) == len(expected) >= len(STREAMS)
    for pair, document, wanted in zip(written, found, expected, strict=True):
        assert document == wanted, pair


@pytest.mark.parametrize("reader", READERS)
def test_every_section_reads_alike(bench: Bench, tmp_path: Path, reader: str) -> None:
    paths, expected = [], []
    for name, data in sections().items():
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
        expected.append(plain.dump(plain.decode_stream(data)))
    assert bench.program(reader).dump(paths, form="stream") == expected


@pytest.mark.parametrize("reader", READERS)
def test_they_read_what_hurray_wire_writes(bench: Bench, tmp_path: Path, reader: str) -> None:
    with hw.open(bench.case("js", "multi")) as file:
        metadata = {key: value for key, value in file.metadata.items() if not key.startswith("hurray_wire.")}
        with hw.create(tmp_path / "again.hrry", metadata=metadata, sorted_index=True) as writer:
            for name in file.names:
                writer.add(name, file[name].descriptor, file[name].buffers)
        with (
            (tmp_path / "again.stream").open("wb") as stream_file,
            hw.StreamWriter(stream_file) as stream_writer,
        ):
            for name in file.names:
                stream_writer.add(file[name].descriptor, file[name].buffers)
    for name, form in (("again.hrry", "file"), ("again.stream", "stream")):
        path = tmp_path / name
        expected = plain.dump(decode(path.read_bytes(), form))
        assert len(expected["tensors"]) == 5
        assert bench.program(reader).dump([path], form=form) == [expected]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", WRITERS)
def test_file_cut_anywhere_is_refused(bench: Bench, reader: str) -> None:
    sizes = [len(bench.case("js", case)) for case in FILES]
    accepted = bench.program(reader).cuts([bench.path("js", case) for case in FILES])
    assert accepted == [[size] for size in sizes]


@pytest.mark.parametrize("reader", WRITERS)
def test_stream_is_whole_between_tensors_and_a_group_at_its_end(bench: Bench, reader: str) -> None:
    sizes = [len(bench.case("js", case)) for case in STREAMS]
    accepted = bench.program(reader).cuts([bench.path("js", case) for case in STREAMS], form="stream")
    first_tensor = 133 + 640 + 12 + 12
    assert accepted == [[0, first_tensor, sizes[0]], [0, sizes[1]]]


@pytest.mark.parametrize("reader", READERS)
def test_bad_input_is_one_line_and_status_one(bench: Bench, tmp_path: Path, reader: str) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"HRRYFILE")
    done = bench.program(reader).run("dump", str(bad))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("reader", WRITERS)
def test_unknown_layout_is_unsupported(bench: Bench, tmp_path: Path, reader: str) -> None:
    strided = tmp_path / "strided"
    data = bytearray(sections()["column_major"])
    data[15] = 0x03
    strided.write_bytes(data)
    done = bench.program(reader).run("dump", "--stream", str(strided))
    assert (done.returncode, done.stdout.strip()) == (3, '"unsupported"')
    assert bench.program(reader).check([strided], form="stream") == ["unsupported"]


class Judged:
    """Damaged inputs on disk, with the plain decoder's verdict on each."""

    def __init__(self, folder: Path, inputs: list[bytes], form: str) -> None:
        self.form = form
        self.paths = [folder / str(number) for number in range(len(inputs))]
        self.verdicts = []
        for path, data in zip(self.paths, inputs, strict=True):
            path.write_bytes(data)
            try:
                decode(data, form)
            except plain.Refused:
                self.verdicts.append("refused")
            else:
                self.verdicts.append("ok")


@pytest.fixture(scope="session")
def damaged_streams(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Every section with each of its bytes changed."""
    inputs = [changed for data in sections().values() for changed in damaged(data, [range(len(data))])]
    return Judged(tmp_path_factory.mktemp("streams"), inputs, "stream")


@pytest.fixture(scope="session")
def damaged_files(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Every byte of the container changed, in a file whose index has no checksum that would catch it first."""
    data = bench.case("js", "empty_batch")
    inputs = list(damaged(data, [range(64 + 133), range(4080, len(data))]))
    moved = bench.case("js", "unflagged_metadata")
    inputs += damaged(moved, [range(64), range(len(moved) - 40, len(moved))])
    return Judged(tmp_path_factory.mktemp("files"), inputs, "file")


@pytest.mark.parametrize("which", ["damaged_streams", "damaged_files"])
@pytest.mark.parametrize("reader", WRITERS)
def test_damage_is_judged_as_the_plain_decoder_judges_it(
    bench: Bench, request: pytest.FixtureRequest, reader: str, which: str
) -> None:
    judged: Judged = request.getfixturevalue(which)
    assert judged.verdicts.count("refused") > 500
    assert judged.verdicts.count("ok") > 50
    lines = bench.program(reader).check(judged.paths, form=judged.form)
    found = [line.split(":")[0] for line in lines]
    assert len(found) == len(judged.paths)
    wrong = [
        (path.name, verdict, line)
        for path, verdict, word, line in zip(judged.paths, judged.verdicts, found, lines, strict=True)
        if word not in (verdict, "unsupported")
    ]
    assert wrong == []
    assert found.count("unsupported") < len(found) // 10


@pytest.mark.parametrize("which", ["damaged_streams", "damaged_files"])
def test_kaitai_description_accepts_what_is_valid(bench: Bench, request: pytest.FixtureRequest, which: str) -> None:
    # It checks less than the others, on purpose; what it refuses must be wrong.
    judged: Judged = request.getfixturevalue(which)
    found = [line.split(":")[0] for line in bench.program("kaitai").check(judged.paths, form=judged.form)]
    assert [v for v, word in zip(judged.verdicts, found, strict=True) if word == "refused"].count("ok") == 0
    assert found.count("refused") > 300
