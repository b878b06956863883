"""Shared memory for large payloads between two processes of one machine (layer 5, Linux).

Each end of a connection owns one file without a name (`memfd_create`) in which it puts its large
payloads; the descriptor goes to the other end over the socket when the connection is set up.
Nothing is created by name, so nothing is left when either side dies, and `/dev/shm` is not used.

The file starts with a page of states, a byte a slot: 1 is taken, 0 is free. The owner (`Ring`)
takes a free slot, writes the payload, and names the slot in the header that it sends over the
socket. The other end (`Window`) copies or views the payload, then frees the slot.

Lifetime of a view (`Lease`): its memory stays as it is until `release()`, and is written again by
the peer at any time after it. A lease that is never released keeps its slot for as long as the
connection lives: the peer uses the socket when no slot is left, so that this costs speed and
nothing else. After the connection is closed, views still alive can be read. A `Lent` payload needs
no `release()`: it gives its slot back when nobody holds it any more. Arrays of one's own that may
be written to can be had of a very large one without a copy (`private_pages.py`), each of them once,
and as long as half of the slots are free: whoever keeps many gets copies, so that the peer never
lacks a slot.

Trust. The file is sealed against shrinking, which the other end checks before it maps it: a peer
cannot make a reader fault. Offsets and sizes are compared with the size of the file.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy import ndarray

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.recycling import Twinned
from rollmesh.transport.private_pages import Pagemap, PrivatePages, address_of, open_pagemap
from rollmesh.wire.frames import PAGE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_logger = logging.getLogger(__name__)

THRESHOLD_BYTES = 64 * 2**10
"""Payloads from this size on go through shared memory; below it the socket is as fast."""

MOST_SLOTS = 8
_POPULATE_WRITE = 23
_TAKEN = b"\1"
_LEAST_TWIN_BYTES = 2**20
"""Smaller payloads are copied, which is as fast while they fit a core's own cache."""
_MOST_TWINS = 32
"""Arrays that are given of one payload; more are copied."""
_WRITTEN_PAUSE = 100
"""Payloads that are copied after one that was written to: writing costs more there than a copy."""
_GRAIN = max(PAGE_BYTES, mmap.ALLOCATIONGRANULARITY)
_MOST_FILE_BYTES = 2 * SIZE_LIMITS.message_bytes


def is_available() -> bool:
    """Tell whether this platform has what it takes."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(socket, "SCM_RIGHTS")


def create_file() -> int:
    """Return the descriptor of a fresh file, sealed against shrinking.

    Raises:
        OSError: The system has none to give.
    """
    import fcntl

    descriptor = os.memfd_create("rollmesh", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _GRAIN)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(slots=True)
class Slot:
    """A place for one payload, owned by a `Ring`.

    Attributes:
        index: Its number.
        page: Where it starts in the file, in pages.
        room: Bytes that it has room for.
        backed: Bytes that memory has been set aside for.
        memory: The memory.
        view: The same, to write to.
    """

    index: int
    page: int
    room: int
    backed: int
    memory: mmap.mmap
    view: memoryview


class Ring:
    """The slots that this end writes. For one thread at a time.

    Args:
        descriptor: From `create_file`; the ring owns it from here on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._states = mmap.mmap(descriptor, PAGE_BYTES)
        self._slots: list[Slot] = []
        self._end = _GRAIN
        self._last = 0
        self._is_off = False

    def claim(self, nbytes: int) -> Slot | None:
        """Take a free slot with room for so many bytes; None where there is none.

        Never the one used last where there is another: the caches of the other end's core still
        hold what it has just read there, and writing over that made a step a tenth slower.
        """
        if self._is_off:
            return None
        try:
            return self._claim(nbytes)
        except OSError as error:  # out of memory: the socket still works
            _logger.warning("shared_memory_off error=%s", error)
            self._is_off = True
            return None

    def _claim(self, nbytes: int) -> Slot | None:
        states = self._states
        used_last: Slot | None = None
        too_small: Slot | None = None
        for slot in self._slots:
            if states[slot.index]:
                continue
            if nbytes > slot.room:
                too_small = slot
            elif slot.index != self._last:
                return self._take(slot, nbytes)
            else:
                used_last = slot
        if used_last is not None and len(self._slots) > 1:
            return self._take(used_last, nbytes)
        if too_small is None and len(self._slots) >= MOST_SLOTS:
            return None
        added = self._add(nbytes, len(self._slots) if too_small is None else too_small.index)
        return None if added is None else self._take(added, nbytes)

    def give_back(self, slot: Slot) -> None:
        """Free a slot that was claimed but not sent."""
        self._states[slot.index] = 0

    def close(self) -> None:
        """Let go of the file; views of it live on."""
        self._is_off = True
        self._slots.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _take(self, slot: Slot, nbytes: int) -> Slot:
        if nbytes > slot.backed:
            # set aside now what would be a bus error later, when memory is short
            os.posix_fallocate(self.descriptor, slot.page * PAGE_BYTES, nbytes)
            slot.backed = nbytes
            with contextlib.suppress(OSError):  # saves faults; older systems do not know it
                slot.memory.madvise(_POPULATE_WRITE, 0, nbytes)
        self._states[slot.index] = 1
        self._last = slot.index
        return slot

    def _add(self, nbytes: int, index: int) -> Slot | None:
        """Append a slot to the file, in place of one that is too small if that has the same index.

        Rooms are powers of two, so that what is lost of the file is less than what is used.
        """
        room = max(_GRAIN, 1 << (nbytes - 1).bit_length())
        if self._end + room > _MOST_FILE_BYTES:
            return None
        os.ftruncate(self.descriptor, self._end + room)
        mapped = mmap.mmap(self.descriptor, room, offset=self._end)
        slot = Slot(index, self._end // PAGE_BYTES, room, 0, mapped, memoryview(mapped))
        self._end += room
        if index == len(self._slots):
            self._slots.append(slot)
        else:
            self._slots[index] = slot
        return slot


class Window:
    """The slots that the other end writes. For one thread at a time; any may release a lease.

    Args:
        descriptor: As it came from the peer; the window owns it from here on.

    Raises:
        WireError: The file could shrink under a reader, or is too small.
    """

    def __init__(self, descriptor: int) -> None:
        import fcntl

        self._descriptor = descriptor
        try:
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            self._size = os.fstat(descriptor).st_size
            wrong = "" if is_sealed else "it is not sealed against shrinking"
            if self._size < PAGE_BYTES:
                wrong = "it is too small"
            if not wrong:
                self._states = mmap.mmap(descriptor, PAGE_BYTES)
        except OSError as error:
            wrong = str(error)
        if wrong:
            os.close(descriptor)
            raise WireError(f"what the peer offers is no shared memory of ours: {wrong}")
        self._known: dict[int, Mapped] = {}
        self._twins: Twins | None = None

    def lend(self, slot: int, page: int, nbytes: int) -> Lent:
        """Return the payload in a slot, without a copy; the slot is freed when nobody holds it.

        Raises:
            WireError: As `view`.
        """
        mapped = self._mapped(slot, page, nbytes)
        lent = Lent((nbytes,), np.uint8, mapped.memory)
        lent.states = self._states
        lent.slot = slot
        if nbytes >= _LEAST_TWIN_BYTES:
            self._prepare_twins(lent, mapped)
        return lent

    def _prepare_twins(self, lent: Lent, mapped: Mapped) -> None:
        twins = self._twins
        if twins is None:
            twins = self._twins = Twins(self._states)
        if mapped.pages is None and twins.pagemap is not None:
            with contextlib.suppress(OSError, ValueError):  # no room for another mapping
                start = mapped.page * PAGE_BYTES
                mapped.pages = PrivatePages(self._descriptor, start, mapped.data.size)
        lent.mapped = mapped
        lent.twins = twins

    def view(self, slot: int, page: int, nbytes: int) -> Bytes:
        """Return the payload in a slot, without a copy.

        Raises:
            WireError: There is no such slot, or it ends beyond the file.
        """
        return self._mapped(slot, page, nbytes).data[:nbytes]

    def lease(self, slot: int) -> Lease:
        """Return the lease of a slot."""
        return Lease(self._states, slot)

    def free(self, slot: int) -> None:
        """Free a slot that has been copied."""
        self._states[slot] = 0

    def close(self) -> None:
        """Let go of the file; views of it live on."""
        self._known.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _mapped(self, slot: int, page: int, nbytes: int) -> Mapped:
        """Return a slot's memory, at least so many bytes of it."""
        known = self._known.get(slot)
        if known is not None and known.page == page and known.data.size >= nbytes:
            return known
        start = page * PAGE_BYTES
        if slot >= MOST_SLOTS or page == 0 or start % _GRAIN or not nbytes:
            raise WireError(f"shared memory has no slot {slot} at page {page}")
        if start + nbytes > self._size:
            self._size = os.fstat(self._descriptor).st_size
            if start + nbytes > self._size:
                raise WireError(f"slot {slot} ends beyond the shared memory of {self._size} bytes")
        try:
            mapped = mmap.mmap(self._descriptor, nbytes, offset=start, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise WireError(f"slot {slot} cannot be mapped: {error}") from None
        data = np.frombuffer(mapped, np.uint8)
        known = self._known[slot] = Mapped(page, data, mapped, address_of(data))
        return known


@dataclass(slots=True)
class Mapped:
    """The memory of a slot, as the other end maps it.

    Attributes:
        page: Where it starts in the file, in pages.
        data: Its bytes.
        memory: The mapping under them.
        address: Where that is.
        pages: The same, to be written to; None where that is not to be had.
    """

    page: int
    data: Bytes
    memory: mmap.mmap
    address: int
    pages: PrivatePages | None = None


class Twins:
    """Gives arrays over private pages, where that pays. For one window.

    Args:
        states: The states of its slots.

    Attributes:
        pagemap: Tells what was written to, or None where nothing can be given.
    """

    def __init__(self, states: mmap.mmap) -> None:
        self.pagemap: Pagemap | None = open_pagemap()
        self._states = states
        self._pause = 0

    def memory(self, mapped: Mapped) -> mmap.mmap | None:
        """Return a slot's memory to be written to, for a payload that nobody was given of yet.

        None where a copy is the better way, or the only one.
        """
        if self._pause > 0:
            self._pause -= 1
            return None
        pages, pagemap = mapped.pages, self.pagemap
        if pages is None or pagemap is None:
            return None
        if self._states[:MOST_SLOTS].count(_TAKEN) > MOST_SLOTS // 2:
            return None
        if pages.is_given and pages.clean(pagemap):
            self._pause = _WRITTEN_PAUSE
            return None
        pages.is_given = True
        return pages.mapping


class Lent(Twinned):
    """The bytes in a slot, which is freed when the last array, view or memoryview over them goes.

    Arrays made over it hold it as their base; slices of it are its kind, too, and free nothing.
    """

    states: mmap.mmap | None = None
    slot = 0
    mapped: Mapped | None = None
    twins: Twins | None = None
    _writable: mmap.mmap | None = None
    _given: list[tuple[int, int]] | None = None

    def twin(self, leaf: Any, offset: int, shape: tuple[int, ...], nbytes: int) -> Any:
        mapped, twins, given = self.mapped, self.twins, self._given
        if mapped is None or twins is None:
            return None
        if given is None:
            given = self._given = []
            self._writable = twins.memory(mapped)
        memory = self._writable
        if memory is None or len(given) >= _MOST_TWINS:
            return None
        start = address_of(leaf) - mapped.address + offset
        stop = start + nbytes
        for begun, ended in given:
            if start < ended and begun < stop:
                return None
        given.append((start, stop))
        holder = _Holder((nbytes,), np.uint8, memory, start)
        holder.lent = self
        return ndarray(shape, leaf.dtype, holder)

    def __del__(self) -> None:
        states = self.states
        if states is not None:
            states[self.slot] = 0


class _Holder(ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that may be written to; holds the payload that they show."""

    __slots__ = ("lent",)
    lent: Lent


class Lease:
    """A payload that is viewed where the peer put it; see the module for its lifetime.

    Works as a context manager, too. Releasing twice changes nothing.
    """

    __slots__ = ("_slot", "_states")

    def __init__(self, states: mmap.mmap, slot: int) -> None:
        self._states: mmap.mmap | None = states
        self._slot = slot

    def release(self) -> None:
        """Free the slot: the views of it must not be read after this."""
        states, self._states = self._states, None
        if states is not None:
            states[self._slot] = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
