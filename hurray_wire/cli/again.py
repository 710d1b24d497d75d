"""A Hurray file written again by ``hurray-pack``: compressed or not any more, or some of its layers and sequences.

It is opened as ``opening.py`` does it, and written by ``Snapshot.save``, or by ``Snapshot.send`` on a stream. What the
options say of arrays means nothing here, since a snapshot says all of that itself; ``pack.py`` refuses them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..identity import SNAPSHOT_KEY
from .choices import Ranges, chosen
from .console import STANDARD_OUTPUT, CliError, blamed, progress_bar
from .inputs import Input
from .opening import snapshot_in
from .summary import Packed

__all__ = ["pack_again"]


def pack_again(
    source: Input,
    output: str,
    layers: Ranges | None,
    seqs: Ranges | None,
    metadata: dict[str, str | int],
    options: dict[str, Any],
) -> Packed:
    """Write the snapshot in ``source`` again; ``metadata`` takes the place of what it names there."""
    with snapshot_in(source, options["seq_lens"]) as snapshot:
        if not snapshot.layers and SNAPSHOT_KEY not in snapshot.metadata:
            raise CliError(f"{source.said}: no snapshot: none of its tensors ({len(snapshot.file)}) is block-paged")
        there = [index for index in snapshot.layers if index is not None]
        indices = snapshot.layers if layers is None else list(dict.fromkeys(chosen(layers, there, "layer")))
        lengths = snapshot.seq_lens.tolist()
        wanted = None if seqs is None else chosen(seqs, range(len(lengths)), "sequence")
        first = next(snapshot.tensors, None)
        started = time.perf_counter()
        choice: dict[str, Any] = {
            "layers": indices,
            "seqs": wanted,
            "compact": not options["keep_pool"],
            "scrub": not options["keep_pool"],
            "metadata": metadata,
        }
        if output == "-":
            with blamed(STANDARD_OUTPUT):
                snapshot.send(sys.stdout.buffer, **choice)
        else:
            with progress_bar("packing") as progress, blamed(output):
                snapshot.save(
                    output,
                    zstd=options["zstd"],
                    planes=options["planes"],
                    alignment=int(options["alignment"]),
                    progress=progress,
                    **choice,
                )
        return Packed(
            indices,
            lengths if wanted is None else [lengths[seq] for seq in wanted],
            None if first is None else first.layout.num_pages,
            time.perf_counter() - started,
        )
