"""Composites while tensors come one after another: which are open, and how many members each still waits for.

The members of a head are the tensors that follow it (spec/layouts.md, "Composites"). What the members must be is told
in ``arrays/composite.py``; here they are only counted, in a file that is written and on a stream in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.composite import check_member_count
from ..errors import HurrayError
from ..limits import MAX_NESTING, Limits
from ..model.descriptor import TensorDescriptor
from ..model.layouts import CompositeLayout

__all__ = ["Members"]


@dataclass(frozen=True, slots=True)
class Members:
    """How many members each open composite waits for, the innermost last. ``error`` is what a torn one raises."""

    error: type[HurrayError]
    limits: Limits
    open: tuple[int, ...] = ()

    def after(self, descriptor: TensorDescriptor) -> Members:
        """What is open once this tensor has come. Raises for composites that are nested too deep or too large."""
        waiting = list(self.open)
        if waiting:
            waiting[-1] -= 1
        if isinstance(descriptor.layout, CompositeLayout):
            count = descriptor.layout.member_count
            check_member_count(count, self.limits.max_members)
            if len(waiting) >= MAX_NESTING:
                raise self.error(
                    f"composites are nested more than {MAX_NESTING} deep",
                    rule="composite.depth",
                    declared=MAX_NESTING,
                    found=len(waiting) + 1,
                )
            waiting.append(count)
        while waiting and not waiting[-1]:
            waiting.pop()
        return Members(self.error, self.limits, tuple(waiting))

    def check_whole(self, what: str, offset: int | None = None) -> None:
        """Raise if ``what`` (the file, the stream) may not end now, since a composite still waits for members."""
        if self.open:
            raise self.error(
                f"{what} ends before {self.open[-1]} members of a composite",
                rule="composite.torn",
                offset=offset,
                found=self.open[-1],
            )
