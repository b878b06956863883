"""The words that a command was called with, for `rollmesh retry` to call it again (layer 9)."""

from __future__ import annotations

from contextvars import ContextVar

WORDS: ContextVar[tuple[str, ...]] = ContextVar("rollmesh_words", default=())
"""All after `rollmesh`; set by `main`, which `retry` calls with the words of another command."""
