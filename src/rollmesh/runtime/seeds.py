"""Seeds of episodes and policies, derived and never drawn (layer 3, rule R41).

Pure functions of their arguments: this module knows no route, no randomness and no time. Drawing a
plan seed is the business of whoever starts a run.

Two derivations. `session_seed` is the reference system's, for sessions without a plan: it depends
on the session id and on how often a group was reset. `episode_seed` and `policy_seed` depend on
nothing but the plan, so that a result can be repeated under any schedule.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = (1 << 64) - 1
_TOP_BIT_CLEARED = (1 << 63) - 1
_SEED_RANGE = 2**31
"""Plan seeds stay below 2**31, small enough for numpy's legacy seeding."""


def session_seed(base_seed: int, session_id: str, generation: int, env_index: int) -> int:
    """Return the seed of a lane's reset in a session without a plan, in [0, 2**63).

    Args:
        base_seed: The session's base seed, a signed 64-bit integer.
        session_id: The session's id.
        generation: Number of reset calls the lane's group had before; 0 for the first.
        env_index: The lane.

    Raises:
        OverflowError: A number does not fit its 8 bytes.
    """
    tail = b"".join((generation.to_bytes(8, "little"), b"\xfc", env_index.to_bytes(8, "little")))
    return _fnv1a(_session_prefix(base_seed, session_id), tail) & _TOP_BIT_CLEARED


def episode_seed(plan_seed: int, task: str, index: int) -> int:
    """Return the env seed of episode `index` of a task, in [0, 2**31).

    Guarantees: distinct for 2**31 consecutive indices of one plan seed and task; the same on every
    machine and in every version that keeps the label `env-seed/1`.
    """
    start, stride = _arithmetic("env-seed", plan_seed, task)
    return (start + index * stride) % _SEED_RANGE


def policy_seed(plan_seed: int, task: str, index: int) -> int:
    """Return the policy seed of episode `index` of a task, in [0, 2**31).

    Guarantees: as `episode_seed`, and derived apart from it.
    """
    start, stride = _arithmetic("policy-seed", plan_seed, task)
    return (start + index * stride) % _SEED_RANGE


@lru_cache(maxsize=1024)
def _arithmetic(purpose: str, plan_seed: int, task: str) -> tuple[int, int]:
    """Return start and odd stride of a task's seeds; an odd stride visits all of [0, 2**31)."""
    label = f"rollmesh/{purpose}/1\0{plan_seed}\0{task}".encode()
    digest = hashlib.blake2b(label, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


@lru_cache(maxsize=64)
def _session_prefix(base_seed: int, session_id: str) -> int:
    """Return the hash over what all seeds of one session share."""
    head = base_seed.to_bytes(8, "little", signed=True)
    return _fnv1a(_FNV_OFFSET, b"".join((head, b"\xff", session_id.encode(), b"\xfd")))


def _fnv1a(state: int, data: bytes) -> int:
    """Return FNV-1a 64 over `data`, continued from `state`.

    Source: Fowler, Noll, Vo (IETF draft-eastlake-fnv).
    """
    for byte in data:
        state = ((state ^ byte) * _FNV_PRIME) & _MASK_64
    return state
