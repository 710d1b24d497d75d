"""What a fork takes apart: locks that another thread held, and results that it was about to bring.

A forked child has one thread, the one that forked, and a copy of everything else as it stood. A lock that another
thread held is held in the copy for ever. So an object with locks registers here, and its copy in a child is told to
make them anew, and to forget what was half done. The threads of ``parallel.py`` look after themselves.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakValueDictionary

__all__ = ["Forked", "register"]


class Forked(Protocol):
    """An object that a fork may find at work."""

    def after_fork(self) -> None:
        """Be usable in the child, whose only thread this is. Nothing may be waited for, and no thread begun."""


_registered: WeakValueDictionary[int, Forked] = WeakValueDictionary()  # by id: not all of them are hashable


def register(owner: Forked) -> None:
    """Call ``owner.after_fork()`` in every child that is forked while ``owner`` lives. Nothing is kept alive."""
    _registered[id(owner)] = owner


def _renew() -> None:
    for owner in list(_registered.values()):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
