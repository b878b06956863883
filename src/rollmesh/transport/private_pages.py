"""Private pages: a peer's memory that may be written to, and shows its bytes otherwise (layer 5).

A private mapping of a shared file shows the file. Where somebody writes into it, the system puts a
copy of the page in its place, and the file stays as it was. So a large payload can be handed to a
user who may write into it, and costs a copy only of what he does write.

Before the file gets the next payload, the copies of the last one must go. `/proc/self/pagemap`
tells whether there are any: a page of the file has bit 61 set, a copy has not. Where a system does
not tell it as expected, nothing is handed out.

A process that is forked sees what its parent was given for as long as it lives, and nobody knows
how long that is: so all of it is copied before a fork.

Linux only. It knows no slots or messages.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy import ndarray

_PAGE = mmap.PAGESIZE
_ENTRY = np.dtype("<u8")
_TOP = 7
"""The byte of an entry with bits 56 to 63, of which 63 is present, 62 swapped, 61 of a file."""
_NOT_COPIES = bytes(top for top in range(256) if top & 0x20 or not top & 0xC0)
_POPULATE_READ = 22


class PrivatePages:
    """A private mapping of part of a file.

    Args:
        descriptor: Of the file.
        start: Where the part starts, a multiple of the page size.
        nbytes: Its size.

    Attributes:
        mapping: The memory, writable.
        is_given: Whether somebody may write to it, or may have since it was last clean.

    Raises:
        OSError: The system has no room for it.
    """

    def __init__(self, descriptor: int, start: int, nbytes: int) -> None:
        self.is_given = False
        both = mmap.PROT_READ | mmap.PROT_WRITE
        self.mapping = mmap.mmap(descriptor, nbytes, mmap.MAP_PRIVATE, both, offset=start)
        with contextlib.suppress(OSError):  # saves faults; older systems do not know it
            self.mapping.madvise(_POPULATE_READ)
        self._where = address_of(ndarray((nbytes,), np.uint8, self.mapping)) // _PAGE * 8
        self._entries = np.empty(-(-nbytes // _PAGE), _ENTRY)
        self._tops = np.frombuffer(self._entries, np.uint8)[_TOP::8]
        _all.add(self)

    def clean(self, pagemap: Pagemap) -> bool:
        """Let it show the file again, and return whether anything had been written."""
        if not pagemap.read(self._entries, self._where):
            is_written = True
        else:
            is_written = bool(self._tops.tobytes().translate(None, _NOT_COPIES))
        if is_written:
            self.mapping.madvise(mmap.MADV_DONTNEED)
        self.is_given = False
        return is_written

    def keep(self) -> None:
        """Copy every page, so that nothing of it changes with the file."""
        firsts = ndarray((len(self.mapping),), np.uint8, self.mapping)[::_PAGE]
        firsts[...] = np.array(firsts)


class Pagemap:
    """What the system tells of the pages of this process, in this process only."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, entries: Any, where: int) -> bool:
        """Fill in the entries from this place on; False where the system does not tell."""
        if os.getpid() != self._process:
            return False
        try:
            return os.preadv(self._descriptor, [entries], where) == entries.nbytes
        except OSError:
            return False

    def __del__(self) -> None:
        # not before: another thread may be reading, and the number would be another file's
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)


def open_pagemap() -> Pagemap | None:
    """Return what tells of written pages, or None where the system does not."""
    try:
        return Pagemap() if _tells() else None
    except OSError:
        return None


@functools.cache
def _tells() -> bool:
    """Try once whether the system tells a page that was written from one that was not."""
    try:
        descriptor = os.memfd_create("rollmesh-try", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return False
    try:
        os.ftruncate(descriptor, 2 * _PAGE)
        os.pwrite(descriptor, b"file", 0)
        pagemap = Pagemap()
        pages = PrivatePages(descriptor, 0, 2 * _PAGE)
        memory = pages.mapping
        is_right = memory[:4] == b"file" and not pages.clean(pagemap)
        memory[:4] = b"mine"
        is_right = is_right and os.pread(descriptor, 4, 0) == b"file" and pages.clean(pagemap)
        os.pwrite(descriptor, b"next", 0)
        return is_right and memory[:4] == b"next" and not pages.clean(pagemap)
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)


_all: weakref.WeakSet[PrivatePages] = weakref.WeakSet()


def _keep_all() -> None:
    for pages in list(_all):
        if pages.is_given:
            pages.keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_all)


def address_of(array: ndarray[Any, Any]) -> int:
    """Return where an array lies."""
    return array.__array_interface__["data"][0]
