"""The programs in other languages write what the cases say, read one another, and refuse what must be refused.

The judge of all of them is ``tools/plain_decoder.py``; what a case must hold is derived here from its formula.
"""

from __future__ import annotations

import importlib.util
import io
import struct
from pathlib import Path
from typing import Any

import pytest

import hurray_wire as hw

from .damaged import damaged, sections, words
from .programs import BUILDERS, ROOT, Program, build, missing

REFERENCE = ROOT.parent / "shared" / "reference"
FILES = ["spec_example", "multi", "empty_batch", "int8_page_slot", "unflagged_metadata"]
STREAMS = ["stream", "group_stream"]
CASES = FILES + STREAMS
WRITERS = ["c", "rust", "js", "java"]
READERS = list(BUILDERS)


def _load_plain_decoder() -> Any:
    spec = importlib.util.spec_from_file_location("plain_decoder", ROOT / "tools" / "plain_decoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _load_plain_decoder()


def decode(data: bytes, *, stream: bool) -> Any:
    return plain.decode_stream(data) if stream else plain.decode_file(data)


class Bench:
    """Programs, built when first asked for, and what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, Program] = {}
        self.written: dict[tuple[str, str], bytes] = {}

    def program(self, name: str) -> Program:
        if name not in self.programs:
            self.programs[name] = build(name, self.folder)
        return self.programs[name]

    def path(self, writer: str, case: str) -> Path:
        return self.folder / f"{writer}.{case}"

    def case(self, writer: str, case: str) -> bytes:
        """What the writer writes for the case, which then also lies at `path`."""
        if (writer, case) not in self.written:
            self.written[writer, case] = self.program(writer).write(case, self.path(writer, case))
        return self.written[writer, case]


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("foreign"))


# ---- what the cases must hold ---------------------------------------------------------------------------------------

WORKED_POOL = words("H", *(0x3C00 + i for i in range(320)))
WORKED_EXAMPLE = [WORKED_POOL, words("I", 0, 1, 0), words("I", 0, 2, 3)]
EMPTY_BATCH = [b"", b"", words("Q", 0)]
INT8_PAGE_SLOT = [
    bytes((7 * i + 3) % 256 for i in range(320)),
    *WORKED_EXAMPLE[1:],
    words("H", *(0x3000 + 8 * j for j in range(20))),
    words("i", *(j - 10 for j in range(20))),
]
SEQ_LENS = [words("I", 10, 7, 0)]


def multi_layer(layer: int, role: int) -> list[bytes]:
    pool = words("H", *((2477 * i + 641 * layer + 97 * role) % 2**16 for i in range(192)))
    return [pool, words("Q", 3, 1, 4, 3, 5), words("Q", 0, 3, 5, 5)]


MULTI = [multi_layer(layer, role) for layer in (0, 1) for role in (0, 1)]
MULTI_NAMES = ["layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value", "seq_lens"]
MULTI_METADATA = [
    ("hurray_wire.snapshot", "i64", 1),
    ("producer", "string", "foreign"),
    ("model.id", "string", "llama-β"),
    ("n", "i64", -7),
    ("u", "u64", 2**64 - 1),
    ("f", "f64", struct.pack(">d", 0.1).hex()),
    ("b", "bool", True),
    ("raw", "bytes", "00ff01"),
    ("arr", "array", ["a", ""]),
    ("ints", "array", [-1, 2]),
]

# case: names in write order (streams have none), and buffers without the metadata member of a group
EXPECTED: dict[str, tuple[list[str] | None, list[list[bytes]]]] = {
    "spec_example": (["layers.3.key"], [WORKED_EXAMPLE]),
    "multi": (MULTI_NAMES, [*MULTI, SEQ_LENS]),
    "empty_batch": (["empty"], [EMPTY_BATCH]),
    "int8_page_slot": (["cache"], [INT8_PAGE_SLOT]),
    "unflagged_metadata": (["layers.3.key", "bytes"], [WORKED_EXAMPLE, [bytes([1, 2, 3, 4, 5])]]),
    "stream": (None, [WORKED_EXAMPLE, EMPTY_BATCH]),
    "group_stream": (None, [[], SEQ_LENS, *MULTI]),
}

needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="the files of the Rust implementation are not beside this project"
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("writer", WRITERS)
def test_written_case_holds_what_its_formula_says(bench: Bench, writer: str, case: str) -> None:
    names, buffers = EXPECTED[case]
    document = decode(bench.case(writer, case), stream=case in STREAMS)
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
    document = decode(bench.case(writer, "multi"), stream=False)
    tokens = {0: [(3, 0), (3, 1), (3, 2), (3, 3), (1, 0), (1, 1), (1, 2), (1, 3), (4, 0), (4, 1)]}
    tokens[1] = [(3, 0), (3, 1), (3, 2), (3, 3), (5, 0), (5, 1), (5, 2)]
    row = 2 * 4 * 2  # bytes of a token: heads, dimensions, bfloat16
    for tensor, expected in zip(document["tensors"], MULTI, strict=False):
        first, second, third = plain.gather(tensor["descriptor"], tensor["buffers"], [10, 7, 0])
        pool = expected[0]
        assert first == b"".join(pool[(page * 4 + slot) * row :][:row] for page, slot in tokens[0])
        assert second == b"".join(pool[(page * 4 + slot) * row :][:row] for page, slot in tokens[1])
        assert third == b""


@pytest.mark.parametrize("writer", WRITERS)
def test_metadata_and_flags_are_those_of_the_case(bench: Bench, writer: str) -> None:
    multi = decode(bench.case(writer, "multi"), stream=False)
    *entries, checksums = multi["kv_metadata"]
    assert [(entry["key"], entry["kind"], entry["value"]) for entry in entries] == MULTI_METADATA
    assert (checksums["key"], checksums["element_kind"]) == ("hurray_wire.crc32c", "u64")
    assert len(checksums["value"]) == 4 * (1 + 3) + 2
    assert multi["header"]["file_flags"] == 1 | 4

    unflagged = decode(bench.case(writer, "unflagged_metadata"), stream=False)
    assert unflagged["header"]["file_flags"] == 2 | 4
    assert unflagged["header"]["data_buffer_alignment"] == 8192
    assert [entry["name"] for entry in unflagged["index"]] == ["bytes", "layers.3.key"]
    assert [(entry["key"], entry["value"]) for entry in unflagged["kv_metadata"]] == [
        ("producer", "foreign"),
        ("tensor_count", 2),
    ]

    empty = decode(bench.case(writer, "empty_batch"), stream=False)
    assert (empty["header"]["file_flags"], empty["header"]["tensor_count_hint"]) == (0, 1)
    assert empty["trailer"]["index_crc32c"] == "00000000"


@needs_reference
@pytest.mark.parametrize("writer", WRITERS)
def test_written_bytes_are_those_of_the_rust_implementation(bench: Bench, writer: str) -> None:
    paged = REFERENCE / "paged"
    assert bench.case(writer, "spec_example") == (paged / "paged_spec_example.hrry").read_bytes()
    assert bench.case(writer, "stream") == (paged / "paged.stream").read_bytes()
    assert bench.case(writer, "int8_page_slot")[64:][:193] == (paged / "paged_int8_pba.desc").read_bytes()


@needs_reference
@pytest.mark.parametrize("reader", READERS)
def test_files_of_the_rust_implementation_dump_alike(bench: Bench, reader: str) -> None:
    paths = [*sorted(REFERENCE.rglob("*.hrry"))]
    assert len(paths) == 3
    expected = [plain.dump(plain.decode_file(path.read_bytes())) for path in paths]
    assert bench.program(reader).dump(paths, stream=False) == expected


# ---- everyone reads everyone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["files", "streams"])
@pytest.mark.parametrize("reader", READERS)
def test_reader_finds_what_every_writer_wrote(bench: Bench, reader: str, stream: bool) -> None:
    # A writer that cannot be built here has its own tests that say so.
    written = [(writer, case) for writer in WRITERS if not missing(writer) for case in (STREAMS if stream else FILES)]
    expected = [plain.dump(decode(bench.case(*pair), stream=stream)) for pair in written]
    found = bench.program(reader).dump([bench.path(*pair) for pair in written], stream=stream)
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
    assert bench.program(reader).dump(paths, stream=True) == expected


@pytest.mark.parametrize("writer", WRITERS)
def test_hurray_wire_reads_what_they_wrote(bench: Bench, writer: str) -> None:
    for case in FILES:
        names, buffers = EXPECTED[case]
        assert names is not None
        with hw.open(bench.case(writer, case)) as file:
            file.verify()
            assert sorted(file.names) == sorted(names)
            for name, expected in zip(names, buffers, strict=True):
                assert [bytes(buffer) for buffer in file[name].buffers] == expected
    for case in STREAMS:
        tensors = list(hw.StreamReader(io.BytesIO(bench.case(writer, case))))
        found = [[bytes(buffer) for buffer in tensor.buffers] for tensor in tensors]
        if case == "group_stream":
            del found[1]
        assert found == EXPECTED[case][1]


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
    for name, stream in (("again.hrry", False), ("again.stream", True)):
        path = tmp_path / name
        expected = plain.dump(decode(path.read_bytes(), stream=stream))
        assert len(expected["tensors"]) == 5
        assert bench.program(reader).dump([path], stream=stream) == [expected]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", WRITERS)
def test_file_cut_anywhere_is_refused(bench: Bench, reader: str) -> None:
    sizes = [len(bench.case("js", case)) for case in FILES]
    accepted = bench.program(reader).cuts([bench.path("js", case) for case in FILES], stream=False)
    assert accepted == [[size] for size in sizes]


@pytest.mark.parametrize("reader", WRITERS)
def test_stream_is_whole_between_tensors_and_a_group_at_its_end(bench: Bench, reader: str) -> None:
    sizes = [len(bench.case("js", case)) for case in STREAMS]
    accepted = bench.program(reader).cuts([bench.path("js", case) for case in STREAMS], stream=True)
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
    assert bench.program(reader).check([strided], stream=True) == ["unsupported"]


class Judged:
    """Damaged inputs on disk, with the plain decoder's verdict on each."""

    def __init__(self, folder: Path, inputs: list[bytes], *, stream: bool) -> None:
        self.stream = stream
        self.paths = [folder / str(number) for number in range(len(inputs))]
        self.verdicts = []
        for path, data in zip(self.paths, inputs, strict=True):
            path.write_bytes(data)
            try:
                decode(data, stream=stream)
            except plain.Refused:
                self.verdicts.append("refused")
            else:
                self.verdicts.append("ok")


@pytest.fixture(scope="session")
def damaged_streams(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Every section with each of its bytes changed."""
    inputs = [changed for data in sections().values() for changed in damaged(data, [range(len(data))])]
    return Judged(tmp_path_factory.mktemp("streams"), inputs, stream=True)


@pytest.fixture(scope="session")
def damaged_files(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Every byte of the container changed, in a file whose index has no checksum that would catch it first."""
    data = bench.case("js", "empty_batch")
    inputs = list(damaged(data, [range(64 + 133), range(4080, len(data))]))
    moved = bench.case("js", "unflagged_metadata")
    inputs += damaged(moved, [range(64), range(len(moved) - 40, len(moved))])
    return Judged(tmp_path_factory.mktemp("files"), inputs, stream=False)


@pytest.mark.parametrize("which", ["damaged_streams", "damaged_files"])
@pytest.mark.parametrize("reader", WRITERS)
def test_damage_is_judged_as_the_plain_decoder_judges_it(
    bench: Bench, request: pytest.FixtureRequest, reader: str, which: str
) -> None:
    judged: Judged = request.getfixturevalue(which)
    assert judged.verdicts.count("refused") > 500
    assert judged.verdicts.count("ok") > 50
    lines = bench.program(reader).check(judged.paths, stream=judged.stream)
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
    found = [line.split(":")[0] for line in bench.program("kaitai").check(judged.paths, stream=judged.stream)]
    assert [v for v, word in zip(judged.verdicts, found, strict=True) if word == "refused"].count("ok") == 0
    assert found.count("refused") > 300
