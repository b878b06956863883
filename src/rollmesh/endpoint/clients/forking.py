"""Sessions of a process that is forked stay with it; its child needs its own (layer 6).

Both processes hold the same sockets then. What the child did to one that it inherited (a farewell
when an env is collected there, a step) would be done to the parent's session. So the child lets go
of them at once, without a word to the server, and its calls say that the session is lost. Sessions
that several lanes share within a run are not told: nobody forks in the middle of one.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What is told, in a process that was forked, that it was."""

    def forked(self) -> None:
        """Let go of what is the parent's; must not wait for a lock, nobody may ever release it."""
        ...


_told: weakref.WeakSet[Forked] = weakref.WeakSet()


def tell_forked(one: Forked) -> None:
    """Have this told in every process that is forked from here on."""
    _told.add(one)


def _tell_all() -> None:
    for one in list(_told):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
