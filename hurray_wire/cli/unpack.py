"""``hurray-unpack``: what is in a file or stream; its arrays; whether it is whole, as expected, like another."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

import hurray_wire as hw

from .. import adapters
from ..annotate import Row, annotate
from ..diff import first_difference
from ..store.reader import SCALE_SUFFIX, SEQ_LENS
from .arrays import OutArray, is_array_target, write_arrays
from .choices import lengths, ranges
from .console import (
    UNEXPECTED,
    CliError,
    counted,
    note,
    print_json,
    progress_bar,
    readable_size,
    run,
    say,
    usage_error,
)
from .expect import expected_values, unmet
from .export import Choice, dense_arrays, snapshot_arrays
from .inputs import named
from .listing import as_json, listing, print_listing
from .opening import about, opened, whole_file

__all__ = ["main"]

NAME = "hurray-unpack"
FORMS = ("pages", "ragged", "padded")

_BYTES_SHOWN = 16

_EPILOG = """\b
Arrays out (--as):
  pages    layers.N.key, layers.N.value [num_pages, page_size, num_heads, head_dim],
           block_tables [num_seqs, max_blocks] padded with -1, seq_lens: what hurray-pack
           takes. The pools are those of the file; with --layout, --seqs or --dequantize
           they are made anew and hold the pages of the sequences alone
  ragged   layers.N.key [sum of lengths, num_heads, head_dim], seq_lens
  padded   layers.N.key [num_seqs, longest, num_heads, head_dim], mask, seq_lens
bfloat16 and float8 keep their names in .safetensors; elsewhere their bits are written as
unsigned integers, with their types in an entry "dtypes".

\b
Keys of --expect: dtype, page_size, num_pages, num_heads, head_dim, num_layers, num_seqs,
total_tokens, and every metadata key.

\b
Exit code: 0 fine, 1 the data is bad, 2 usage, 3 not what was expected (--expect, --diff).
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process); returns its exit code."""
    return run(unpack, NAME, argv)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False)
@click.option("-o", "--output", metavar="OUT", help="Write arrays to out.npz, out.safetensors or folder/.")
@click.option("--as", "form", type=click.Choice(FORMS), help="Form of the arrays.  [default: pages]")
@click.option("--layout", type=click.Choice(adapters.names()), help="Engine layout of the pages.  [default: split-nhd]")
@click.option("--layers", callback=ranges, metavar="0-3,7", help="Only these layers.")
@click.option("--seqs", callback=ranges, metavar="0,2", help="Only these sequences, in this order.")
@click.option("--dequantize", is_flag=True, help="Write real numbers, in float32.")
@click.option(
    "--seq-lens",
    callback=lengths,
    metavar="48,0,32",
    help="Lengths of the sequences, for a file that does not record them.",
)
@click.option("--verify", is_flag=True, help="Read everything; check every checksum, all padding, every table.")
@click.option("--expect", multiple=True, metavar="KEY=VALUE,...", help="Demand values; exit 3 if one differs.")
@click.option("--diff", "other", metavar="FILE", help="Compare what the sequences hold; exit 3 if it differs.")
@click.option(
    "--annotate",
    "annotated",
    is_flag=False,
    flag_value="",
    metavar="[TENSOR]",
    help="Show offset, bytes, field and value of a tensor's descriptor, or of the whole file.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Say everything as JSON.")
@click.version_option(hw.__version__, message="%(prog)s %(version)s")
def unpack(file: str | None, expect: tuple[str, ...], annotated: str | None, **options: Any) -> int:
    """Say what is in FILE, or do with it what the options say.

    FILE is a path, a URL, or - for standard input: a stream, or a whole file (of at most 64 GiB).
    """
    if file is None and annotated:
        file, annotated = annotated, ""  # "--annotate FILE": an option with an optional value has taken the argument
    if file is None:
        usage_error("missing argument 'FILE'")
    demands = _demands(expect)
    _check_output(options)
    asked = bool(demands or options["verify"] or options["other"] or options["output"])
    answers: dict[str, Any] = {}
    if annotated is not None:
        if asked and (file == "-" or Path(file).is_fifo()):
            usage_error(f"--annotate reads {named(file)} to its end; ask for the rest in another run")
        answers["annotate"] = _annotate(file, annotated or None, as_json_wanted=options["json_wanted"])
    if asked or annotated is None:
        with opened(file, options["seq_lens"]) as (snapshot, size):
            if not asked:
                _list(file, snapshot, size, as_json_wanted=options["json_wanted"])
                return 0
            answers |= _answers(file, snapshot, demands, options)
    if options["json_wanted"]:
        print_json(answers)
    return UNEXPECTED if answers.get("diff") else 0


def _answers(
    file: str, snapshot: hw.Snapshot, demands: list[tuple[str, str]], options: dict[str, Any]
) -> dict[str, Any]:
    """Do what was asked, in the order in which one thing depends on another; nothing is written after a difference."""
    answers: dict[str, Any] = {}
    talk = not options["json_wanted"]
    if demands:
        faults = unmet(snapshot, demands)
        if faults:
            raise CliError(f"{named(file)}: {'; '.join(faults)}", UNEXPECTED)
        answers["expect"] = dict(demands)
        if talk:
            say(f"{named(file)}: as expected")
    if options["verify"]:
        with progress_bar("verifying") as progress:
            report = snapshot.file.verify(progress=progress)
        answers["verify"] = dataclasses.asdict(report)
        if talk:
            checksums = f"{report.checksums} checksums" if report.checksums else "no checksums recorded"
            say(
                f"{named(file)}: whole ({counted(report.tensors, 'tensor')}, {counted(report.buffers, 'buffer')}, "
                f"{checksums}, {readable_size(report.payload_bytes)})"
            )
    if options["other"] is not None:
        with opened(options["other"], None) as (other, _):
            difference = first_difference(snapshot, other)
        answers["diff"] = None if difference is None else as_json(dataclasses.asdict(difference))
        if talk:
            told = "the sequences hold the same" if difference is None else str(difference)
            say(f"{named(file)} and {named(options['other'])}: {told}")
    if options["output"] is not None and not answers.get("diff"):
        answers["output"] = _write(file, snapshot, options)
        if talk:
            written = answers["output"]
            say(f"{written['path']}: {counted(len(written['arrays']), 'array')}, {readable_size(written['bytes'])}")
    return answers


def _write(file: str, snapshot: hw.Snapshot, options: dict[str, Any]) -> dict[str, Any]:
    """Write the arrays, and say what was written."""
    paged = list(snapshot.tensors)
    form = options["form"] or "pages"
    dequantize = options["dequantize"]
    arrays: list[OutArray] = []
    skip: list[str] = []
    metadata: dict[str, str] = {}
    if paged:
        adapter = adapters.get(options["layout"] or "split-nhd")
        arrays += snapshot_arrays(snapshot, Choice(form, adapter, options["layers"], options["seqs"], dequantize))
        skip = [SEQ_LENS, *(f"{tensor.name}{SCALE_SUFFIX}" for tensor in paged)]
        if form == "pages":
            metadata["page_size"] = str(paged[0].layout.page_size)
    elif options["layers"] is not None or options["seqs"] is not None:
        raise CliError(f"{named(file)}: there is no block-paged tensor, so there are no layers or sequences to choose")
    dense, left_out = dense_arrays(snapshot.file, skip, dequantize)
    arrays += dense
    if left_out:
        note(NAME, f"not written, since they are no plain arrays: {', '.join(left_out)}")
    with progress_bar("unpacking") as progress:
        write_arrays(options["output"], arrays, metadata=metadata, progress=progress)
    return {
        "path": options["output"],
        "arrays": {array.name: {"dtype": str(array.dtype), "shape": list(array.shape)} for array in arrays},
        "bytes": sum(array.nbytes for array in arrays),
    }


def _list(file: str, snapshot: hw.Snapshot, size: int | None, *, as_json_wanted: bool) -> None:
    if as_json_wanted:
        print_json(listing(snapshot, named(file), size))
    else:
        print_listing(snapshot, named(file), size)


def _annotate(file: str, tensor: str | None, *, as_json_wanted: bool) -> list[dict[str, Any]]:
    """Print the rows, or gather them for JSON."""
    gathered = []
    with about(file), whole_file(file) as target:
        for row in annotate(target, tensor=tensor):
            if as_json_wanted:
                data = None if row.data is None else row.data.hex()
                gathered.append(as_json({**dataclasses.asdict(row), "data": data}))
            else:
                say(_row_words(row))
    return gathered


def _row_words(row: Row) -> str:
    """``offset  bytes  field  value``, in columns as far as they fit."""
    if row.data is None:
        shown = f"({row.size} bytes)"
    else:
        shown = row.data[:_BYTES_SHOWN].hex(" ") + (" .." if row.size > _BYTES_SHOWN else "")
    name = f"{row.part}: {row.field}" if row.field else row.part
    value = "" if row.value is None else repr(row.value) if isinstance(row.value, bytes | str) else str(row.value)
    return f"{row.offset:>10}  {shown:<{3 * _BYTES_SHOWN + 2}}  {name:<40}  {value} {row.words}".rstrip()


def _demands(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    try:
        return expected_values(texts)
    except ValueError as error:
        usage_error(f"--expect: {error}")


def _check_output(options: dict[str, Any]) -> None:
    """Refuse combinations of options that say nothing."""
    output, form = options["output"], options["form"]
    if output is None:
        given = [
            option
            for option, value in (
                ("--as", form),
                ("--layout", options["layout"]),
                ("--layers", options["layers"]),
                ("--seqs", options["seqs"]),
                ("--dequantize", options["dequantize"]),
            )
            if value
        ]
        if given:
            usage_error(f"{given[0]} is about the arrays that -o writes, and there is no -o")
    elif not output or not is_array_target(output):
        usage_error(f"the output {output!r} is neither .npz nor .safetensors nor a folder, which ends in a slash")
    if options["layout"] and form not in (None, "pages"):
        usage_error(f"--layout is about pages, not --as {form}")


if __name__ == "__main__":
    sys.exit(main())
