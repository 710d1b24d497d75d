"""``hurray-pack``: a dump of arrays becomes a snapshot, in a file or on a stream."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

import hurray_wire as hw

from .. import adapters
from ..adapters import LayerPools, Tables
from ..store.compressed_sink import level_of
from .choices import Ranges, chosen, key_values, listed, ranges
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
from .dump import Dump, open_dump
from .formats import ELEMENT_TYPES
from .naming import find_cache, find_tables, only_layers

__all__ = ["main"]

NAME = "hurray-pack"

_NAMES_SHOWN = 8
_PIECE_BYTES = 1 << 20
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
  dtypes                         (.npz, folder) JSON text, name -> element type of raw bits

\b
Exit code: 0 fine, 1 the data is bad, 2 usage.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process); returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    # click would take what follows a bare --zstd for its level
    return run(pack, NAME, [f"--zstd={_DEFAULT_LEVEL}" if word == "--zstd" else word for word in arguments])


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


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dump")
@click.option("-o", "--output", required=True, metavar="OUT", help="The file to write, or - for a stream.")
@click.option(
    "--layout", type=click.Choice(adapters.names()), default="split-nhd", show_default=True, help="Order of the axes."
)
@click.option("--form", help="Variant of the layout, where it has several.")
@click.option("--page-size", type=click.IntRange(min=1), help="Tokens of a page, checked against the arrays.")
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
@click.option("--meta", multiple=True, callback=key_values, metavar="KEY=VALUE", help="More metadata; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Say what was written as JSON.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
def pack(
    dump: str, output: str, layers: Ranges | None, seqs: Ranges | None, meta: dict[str, str], **options: Any
) -> int:
    """Pack the paged KV cache in DUMP into a snapshot.

    DUMP is a .safetensors file, an .npz file, a folder of .npy files, or - for one of these files on standard input.
    Only the pages of the sequences are written, and slots that hold no token become zeros.
    """
    refuse_terminal(output)
    if options["zstd"] is None and output.endswith(".zst"):
        options["zstd"] = True
    if output == "-" and options["zstd"] is not None:
        usage_error("a stream is not compressed; pipe it through zstd")
    if options["planes"] and options["zstd"] is None:
        usage_error("--planes is a way to compress: add --zstd")
    quiet, apart = options["quiet"], is_standard_output(output)
    with _dump_file(dump) as path, open_dump(path, said="standard input" if dump == "-" else dump) as arrays:
        pools, scales, used = _read_cache(arrays, layers, options)
        num_pages, page_size = pools[0].pools[next(iter(pools[0].pools))].shape[:2]
        given = find_tables(arrays)
        tables = adapters.normalise(page_size=page_size, num_pages=num_pages, **given)
        if seqs is not None:
            tables = _select(tables, chosen(seqs, range(tables.num_seqs), "sequence"))
        ignored = [name for name in arrays if name not in used and name not in given]
        if ignored and not quiet:
            more = f" and {len(ignored) - _NAMES_SHOWN} more" if len(ignored) > _NAMES_SHOWN else ""
            note(NAME, f"not used: {', '.join(ignored[:_NAMES_SHOWN])}{more}")
        started = time.perf_counter()
        _write(output, pools, tables, scales, meta, options)
        seconds = time.perf_counter() - started
    if not quiet:
        summary = _summary(output, pools, tables, num_pages, seconds)
        _report(summary, output, as_json=options["as_json"], apart=apart)
    return 0


def _read_cache(
    arrays: Dump, layers: Ranges | None, options: dict[str, Any]
) -> tuple[list[LayerPools], dict[str, Any], set[str]]:
    """Views of the pools of the wanted layers, their scales, and the names of all arrays of the cache."""
    adapter = adapters.get(options["layout"])
    found = find_cache(arrays, adapter, layers)
    pools = adapter.views(
        found.layers,
        page_size=options["page_size"] or _told_page_size(arrays),
        num_heads=options["num_heads"],
        head_dim=options["head_dim"],
        value_head_dim=options["value_head_dim"],
        form=options["form"],
        dtype=None if options["dtype"] is None else ELEMENT_TYPES[options["dtype"]],
    )
    return only_layers(pools, layers), found.scales, found.used


def _told_page_size(arrays: Dump) -> int | None:
    """The page size that the dump tells in its own metadata, to be checked like one that the user tells."""
    told = arrays.metadata.get("page_size", "")
    return int(told) if re.fullmatch("[1-9][0-9]{0,9}", told) else None


def _write(
    output: str,
    pools: list[LayerPools],
    tables: Tables,
    scales: dict[str, Any],
    meta: dict[str, str],
    options: dict[str, Any],
) -> None:
    batch = {
        "block_table": tables.block_table,
        "seq_ptr": tables.seq_ptr,
        "seq_lens": tables.seq_lens,
        "compact": not options["keep_pool"],
        "scrub": not options["keep_pool"],
        "deduplicate": options["deduplicate"],
        "index_type": options["index_type"],
        "model_id": options["model_id"],
        "model_revision": options["model_revision"],
        "scales": scales or None,
        # the views are of one layout whatever the dump's was, so the dump's is said here
        "metadata": {"source.layout": options["layout"], **meta},
    }
    layers = {pool.index: pool.pools for pool in pools}
    if output == "-":
        hw.send_snapshot(sys.stdout.buffer, layers, **batch)
        return
    with progress_bar("packing") as progress:
        hw.save_snapshot(
            output,
            layers,
            zstd=options["zstd"],
            planes=options["planes"],
            alignment=int(options["alignment"]),
            progress=progress,
            **batch,
        )


def _select(tables: Tables, seqs: list[int]) -> Tables:
    """The tables of these sequences, in this order."""
    rows = [tables.block_table[tables.seq_ptr[seq] : tables.seq_ptr[seq + 1]] for seq in seqs]
    ptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Tables(np.concatenate([tables.block_table[:0], *rows]), ptr, tables.seq_lens[seqs])


def _summary(output: str, pools: list[LayerPools], tables: Tables, num_pages: int, seconds: float) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "output": output,
        "layers": [pool.index for pool in pools],
        "sequences": tables.num_seqs,
        "tokens": tables.total_tokens,
        "pages_in_pool": num_pages,
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
        say(
            f"{summary['pages_written']} of {summary['pages_in_pool']} pages a layer, {readable_size(size)}, "
            f"{speed:.0f} MB/s"
        )


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
        source = sys.stdin.buffer if dump == "-" else stack.enter_context(Path(dump).open("rb"))
        file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="hurray-pack-"))
        shutil.copyfileobj(source, file, _PIECE_BYTES)
        file.flush()
        if not file.tell():
            raise CliError(f"{'standard input' if dump == '-' else dump} is empty")
        yield file.name


if __name__ == "__main__":
    sys.exit(main())
