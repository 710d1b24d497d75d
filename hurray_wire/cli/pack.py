"""``hurray-pack``: a dump of arrays becomes a snapshot, in a file or on a stream."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

import hurray_wire as hw

from .. import adapters
from ..store.compressed_sink import level_of
from .batch import DENSE, Batch, read_batch
from .choices import INTEGER_KEYS, Ranges, listed, metadata_values, ranges
from .console import (
    CliError,
    counted,
    is_standard_output,
    note,
    print_json,
    progress_bar,
    readable_size,
    refuse_terminal,
    run,
    say,
    usage_error,
)
from .dump import HEAD_BYTES, check_head, open_dump
from .formats import ELEMENT_TYPES
from .spooling import copy_bounded, read_head

__all__ = ["main"]

NAME = "hurray-pack"

_NAMES_SHOWN = 8
_DEFAULT_LEVEL = "default"
_ALIGNMENTS = [str(1 << bits) for bits in range(12, 22)]

_EPILOG = """\b
Names of the arrays in the dump:
  layers.N.key, layers.N.value   layouts that keep keys and values apart
  layers.N.fused                 a layer that is neither (mla)
  layers.N                       layouts with keys and values in one array
  kv_cache                       layouts with all layers in one array
  layers.N.key.scale             float32, [] or [num_heads]: real = stored * scale
  block_tables, seq_lens         [num_seqs, max_blocks] with any padding, [num_seqs]
  or block_table and seq_ptr with seq_lens or last_page_len; or token_slots and seq_lens
  dense-thd (no pages, as Transformers has past_key_values) has no block tables:
  layers.N.key, layers.N.value   [num_seqs, num_heads, longest, head_dim], padded,
                                 or [sum of lengths, num_heads, head_dim]; and seq_lens
  dtypes                         (.npz, folder) JSON text, name -> element type of raw bits

\b
The axes of each layout are in the README, under "Engine layouts". Where a shape fits several
forms of a layout (nhd, hnd), the error names them.

\b
Exit code: 0 fine, 1 the data is bad, 2 usage.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process); returns its exit code."""
    return run(pack, NAME, argv)


class _Command(click.Command):
    """A command whose --zstd takes a level only behind an equals sign: click would take the next word for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word, following in pairwise(args):
            if word == "--zstd" and re.fullmatch("-?[0-9]+", following):
                usage_error(f"write --zstd={following}: the level of --zstd is no word of its own")
        return super().parse_args(ctx, [f"--zstd={_DEFAULT_LEVEL}" if word == "--zstd" else word for word in args])


def _level(context: click.Context, option: click.Parameter, value: str | None) -> bool | int | None:
    """A level of compression as the library takes it."""
    if value is None:
        return None
    try:
        level = True if value == _DEFAULT_LEVEL else int(value)
        level_of(level, planes=False)
    except (ValueError, hw.IncompatibleError) as error:
        raise click.BadParameter(str(error), context, option) from error
    return level


@click.command(cls=_Command, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dump")
@click.option("-o", "--output", required=True, metavar="OUT", help="The file to write, or - for a stream.")
@click.option(
    "--layout",
    type=click.Choice([*adapters.names(), DENSE]),
    default="split-nhd",
    show_default=True,
    help="Order of the axes.",
)
@click.option("--form", help="Variant of the layout, where it has several.")
@click.option("--left-padded", is_flag=True, help="The padding of a dense-thd cache comes first.")
@click.option(
    "--page-size",
    type=click.IntRange(min=1),
    help="Tokens of a page, checked against the arrays; those of dense-thd are cut so (default 16).",
)
@click.option("--num-heads", type=click.IntRange(min=1), help="KV heads, checked against the arrays.")
@click.option("--head-dim", type=click.IntRange(min=1), help="Elements of a head, checked against the arrays.")
@click.option("--value-head-dim", type=click.IntRange(min=1), help="The same of values, where it is another.")
@click.option(
    "--dtype", type=click.Choice(list(ELEMENT_TYPES)), metavar="TYPE", help="What raw bits are, e.g. bfloat16."
)
@click.option("--layers", callback=ranges, metavar="0-3,7", help="Only these layers.")
@click.option("--seqs", callback=ranges, metavar="0,2", help="Only these sequences, in this order.")
@click.option("--keep-pool", is_flag=True, help="Write the pools as they are, with pages and slots of nobody.")
@click.option("--deduplicate", is_flag=True, help="Write pages that are equal in all layers once.")
@click.option("--index-type", type=click.Choice(["auto", "uint32", "uint64"]), default="auto", show_default=True)
@click.option("--quantize", type=click.Choice(["int8"]), help="Write a floating cache as int8, a scale a slot.")
@click.option("--zstd", callback=_level, metavar="[=LEVEL]", help="Compress; so does a name that ends in .zst.")
@click.option("--planes", is_flag=True, help="Compress better, into what only hurray_wire reads.")
@click.option(
    "--alignment",
    type=click.Choice(_ALIGNMENTS),
    default="4096",
    metavar="N",
    help="Of buffers in the file, in bytes: a power of two, 4096..2097152.",
)
@click.option("--model-id", metavar="X", help="The model whose cache this is.")
@click.option("--model-revision", metavar="Y", help="Its revision.")
@click.option(
    "--meta", multiple=True, callback=metadata_values, metavar="KEY=VALUE", help="More metadata; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Say what was written as JSON.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.version_option(hw.__version__, message="%(prog)s %(version)s")
def pack(
    dump: str, output: str, layers: Ranges | None, seqs: Ranges | None, meta: dict[str, str | int], **options: Any
) -> int:
    """Pack the paged KV cache in DUMP into a snapshot.

    DUMP is a .safetensors file, an .npz file, a folder of .npy files, or - for one of these files (of at most
    64 GiB) on standard input.
    Only the pages of the sequences are written, and slots that hold no token become zeros.
    """
    if not output:
        usage_error("the output has no name; name a file, or - for a stream")
    refuse_terminal(output)
    for option, key in (("model_id", "model.id"), ("model_revision", "model.revision")):
        if options[option] is not None and key in meta:
            usage_error(f"{key} is given twice, by --{option.replace('_', '-')} and by --meta")
    if options["zstd"] is None and output.endswith(".zst"):
        options["zstd"] = True
    if output == "-" and options["zstd"] is not None:
        usage_error("a stream is not compressed; pipe it through zstd")
    if options["planes"] and options["zstd"] is None:
        usage_error("--planes is a way to compress: add --zstd")
    if options["layout"] == DENSE and options["form"] is not None:
        usage_error(f"--form is not for {DENSE}: its arrays tell their form")
    if options["left_padded"] and options["layout"] != DENSE:
        usage_error(f"--left-padded is about a cache without pages: add --layout {DENSE}")
    quiet, apart = options["quiet"], is_standard_output(output)
    with _dump_file(dump) as path, open_dump(path, said=_said(dump)) as arrays:
        batch = read_batch(arrays, layers, seqs, options)
        ignored = [name for name in arrays if name not in batch.used]
        if ignored and not quiet:
            more = f" and {len(ignored) - _NAMES_SHOWN} more" if len(ignored) > _NAMES_SHOWN else ""
            note(NAME, f"not used: {', '.join(ignored[:_NAMES_SHOWN])}{more}")
        started = time.perf_counter()
        _write(output, batch, meta, options)
        seconds = time.perf_counter() - started
    if not quiet:
        summary = _summary(output, batch, seconds)
        _report(summary, output, as_json=options["as_json"], apart=apart)
    return 0


def _write(output: str, batch: Batch, meta: dict[str, str | int], options: dict[str, Any]) -> None:
    arguments = {
        **batch.arguments,
        "compact": not options["keep_pool"],
        "scrub": not options["keep_pool"],
        "deduplicate": options["deduplicate"],
        "index_type": options["index_type"],
        "quantize": options["quantize"],
        "model_id": options["model_id"],
        "model_revision": options["model_revision"],
        **{key.replace(".", "_"): value for key, value in meta.items() if key in INTEGER_KEYS},
        # the views are of one layout whatever the dump's was, so the dump's is said here
        "metadata": {
            "source.layout": options["layout"],
            **{key: value for key, value in meta.items() if key not in INTEGER_KEYS},
        },
    }
    if output == "-":
        hw.send_snapshot(sys.stdout.buffer, batch.layers, **arguments)
        return
    with progress_bar("packing") as progress:
        hw.save_snapshot(
            output,
            batch.layers,
            zstd=options["zstd"],
            planes=options["planes"],
            alignment=int(options["alignment"]),
            progress=progress,
            **arguments,
        )


def _summary(output: str, batch: Batch, seconds: float) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "output": output,
        "layers": list(batch.layers),
        "sequences": len(batch.seq_lens),
        "tokens": int(batch.seq_lens.sum()),
        "pages_in_pool": batch.num_pages,
        "pages_written": None,
        "bytes": None,
        "seconds": round(seconds, 6),
    }
    if output != "-" and Path(output).is_file():
        summary["bytes"] = Path(output).stat().st_size
        with hw.load_snapshot(output) as snapshot:
            summary["pages_written"] = next(snapshot.tensors).layout.num_pages
    return summary


def _report(summary: dict[str, Any], output: str, *, as_json: bool, apart: bool) -> None:
    """Say what was written; ``apart`` from standard output where that has the bytes themselves."""
    if apart:
        note(NAME, json.dumps(summary) if as_json else _batch_words(summary))
        return
    if as_json:
        print_json(summary)
        return
    say(f"{output}: {_batch_words(summary)}")
    size = summary["bytes"]
    if size is not None:
        speed = size / 1e6 / max(summary["seconds"], 1e-9)
        there = "" if summary["pages_in_pool"] is None else f" of {summary['pages_in_pool']}"
        say(f"{summary['pages_written']}{there} pages a layer, {readable_size(size)}, {speed:.0f} MB/s")


def _batch_words(summary: dict[str, Any]) -> str:
    layers = [layer for layer in summary["layers"] if layer is not None]
    words = f"{counted(len(layers), 'layer')} ({listed(layers)})" if layers else "a cache of no layer"
    return f"{words}, {counted(summary['sequences'], 'sequence')}, {counted(summary['tokens'], 'token')}"


@contextmanager
def _dump_file(dump: str) -> Iterator[str]:
    """The path of the dump; what comes through a pipe goes to a temporary file, since arrays are read in any order."""
    if dump != "-" and not Path(dump).is_fifo():
        yield dump
        return
    with ExitStack() as stack:
        said = _said(dump)
        source = sys.stdin.buffer if dump == "-" else stack.enter_context(Path(dump).open("rb"))
        head = read_head(source, HEAD_BYTES)
        if not head:
            raise CliError(f"{said} is empty")
        check_head(head, said)
        file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="hurray-pack-"))
        copy_bounded(head, source, file, said)
        file.flush()
        yield file.name


def _said(dump: str) -> str:
    return "standard input" if dump == "-" else dump


if __name__ == "__main__":
    sys.exit(main())
