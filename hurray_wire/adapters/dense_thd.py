"""``dense-thd``: a cache without pages, as Transformers holds it. They are cut on the way in, joined on the way out.

An entry a layer, a pair (key, value) or a mapping from role, of

    form "batch"      [batch, num_heads, tokens, head_dim], padded to one length (past_key_values)
    form "ragged"     [sum of lengths, num_heads, head_dim], the sequences in turn
    form "sequences"  a list with [tokens, num_heads, head_dim] for each sequence

``views`` gives the tokens of each sequence, in the caller's memory; nothing is copied. A pool is another matter,
since the last page of a sequence is seldom full: ``cut`` makes the pools of one layer at a time, when asked for it,
so that no more than a layer is held twice. Its pages are numbered in turn and it brings tables of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import parallel
from ..errors import BufferSizeError, IncompatibleError
from .base import Declared, Form, LayerPools, Layers, LayerSpec, PoolSpec, by_index, layer_name, split_roles, zeros
from .copying import PageSource, check_pages, copy_pages
from .intake import as_array
from .integers import Ints, as_lengths, check_page_size
from .tables import Tables

__all__ = ["CutPages", "DenseAdapter", "DenseLayer", "dense"]

ROLES = ("key", "value")


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """The tokens of one layer: by role, for each sequence a view ``[tokens, num_heads, head_dim]`` of the caller's."""

    index: int | None
    sequences: dict[str, list[NDArray[Any]]]

    @property
    def spec(self) -> LayerSpec:
        pools = {
            role: PoolSpec(views[0].shape[1], views[0].shape[2], views[0].dtype)
            for role, views in self.sequences.items()
        }
        return LayerSpec(self.index, pools)


@dataclass(frozen=True, slots=True, eq=False)
class CutPages:
    """A dense cache in pages of ``page_size``: its tables, and the pools of each layer, made when asked for."""

    layers: Sequence[DenseLayer]
    tables: Tables
    page_size: int

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerPools]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> LayerPools:
        """Fresh pools ``[num_pages, page_size, num_heads, head_dim]``, with zeros past the tokens of a sequence."""
        layer = self.layers[number]
        return LayerPools(layer.index, {role: self._pool(views) for role, views in layer.sequences.items()})

    def _pool(self, views: Sequence[NDArray[Any]]) -> NDArray[Any]:
        ptr = self.tables.seq_ptr.tolist()
        pool = zeros((ptr[-1], self.page_size, *views[0].shape[1:]), views[0].dtype)

        def place(seq: int) -> None:
            whole, rest = _pages_of(views[seq], self.page_size)
            pool[ptr[seq] : ptr[seq] + len(whole)] = whole
            if len(rest):
                pool[ptr[seq] + len(whole), : len(rest)] = rest

        parallel.run(place, range(len(views)))
        return pool


class DenseAdapter:
    """The adapter of a cache without pages: it has views of tokens where others have views of pages."""

    name = "dense-thd"
    forms = (Form("batch", "BHTD"), Form("ragged", "THD"), Form("sequences", "THD"))

    def views(
        self,
        layers: Layers,
        *,
        seq_lens: Any = None,
        left_padded: bool = False,
        num_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        layer_indices: Sequence[int | None] | None = None,
        dtype: DTypeLike | None = None,
        writable: bool = False,
    ) -> list[DenseLayer]:
        """The tokens of every sequence, borrowed; with ``writable`` as a destination for ``restore``.

        ``seq_lens`` [num_seqs] are the tokens of each sequence: needed for a batch, whose padding looks like tokens,
        and for a ragged array of more than one sequence. ``left_padded`` says that the padding of a batch comes
        first. Other arguments and errors are those of ``PoolAdapter.views``.
        """
        declared = Declared(num_heads=num_heads, head_dim=head_dim, value_head_dim=value_head_dim)
        lengths = None if seq_lens is None else as_lengths(seq_lens)
        found = []
        for index, entry in by_index(self.name, layers, layer_indices):
            where = f"{self.name}: {layer_name(index)}"
            sequences = {}
            for role, tokens in split_roles(entry, ROLES, where).items():
                said = f"{where} {role}"
                views = _sequences(tokens, lengths, left_padded, said, dtype, writable)
                _check_sequences(views, declared, role, said)
                sequences[role] = views
            found.append(DenseLayer(index, sequences))
        _check_agreement(self.name, found)
        return found

    def cut(self, layers: Sequence[DenseLayer], *, page_size: int) -> CutPages:
        """The pages of these layers (see ``views``), numbered from 0 in the order of the sequences, none shared."""
        size = check_page_size(page_size)
        views = next(iter(layers[0].sequences.values()))
        lengths = np.array([len(view) for view in views], dtype=np.int64)
        return CutPages(layers, _tables(lengths, size), size)

    def allocate(self, layers: Sequence[LayerSpec], *, seq_lens: Any, form: str | None = None) -> list[Any]:
        """Fresh, zeroed arrays for sequences of these lengths: what ``views`` takes, to be given to ``restore``."""
        lengths = as_lengths(seq_lens).tolist()
        if form not in (None, *(known.name for known in self.forms)):
            raise IncompatibleError(
                f"{self.name} has no form {form!r}; it has {', '.join(known.name for known in self.forms)}",
                rule="adapter.form",
                found=form,
            )

        def fresh(pool: PoolSpec) -> Any:
            row = (pool.num_heads, pool.head_dim)
            if form == "ragged":
                return zeros((sum(lengths), *row), pool.dtype)
            if form == "sequences":
                return [zeros((length, *row), pool.dtype) for length in lengths]
            return zeros((len(lengths), row[0], max(lengths, default=0), row[1]), pool.dtype)

        made = []
        for layer in layers:
            if not layer.pools or not set(layer.pools) <= set(ROLES):
                raise IncompatibleError(
                    f"{self.name} holds key and value, but {layer_name(layer.index)} has "
                    f"{' and '.join(layer.pools) or 'nothing'}",
                    rule="adapter.roles",
                    declared=ROLES,
                    found=tuple(layer.pools),
                )
            entry = {role: fresh(pool) for role, pool in layer.pools.items()}
            made.append((entry["key"], entry["value"]) if len(entry) == 2 else entry)
        return made

    def restore(self, sequences: Sequence[NDArray[Any]], source: PageSource, tables: Tables) -> None:
        """Write the tokens of each sequence of one layer and role into ``sequences`` (views of a destination, see
        ``views``).

        ``source`` is the pool that ``tables`` are for, ``[num_pages, page_size, num_heads, head_dim]``, or a function
        that reads its pages. Raises BufferSizeError if a sequence has another length than its tables say, and as
        ``copy_pages``.
        """
        lengths = [len(view) for view in sequences]
        if lengths != tables.seq_lens.tolist():
            raise BufferSizeError(
                f"the destination has sequences of {lengths} tokens, the tables are for {tables.seq_lens.tolist()}",
                rule="adapter.copy-shape",
                declared=tables.seq_lens.tolist(),
                found=lengths,
            )
        ptr = tables.seq_ptr.tolist()
        for seq, view in enumerate(sequences):
            ids = tables.block_table[ptr[seq] : ptr[seq + 1]]
            if not len(ids):
                continue
            last = source(ids[-1:]) if callable(source) else source[int(ids[-1]) :][:1]
            check_pages(last, view[np.newaxis], tokens=False)
            whole, rest = _pages_of(view, last.shape[1])
            if len(ids) != len(whole) + bool(len(rest)):
                raise BufferSizeError(
                    f"sequence {seq} has {len(ids)} pages for its {len(view)} tokens, but the pool has pages of "
                    f"{last.shape[1]}",
                    rule="adapter.copy-shape",
                    declared=len(ids),
                    found=last.shape[1],
                )
            copy_pages(source, whole, source_ids=ids[: len(whole)])
            if len(rest):
                rest[...] = last[0, : len(rest)]


dense = DenseAdapter()


def _pages_of(tokens: NDArray[Any], page_size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of ``[tokens, heads, dim]``: its whole pages, and the tokens after them."""
    pages = len(tokens) // page_size
    whole = tokens[: pages * page_size]
    return whole.reshape(pages, page_size, *tokens.shape[1:]), tokens[pages * page_size :]


def _tables(lengths: Ints, page_size: int) -> Tables:
    ptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(-(-lengths // page_size), out=ptr[1:])
    return Tables(np.arange(ptr[-1], dtype=np.int64), ptr, lengths)


def _sequences(
    tokens: Any, lengths: Ints | None, left_padded: bool, said: str, dtype: DTypeLike | None, writable: bool
) -> list[NDArray[Any]]:
    """A view [tokens, heads, dim] for each sequence, cut to its length."""
    if isinstance(tokens, list | tuple):
        arrays = [
            as_array(array, what=f"{said} of sequence {seq}", dtype=dtype, writable=writable)
            for seq, array in enumerate(tokens)
        ]
        if any(array.ndim != 3 for array in arrays):
            raise _bad_rank(said, [list(array.shape) for array in arrays])
        have = [len(array) for array in arrays]
        return [array[:length] for array, length in zip(arrays, _fitting(lengths, have, said), strict=True)]
    array = as_array(tokens, what=said, dtype=dtype, writable=writable)
    if array.ndim == 3:
        if lengths is None:
            return [array]
        if int(lengths.sum()) != len(array):
            raise BufferSizeError(
                f"{said} has {len(array)} tokens, but the lengths sum to {int(lengths.sum())}",
                rule="adapter.axis-size",
                declared=int(lengths.sum()),
                found=len(array),
            )
        return np.split(array, np.cumsum(lengths)[:-1]) if len(lengths) else []
    if array.ndim != 4:
        raise _bad_rank(said, list(array.shape))
    if lengths is None:
        raise IncompatibleError(
            f"{said} is padded to {array.shape[2]} tokens; pass seq_lens=", rule="adapter.undeclared"
        )
    batch = array.transpose(0, 2, 1, 3)
    padded = array.shape[2]
    cuts = [
        slice(padded - length, padded) if left_padded else slice(length)
        for length in _fitting(lengths, [padded] * len(array), said)
    ]
    return [row[cut] for row, cut in zip(batch, cuts, strict=True)]


def _fitting(lengths: Ints | None, have: list[int], said: str) -> list[int]:
    """The lengths as numbers, none beyond the tokens there are."""
    if lengths is None:
        return have
    wanted: list[int] = lengths.tolist()
    if len(wanted) != len(have):
        raise IncompatibleError(
            f"{said} has {len(have)} sequences, but there are {len(wanted)} lengths",
            rule="snapshot.seq-lens-count",
            declared=len(have),
            found=len(wanted),
        )
    for seq, (length, tokens) in enumerate(zip(wanted, have, strict=True)):
        if length > tokens:
            raise IncompatibleError(
                f"{said} has {tokens} tokens of sequence {seq}, whose length is {length}",
                rule="snapshot.seq-lens-pages",
                declared=tokens,
                found=length,
            )
    return wanted


def _check_sequences(views: Sequence[NDArray[Any]], declared: Declared, role: str, said: str) -> None:
    if not views:
        raise IncompatibleError(f"{said} has no sequence, so its heads are not known", rule="adapter.undeclared")
    first = views[0]
    demanded = (("num_heads", 1, declared.num_heads), ("head_dim", 2, declared.head_dim_of(role)))
    for what, axis, demand in demanded:
        if demand is not None and first.shape[axis] != demand:
            raise BufferSizeError(
                f"{said} has {first.shape[axis]} for {what}, where the caller declared {demand}",
                rule="adapter.axis-size",
                declared=demand,
                found=first.shape[axis],
            )
    for seq, view in enumerate(views):
        if view.shape[1:] != first.shape[1:] or view.dtype != first.dtype:
            raise BufferSizeError(
                f"{said} of sequence {seq} has tokens of {list(view.shape[1:])} {view.dtype}, sequence 0 of "
                f"{list(first.shape[1:])} {first.dtype}",
                rule="adapter.agreement",
                declared=first.shape[1:],
                found=view.shape[1:],
            )


def _check_agreement(name: str, layers: Sequence[DenseLayer]) -> None:
    """All layers and roles hold as many tokens of each sequence; keys and values of a layer have as many heads."""
    all_views = [(layer, role, views) for layer in layers for role, views in layer.sequences.items()]
    lengths = [len(view) for view in all_views[0][2]]
    for layer, role, views in all_views:
        if [len(view) for view in views] != lengths:
            raise BufferSizeError(
                f"{name}: {layer_name(layer.index)} {role} has sequences of {[len(view) for view in views]} tokens, "
                f"but {layer_name(layers[0].index)} {all_views[0][1]} of {lengths}",
                rule="adapter.agreement",
                declared=lengths,
                found=[len(view) for view in views],
            )
        heads = {role: views[0].shape[1] for role, views in layer.sequences.items()}
        if len(set(heads.values())) > 1:
            raise BufferSizeError(
                f"{name}: {layer_name(layer.index)} has {heads['key']} heads of keys and {heads['value']} of values",
                rule="adapter.agreement",
                declared=heads["key"],
                found=heads["value"],
            )


def _bad_rank(said: str, shapes: list[Any]) -> BufferSizeError:
    return BufferSizeError(
        f"{said} of shape {shapes} is none of [batch, num_heads, tokens, head_dim], [tokens, num_heads, head_dim], "
        "and a list of the latter",
        rule="adapter.rank",
        found=shapes,
    )
