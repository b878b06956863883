"""Handshake: who speaks, which generation and edition, and what both can do (layer 4).

The generation alone decides whether two ends can talk. Editions are a second, softer agreement:
each side says which it can follow (CAN) and which it wants (WANT), and whoever drives the session
selects one that all of them can and that no one's WANT rules out. Capabilities count with the value
"true".

Pure: knows no protobuf, sockets or time. `proto_handshake.py` has the bytes.

Seen on the released peer (0.1.0): both its clients and servers announce the one edition 2026.06 as
CAN and WANT, and call their component `rlmesh-env` or `rlmesh-model` by the service they speak, on
either side. A server lists its editions and selects nothing.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata as distributions
from types import MappingProxyType

from rollmesh.errors import WireError
from rollmesh.wire.dialect import OURS, Dialect, agree

GENERATION = "rlmesh-wire-v1"
EDITION = "2026.06"
"""The workflow edition whose behaviour this version has."""
EDITIONS = (EDITION,)

_FRAMEWORKS = ("numpy", "torch", "jax", "gymnasium")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_OS_NAMES = {"darwin": "macos", "win32": "windows"}


@dataclass(frozen=True, kw_only=True)
class PeerInfo:
    """Who speaks; advisory.

    Attributes:
        component: `rollmesh-env`, `rollmesh-model`, or what a foreign peer calls itself.
        package_version: Version of its package.
        language: `python`, `rust`, ….
        language_version: Version of that.
        os: `linux`, `macos`, `windows`, ….
        os_version: Version of that.
        arch: Processor architecture.
        framework_versions: Versions of numpy, torch and the like, where installed.
        extra: Anything else.
    """

    component: str = ""
    package_version: str = ""
    language: str = ""
    language_version: str = ""
    os: str = ""
    os_version: str = ""
    arch: str = ""
    framework_versions: Mapping[str, str] = field(default_factory=lambda: _NOTHING, hash=False)
    extra: Mapping[str, str] = field(default_factory=lambda: _NOTHING, hash=False)

    @property
    def is_rollmesh(self) -> bool:
        """Whether the peer says that it is one of ours."""
        return self.component.startswith("rollmesh-")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one end says in its handshake.

    Attributes:
        generation: Its wire generation; a server only answers the client's.
        peer: Who it is.
        capabilities: What it announces, as it was sent.
        editions: The editions it can follow (CAN).
        preferred_edition: The edition it wants (WANT); empty wants the newest it can.
        session_id: The session to resume, or that was given.
        is_compatible: A server's verdict.
        error: Why not, in the server's words; or what a client with a position waits for.
        position: Place in the server's queue; 0 is admitted.
        is_resumed: Whether the session asked for is the one given.
    """

    generation: str = GENERATION
    peer: PeerInfo = field(default_factory=PeerInfo)
    capabilities: Mapping[str, str] = field(default_factory=lambda: _NOTHING, hash=False)
    editions: tuple[str, ...] = EDITIONS
    preferred_edition: str = EDITION
    session_id: str = ""
    is_compatible: bool = True
    error: str = ""
    position: int = 0
    is_resumed: bool = False

    @property
    def granted(self) -> frozenset[str]:
        """The capabilities that count."""
        return frozenset([key for key, value in self.capabilities.items() if value == "true"])

    @property
    def dialect(self) -> Dialect:
        """What may be said to this peer."""
        return agree(self.capabilities)


def offer(
    service: str,
    *,
    capabilities: Iterable[str] = (),
    extra: Mapping[str, str] = _NOTHING,
    session_id: str = "",
) -> Offer:
    """Return what this version says.

    Args:
        service: `env` or `model`.
        capabilities: What is announced beside what this version always does.
        extra: Facts for the peer, such as where the native listener is.
        session_id: See `Offer`.
    """
    return Offer(
        peer=own_peer_info(f"rollmesh-{service}", extra),
        capabilities=dict.fromkeys((*OURS, *capabilities), "true"),
        session_id=session_id,
    )


def check_generation(theirs: str) -> str:
    """Return why a client of this generation cannot be served; empty if it can."""
    if theirs.strip() == GENERATION:
        return ""
    return (
        f"this server speaks {GENERATION}, the client {theirs.strip()[:80]!r}; "
        "use versions of both that share a wire generation"
    )


def own_peer_info(component: str, extra: Mapping[str, str] = _NOTHING) -> PeerInfo:
    """Return who we are."""
    return PeerInfo(
        component=component,
        package_version=_version("rollmesh"),
        language="python",
        language_version=platform.python_version(),
        os=_OS_NAMES.get(sys.platform, sys.platform),
        os_version=platform.release(),
        arch=platform.machine(),
        framework_versions=_framework_versions(),
        extra={"rlmesh.workflow.base": EDITION, "rlmesh.workflow.edition": EDITION, **extra},
    )


@functools.cache
def _framework_versions() -> Mapping[str, str]:
    """Return versions of what is installed, from their metadata: nothing is imported."""
    found = {name: _version(name) for name in _FRAMEWORKS}
    return MappingProxyType({name: version for name, version in found.items() if version})


@functools.cache
def _version(name: str) -> str:
    try:
        return distributions.version(name)
    except distributions.PackageNotFoundError:
        return ""


# --------------------------------------------------------------------------------- editions


@dataclass(frozen=True, kw_only=True)
class Party:
    """One who takes part in a session, for the selection of an edition.

    Attributes:
        name: How errors call it: `env`, `model`, `runtime`.
        can: The editions it can follow.
        want: The edition it wants; empty wants the newest it can.
    """

    name: str
    can: tuple[str, ...]
    want: str = ""


def party(name: str, said: Offer) -> Party:
    """Return the party that made an offer."""
    return Party(name=name, can=said.editions, want=said.preferred_edition)


RUNTIME = Party(name="runtime", can=EDITIONS, want=EDITION)
"""This version as the driver of a session."""


def base_of(edition: str) -> str:
    """Return the `YYYY.MM` of an edition: what stands before the first hyphen."""
    return edition.partition("-")[0]


def edition_key(edition: str) -> tuple[str, bool, str]:
    """Return what editions sort by: base, then without a cohort before with one, then cohort."""
    base, hyphen, cohort = edition.partition("-")
    return base, bool(hyphen), cohort


def admits(want: str, edition: str) -> bool:
    """Return whether someone who wants one edition accepts another.

    A bare `YYYY.MM` admits every spelling whose base is not later; a spelling with a cohort admits
    what sorts no later than itself. Nothing wanted admits all.
    """
    if not want:
        return True
    if "-" in want:
        return edition_key(edition) <= edition_key(want)
    return base_of(edition) <= want


def select_edition(parties: Sequence[Party]) -> str:
    """Return the newest edition that all parties can and each of them admits.

    Raises:
        WireError: There is none; the sentence says what each can and wants.
    """
    common = set(parties[0].can).intersection(*[one.can for one in parties[1:]])
    allowed = [edition for edition in common if all(admits(one.want, edition) for one in parties)]
    if allowed:
        return max(allowed, key=edition_key)
    told = "; ".join([f"{one.name} {_told(one)}" for one in parties])
    raise WireError(f"handshake failed: no workflow edition suits everybody: {told}")


def _told(one: Party) -> str:
    can = ", ".join(one.can[:8]) or "none"
    return f"wants {one.want or 'the newest'} and can [{can}]"


def accepts_pin(edition: str) -> bool:
    """Return whether a session may be pinned to an edition: its base is one of ours, or nothing."""
    return not edition or base_of(edition) in {base_of(one) for one in EDITIONS}
