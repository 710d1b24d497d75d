"""What an export gives back: arrays in an engine's layout, and all that makes them a batch (see ``export.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .adapters import LayerSpec

__all__ = ["Exported", "declared_sizes"]


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A cache in an engine's layout, with all that belongs to it.

    ``arrays`` is what ``save_snapshot(layout=...)`` takes: an entry for each of ``layers``, or one array for all of
    them; it is ``out`` where that was given. ``seq_lens`` [num_seqs] are the tokens of each sequence.

    ``block_tables`` [num_seqs, max_blocks] has the page ids of each sequence, padded with -1; ``block_table`` and
    ``seq_ptr`` [num_seqs + 1] say the same without padding. All are int32, or int64 where a number needs it. They are
    None for a layout without pages.

    ``scales`` are the companion scales of a float8 cache, [] or [num_heads], by layer and role: what ``save_snapshot``
    takes as ``scales``. ``declared`` says what the shapes alone do not, as ``save_snapshot`` takes it.
    """

    layout: str
    form: str | None
    arrays: Any
    layers: tuple[int | None, ...]
    seq_lens: NDArray[Any]
    page_size: int | None = None
    block_tables: NDArray[Any] | None = None
    block_table: NDArray[Any] | None = None
    seq_ptr: NDArray[Any] | None = None
    scales: dict[int | None, dict[str, NDArray[np.float32]]] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> dict[str, Any]:
        """What describes the arrays to ``save_snapshot``: ``hw.save_snapshot(path, e.arrays, **e.batch)``."""
        batch = {"layout": self.layout, "seq_lens": self.seq_lens, **self.declared}
        if not isinstance(self.arrays, Mapping):
            batch["layer_indices"] = self.layers
        if self.page_size is not None:
            batch |= {"form": self.form, "page_size": self.page_size, "block_tables": self.block_tables}
        if self.scales:
            batch["scales"] = self.scales
        return batch


def declared_sizes(specs: Sequence[LayerSpec], dtype: DTypeLike | None) -> dict[str, Any]:
    """Heads and dimensions, where all layers have the same, and what raw bits are."""
    declared: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    pools = [(role, pool) for spec in specs for role, pool in spec.pools.items()]
    heads = {pool.num_heads for _, pool in pools}
    wide = {pool.head_dim for role, pool in pools if role != "value"}
    values = {pool.head_dim for role, pool in pools if role == "value"}
    for name, found in (("num_heads", heads), ("head_dim", wide), ("value_head_dim", values)):
        if len(found) == 1:
            declared[name] = found.pop()
    return declared
