"""The adapter that is nothing but its forms: arrays of page pools, whatever the order of their axes.

Each layout module states its axes (``axes.py`` tells the letters) and makes one of these. Checks that need more than
one array stand here: keys against values, layer against layer, and the choice between forms that one shape fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import DTypeLike, NDArray

from ..errors import BufferSizeError, IncompatibleError, UnsupportedError
from .axes import allocate, cut
from .base import (
    Declared,
    Form,
    LayerPools,
    Layers,
    LayerSpec,
    PoolSpec,
    by_index,
    check_indices,
    layer_name,
    split_roles,
)
from .intake import as_array

__all__ = ["PoolAdapter"]


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """One array of the caller: what errors call it, its layer (None: all of them), its role ("": both)."""

    said: str
    index: int | None
    role: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class PoolAdapter:
    """An adapter that is nothing but its forms.

    ``roles`` are those that the layout can hold. If its axes have L, the cache is one array for all layers. Otherwise
    a cache is a sequence with an entry a layer, or a mapping from layer index to entry. An entry is one array if the
    axes have R, C or I (both keys and values in it), or if the only role is fused; else it is a pair (key, value), or
    a mapping from role to array, in both of which a role may be None.

    ``records`` tells rows of single bytes that are no elements at all, by their length.
    """

    name: str
    forms: tuple[Form, ...]
    roles: tuple[str, ...] = ("key", "value")
    records: Mapping[int, str] = field(default_factory=dict)

    @property
    def one_array(self) -> bool:
        """One array holds all layers."""
        return "L" in self.forms[0].axes

    @property
    def joined(self) -> bool:
        """One array holds keys and values."""
        return not set("RCI").isdisjoint(self.forms[0].axes)

    def views(
        self,
        layers: Layers,
        *,
        page_size: int | None = None,
        num_pages: int | None = None,
        num_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        layer_indices: Sequence[int | None] | None = None,
        form: str | None = None,
        dtype: DTypeLike | None = None,
        writable: bool = False,
    ) -> list[LayerPools]:
        """Views of the caller's arrays, ``[num_pages, page_size, num_heads, head_dim]`` for each layer and role.

        ``layers`` is the cache as the engine holds it (see the module of the layout). Sizes that are given are
        demanded of every array; ``page_size`` must be given where the arrays do not tell it. ``layer_indices`` names
        the layers of a sequence (default 0, 1, ...). ``form`` picks a variant of the layout; without it the one that
        fits is taken, and IncompatibleError says so if several do. ``dtype`` says what raw bits are, and ``writable``
        asks for a destination (see ``as_array``).

        Nothing is copied. Raises BufferSizeError for arrays that cannot be this layout, UnsupportedError for what the
        format cannot hold, IncompatibleError where too little was said.
        """
        declared = Declared(
            page_size=page_size,
            num_pages=num_pages,
            num_heads=num_heads,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            of_export=writable,
        )
        forms = self.forms if form is None else (self._form(form),)
        sources = self._sources(layers, layer_indices, dtype, writable)
        fitting: dict[str, list[LayerPools]] = {}
        refusals: dict[str, BufferSizeError] = {}
        for candidate in forms:
            try:
                fitting[candidate.name] = self._views(sources, candidate, declared, layer_indices)
            except BufferSizeError as refusal:
                refusals[candidate.name] = refusal
        if not fitting:
            raise _one_refusal(self.name, refusals)
        first, *others = fitting.values()
        if any(not _same_views(first, other) for other in others):
            raise IncompatibleError(
                f"the arrays fit the forms {' and '.join(fitting)} of {self.name}; say which with form=, or declare "
                "page_size and num_heads",
                rule="adapter.ambiguous",
                found=tuple(fitting),
            )
        return first

    def allocate(self, layers: Sequence[LayerSpec], *, num_pages: int, page_size: int, form: str | None = None) -> Any:
        """Fresh, zeroed arrays of this layout for layers like these: what ``views`` takes, to be assigned through it.

        Returns a list with an entry a layer, in the order of ``layers``, or one array where the layout has one for
        all. Raises IncompatibleError for what the layout cannot hold (a missing role, values unlike keys, layers
        unlike others).
        """
        Declared(page_size=page_size, num_pages=num_pages)  # refuses sizes that no array can have
        chosen = self.forms[0] if form is None else self._form(form)
        check_indices(self.name, [layer.index for layer in layers], len(layers))
        for layer in layers:
            self._check_spec(layer, chosen)

        def fresh(pools: Mapping[str, PoolSpec], count: int = 1) -> NDArray[Any]:
            return allocate(chosen, pools, num_pages=num_pages, page_size=page_size, num_layers=count)

        if self.one_array:
            if any(dict(layer.pools) != dict(layers[0].pools) for layer in layers):
                raise IncompatibleError(
                    f"{self.name} holds all layers in one array, and these differ in heads, head_dim or type",
                    rule="adapter.layers",
                )
            return fresh(layers[0].pools, len(layers))
        if self.joined:
            return [fresh(layer.pools) for layer in layers]
        if self.roles == ("fused",):
            return [fresh(layer.pools) for layer in layers]
        split = [{role: fresh({role: pool}) for role, pool in layer.pools.items()} for layer in layers]
        return [(entry["key"], entry["value"]) if entry.keys() == {"key", "value"} else entry for entry in split]

    def _form(self, name: str) -> Form:
        for form in self.forms:
            if form.name == name:
                return form
        raise IncompatibleError(
            f"{self.name} has no form {name!r}; it has {', '.join(form.name for form in self.forms)}",
            rule="adapter.form",
            found=name,
        )

    def _check_spec(self, layer: LayerSpec, form: Form) -> None:
        name, pools = layer_name(layer.index), layer.pools
        if not pools or not set(pools) <= set(self.roles) or (self.joined and len(pools) != 2):
            raise IncompatibleError(
                f"{self.name} holds {' and '.join(self.roles)}, but {name} has {' and '.join(pools) or 'nothing'}",
                rule="adapter.roles",
                declared=self.roles,
                found=tuple(pools),
            )
        if "H" not in form.axes and "I" not in form.axes and pools["fused"].num_heads != 1:
            raise IncompatibleError(
                f"{self.name} holds 1 head, but {name} has {pools['fused'].num_heads}",
                rule="adapter.roles",
                declared=1,
                found=pools["fused"].num_heads,
            )
        if self.joined:
            key, value = pools["key"], pools["value"]
            if key != (value if "C" not in form.axes else value._replace(head_dim=key.head_dim)):
                raise IncompatibleError(
                    f"{self.name} holds keys and values in one array, but in {name} they differ: {_words(key)}, "
                    f"{_words(value)}",
                    rule="adapter.roles",
                    declared=key,
                    found=value,
                )

    def _sources(
        self, layers: Layers, indices: Sequence[int | None] | None, dtype: DTypeLike | None, writable: bool
    ) -> list[_Source]:
        def take(entry: Any, where: str, index: int | None = None, role: str = "") -> _Source:
            said = f"{self.name}: {where} {role}".rstrip()
            array = as_array(entry, what=said, dtype=dtype, writable=writable)
            record = self.records.get(array.shape[-1]) if array.ndim and array.dtype.itemsize == 1 else None
            if record is not None:
                raise UnsupportedError(
                    f"{said} has rows of {array.shape[-1]} bytes, which are {record}: an opaque record that the "
                    "format cannot describe; dequantize it first",
                    rule="adapter.opaque-record",
                    found=array.shape[-1],
                )
            return _Source(said, index, role, array)

        if self.one_array:
            return [take(layers, "the cache")]
        entries = by_index(self.name, layers, indices)
        if self.joined:
            return [take(entry, layer_name(index), index) for index, entry in entries]
        if self.roles == ("fused",):
            return [take(entry, layer_name(index), index, "fused") for index, entry in entries]
        return [
            take(array, layer_name(index), index, role)
            for index, entry in entries
            for role, array in split_roles(entry, self.roles, f"{self.name}: {layer_name(index)}").items()
        ]

    def _views(
        self, sources: Sequence[_Source], form: Form, declared: Declared, indices: Sequence[int | None] | None
    ) -> list[LayerPools]:
        if self.one_array:
            cuts = cut(sources[0].array, form, declared, sources[0].said)
            found = dict(zip(check_indices(self.name, indices, len(cuts)), cuts, strict=True))
        else:
            found = {}
            for source in sources:
                views = cut(source.array, form, declared, source.said, source.role)[0]
                found.setdefault(source.index, {}).update(views)
        layers = [LayerPools(index, pools) for index, pools in found.items()]
        _check_agreement(self.name, layers)
        return layers


def _check_agreement(name: str, layers: Sequence[LayerPools]) -> None:
    """All pools have as many pages, of one size; keys and values of a layer have as many heads."""
    pools = [(f"{layer_name(layer.index)} {role}", pool) for layer in layers for role, pool in layer.pools.items()]
    for said, pool in pools:
        first_said, first = pools[0]
        if pool.shape[:2] != first.shape[:2]:
            raise BufferSizeError(
                f"{name}: {said} has {pool.shape[0]} pages of {pool.shape[1]} tokens, but {first_said} has "
                f"{first.shape[0]} of {first.shape[1]}",
                rule="adapter.agreement",
                declared=first.shape[:2],
                found=pool.shape[:2],
            )
    for layer in layers:
        heads = [layer.pools[role].shape[2] for role in ("key", "value") if role in layer.pools]
        if len(set(heads)) == 2:
            raise BufferSizeError(
                f"{name}: {layer_name(layer.index)} has {heads[0]} heads of keys and {heads[1]} of values",
                rule="adapter.agreement",
                declared=heads[0],
                found=heads[1],
            )


def _same_views(these: Sequence[LayerPools], others: Sequence[LayerPools]) -> bool:
    def places(layers: Sequence[LayerPools]) -> list[Any]:
        return [
            (layer.index, role, pool.shape, pool.strides, pool.__array_interface__["data"])
            for layer in layers
            for role, pool in layer.pools.items()
        ]

    return places(these) == places(others)


def _one_refusal(name: str, refusals: Mapping[str, BufferSizeError]) -> BufferSizeError:
    """The refusal of the only form that has as many axes, or one sentence with the reason of each form that has."""
    close = {form: refusal for form, refusal in refusals.items() if refusal.rule != "adapter.rank"} or refusals
    if len({refusal.message for refusal in close.values()}) == 1:
        return next(iter(close.values()))
    reasons = "; ".join(f"as {form}, {refusal.message}" for form, refusal in close.items())
    return BufferSizeError(f"{name} has no form that fits: {reasons}", rule="adapter.form")


def _words(pool: PoolSpec) -> str:
    return f"{pool.num_heads} heads of {pool.head_dim} {pool.dtype}"
