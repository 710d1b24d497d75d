"""Every reader in another language, and the library, against the whole golden corpus.

An accepted input dumps to what the plain decoder said of it when the corpus was made. A refused one is refused by all
who cover it; who does not cover what is told in ``scope.py``, and held to it here in both directions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fixtures.corpus import ENTRIES, Entry, accepted, entry, refused

from . import hurray_wire_dump
from .programs import READERS, Bench, building, decode, plain
from .scope import PRIVATE, files_beyond, rules_beyond, unsupported_by

FORMS = list(building.OPTIONS)

by_every_reader = pytest.mark.parametrize("reader", READERS)


def layouts(document: dict[str, Any]) -> set[int]:
    descriptors = [document] if "descriptor" in document else document["tensors"]
    return {holder["descriptor"]["layout_tag"] for holder in descriptors}


def layouts_of_refused(given: Entry) -> set[int]:
    """The layouts of a refused input: those of the accepted one that it was made from, and what can be read of it."""
    found = layouts(entry(given.raw["keeps"]).dump)
    if given.refused["judge"] is None:
        found |= layouts(decode(given.data, given.kind))
    return found


def taken_by(reader: str, form: str) -> list[Entry]:
    """The accepted inputs that a reader must know: all but those of its unsupported and of unknown layouts."""
    unsupported = unsupported_by(reader)
    return [
        given
        for given in accepted(form)
        if not given.options.get("permissive") and not layouts(given.dump) & unsupported
    ]


def test_the_corpus_has_every_layout_and_no_form_that_is_passed_over() -> None:
    assert {given.kind for given in ENTRIES} <= {*FORMS, "compressed"}
    for form in FORMS:
        assert set().union(*(layouts(given.dump) for given in accepted(form))) >= set(plain.LAYOUT_PARSERS)
        assert any(layouts(given.dump) & PRIVATE for given in accepted(form))


@by_every_reader
def test_accepted_inputs_dump_as_the_plain_decoder_says(bench: Bench, reader: str) -> None:
    program = bench.program(reader)
    for form in FORMS:
        known = taken_by(reader, form)
        documents = program.dump([given.path for given in known], form=form)
        for given, document in zip(known, documents, strict=True):
            assert document == given.dump, given


@by_every_reader
def test_inputs_that_are_not_taken_are_refused_or_not_supported_as_declared(bench: Bench, reader: str) -> None:
    program, unsupported = bench.program(reader), unsupported_by(reader)
    rules, files = rules_beyond(reader), files_beyond(reader)
    taken: set[str] = set()
    wrong = []
    for form in FORMS:
        known = {given.file for given in taken_by(reader, form)}
        others = [given for given in (*accepted(form), *refused(form)) if given.file not in known]
        for given, line in zip(others, program.check([given.path for given in others], form=form), strict=True):
            word = line.split(":")[0]
            if "accepted" in given.raw:  # strict readers do not take an unknown layout
                beyond, allowed = set(), {"refused" if given.options.get("permissive") else "unsupported"}
            else:
                beyond = {given.refused["rule"], Path(given.file).name} & (rules | files)
                allowed = {"ok" if beyond else "refused"}
                if word == "unsupported" and layouts_of_refused(given) & unsupported:
                    allowed.add(word)
            taken |= beyond if word == "ok" else set()
            if word not in allowed:
                wrong.append((given.file, line, allowed))
    assert wrong == []
    assert rules | files == taken, "what is declared as not covered is accepted"


@pytest.mark.parametrize("form", FORMS)
def test_hurray_wire_finds_what_the_plain_decoder_finds(form: str) -> None:
    for given in accepted(form):
        options = {name: value for name, value in given.options.items() if name != "seq_lens"}
        found = hurray_wire_dump.of(given.data, form, **options)
        expected = hurray_wire_dump.comparable(given.dump)
        # As text: in Python, True is 1 and 1.0 is 1.
        assert json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True), given


@by_every_reader
def test_a_compressed_file_is_a_file_once_it_is_inflated(bench: Bench, tmp_path: Path, reader: str) -> None:
    paths: list[Path] = []
    documents: list[Any] = []
    planes: list[Path] = []
    for given in accepted("compressed"):
        with zstandard.ZstdDecompressor().stream_reader(given.data, read_across_frames=True) as inflating:
            data = inflating.read()
        path = tmp_path / Path(given.file).stem
        path.write_bytes(data)
        if data.startswith(b"HRRYPLNS"):
            planes.append(path)
        elif not layouts(given.dump) & unsupported_by(reader):
            paths.append(path)
            documents.append(given.dump)
    program = bench.program(reader)
    assert len(paths) > 5
    assert program.dump(paths) == documents
    # With its planes split, it is no Hurray file, and nobody takes it for one.
    assert len(planes) > 1
    assert [line.split(":")[0] for line in program.check(planes)] == ["refused"] * len(planes)
