"""``hurray-pack``: a dump of arrays becomes a snapshot, in a file or on a stream; or a snapshot is written again."""

from __future__ import annotations

import re
import sys
import time
from itertools import pairwise
from typing import Any

import click
from click.core import ParameterSource

import hurray_wire as hw

from .. import adapters
from ..store.compressed_sink import level_of
from .again import pack_again
from .batch import AUTO, DENSE, Batch, read_batch
from .choices import INTEGER_KEYS, Ranges, lengths, metadata_values, ranges
from .console import STANDARD_OUTPUT, blamed, note, progress_bar, refuse_terminal, run, usage_error
from .dump import open_dump
from .formats import ELEMENT_TYPES
from .inputs import Input, given, is_same_file
from .summary import Packed, report

__all__ = ["main"]

NAME = "hurray-pack"

_NAMES_SHOWN = 8
_DEFAULT_LEVEL = "default"
_ARRAY_SUFFIXES = (".safetensors", ".npz", ".npy")
_ARRAY_OPTIONS = (
    "layout",
    "form",
    "left_padded",
    "page_size",
    "num_heads",
    "head_dim",
    "value_head_dim",
    "dtype",
    "deduplicate",
    "index_type",
    "quantize",
)
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
    type=click.Choice([*adapters.names(), DENSE, AUTO]),
    default="split-nhd",
    show_default=True,
    help="Order of the axes; auto is the one that the shapes allow, if it is one.",
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
@click.option(
    "--seq-lens", callback=lengths, metavar="48,0,32", help="Lengths, for a Hurray file that does not record them."
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

    DUMP may also be a snapshot: a Hurray file, plain or compressed, a URL of one, or a stream. It is written again, by
    the options that are not about arrays, verified first; OUT may be that file.
    """
    _check_output(output)
    for option, key in (("model_id", "model.id"), ("model_revision", "model.revision")):
        if options[option] is not None and key in meta:
            usage_error(f"{key} is given twice, by --{option.replace('_', '-')} and by --meta")
    if options["zstd"] is None and output.endswith(".zst"):
        options["zstd"] = True
    if output == "-" and options["zstd"] is not None:
        usage_error("a stream is not compressed; pipe it through zstd, and through zstd -d at the other end")
    if options["planes"] and options["zstd"] is None:
        usage_error("--planes is a way to compress: add --zstd")
    with given(dump) as source:
        write = _pack_again if source.is_hurray else _pack_dump
        packed = write(source, output, layers, seqs, meta, options)
    if not options["quiet"]:
        report(NAME, output, packed, as_json=options["as_json"])
    return 0


def _check_output(output: str) -> None:
    """Refuse names that no snapshot has."""
    if not output:
        usage_error("the output has no name; name a file, or - for a stream")
    refuse_terminal(output)
    for suffix in _ARRAY_SUFFIXES:
        if output.lower().endswith(suffix):
            usage_error(f"{output} ends in {suffix} as files of arrays do; a snapshot ends in .hrry or .hrry.zst")


def _pack_again(
    source: Input,
    output: str,
    layers: Ranges | None,
    seqs: Ranges | None,
    meta: dict[str, str | int],
    options: dict[str, Any],
) -> Packed:
    context = click.get_current_context()
    refused = [
        f"--{option.replace('_', '-')}"
        for option in _ARRAY_OPTIONS
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT
    ]
    if refused:
        words = f"{refused[0]} is" if len(refused) == 1 else f"{', '.join(refused[:-1])} and {refused[-1]} are"
        usage_error(f"{words} about arrays, and {source.said} is a Hurray file already")
    if output == "-" and is_same_file(source.file, output):
        usage_error(f"standard output is {source.said} itself, which is read while it is written")
    named = {"model.id": options["model_id"], "model.revision": options["model_revision"]}
    identity = {key: value for key, value in named.items() if value is not None}
    return pack_again(source, output, layers, seqs, {**meta, **identity}, options)


def _pack_dump(
    source: Input,
    output: str,
    layers: Ranges | None,
    seqs: Ranges | None,
    meta: dict[str, str | int],
    options: dict[str, Any],
) -> Packed:
    if is_same_file(source.file, output):
        usage_error(f"the output is {source.said} itself, and a dump is not replaced by its snapshot")
    if options["layout"] == DENSE and options["form"] is not None:
        usage_error(f"--form is not for {DENSE}: its arrays tell their form")
    if options["left_padded"] and options["layout"] != DENSE:
        usage_error(f"--left-padded is about a cache without pages: add --layout {DENSE}")
    if options["seq_lens"] is not None:
        usage_error("--seq-lens is about a Hurray file; a dump has its lengths in the array seq_lens")
    with open_dump(source) as arrays:
        batch = read_batch(arrays, layers, seqs, options)
        ignored = [name for name in arrays if name not in batch.used]
        if ignored and not options["quiet"]:
            more = f" and {len(ignored) - _NAMES_SHOWN} more" if len(ignored) > _NAMES_SHOWN else ""
            note(NAME, f"not used: {', '.join(ignored[:_NAMES_SHOWN])}{more}")
        started = time.perf_counter()
        _write(output, batch, meta, options)
        seconds = time.perf_counter() - started
    return Packed(list(batch.layers), batch.seq_lens.tolist(), batch.num_pages, seconds)


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
            "source.layout": batch.layout,
            **{key: value for key, value in meta.items() if key not in INTEGER_KEYS},
        },
    }
    if output == "-":
        with blamed(STANDARD_OUTPUT):
            hw.send_snapshot(sys.stdout.buffer, batch.layers, **arguments)
        return
    with progress_bar("packing") as progress, blamed(output):
        hw.save_snapshot(
            output,
            batch.layers,
            zstd=options["zstd"],
            planes=options["planes"],
            alignment=int(options["alignment"]),
            progress=progress,
            **arguments,
        )


if __name__ == "__main__":
    sys.exit(main())
