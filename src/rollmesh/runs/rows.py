"""Rows of the store: episodes and attempts as plain values, and their checksums (layer 7).

Pure. A row is a tuple of what SQLite keeps without change: int, float, str, bytes, None. Two values
need care: NaN, which SQLite turns into NULL (no total reward is ever NULL otherwise, so it stands
for NaN), and integers of more than 64 bits, which are written as text.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import msgspec

from rollmesh.results.result import EpisodeResult
from rollmesh.spaces.conformance import OddObservations

Row: TypeAlias = tuple[Any, ...]

EPISODE_COLUMNS = (
    "sequence",
    "plan_index",
    "task",
    "seed",
    "episode_id",
    "env_index",
    "steps",
    "total_reward",
    "success",
    "terminated",
    "truncated",
    "duration_s",
    "error",
    "attempts",
    "causes",
    "odd_observations",
    "ended_at",
)
"""What an episode's checksum is taken over, in this order; without `odd_observations` of none."""
ATTEMPT_COLUMNS = (
    "plan_index",
    "attempt",
    "worker",
    "cause",
    "signal",
    "exit_code",
    "stderr",
    "failed_at",
)
CHECKSUM_BYTES = 8
_ODD = EPISODE_COLUMNS.index("odd_observations")

_LEAST, _MOST = -(2**63), 2**63 - 1
_packed = msgspec.msgpack.Encoder().encode
_causes_of = msgspec.json.Decoder(tuple[str, ...]).decode
_odd_of = msgspec.json.Decoder(tuple[OddObservations, ...]).decode


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """One try at an episode that came to nothing and was made again, or was the last.

    Attributes:
        index: The episode's place in the plan; None where a worker was lost without one.
        attempt: Which try it was, from 1.
        cause: Why it failed, in one line.
        worker: The worker process, where there was one.
        signal: What killed that, or None.
        exit_code: What it exited with, or None.
        stderr: The last lines it wrote to standard error.
    """

    index: int | None
    attempt: int
    cause: str
    worker: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    stderr: str = ""


def episode_row(episode: EpisodeResult, ended_at: float) -> Row:
    """Return an episode's row, all but the sequence number in front, which it gets when kept.

    Args:
        episode: What to keep.
        ended_at: When it ended, in seconds since 1970.

    Raises:
        TypeError, ValueError: A field is not what it should be.
    """
    reward = float(episode.total_reward)
    success, error = episode.success, episode.error
    return (
        int(episode.index),
        clean_text(episode.task),
        _whole(episode.seed),
        clean_text(episode.episode_id),
        int(episode.env_index),
        int(episode.steps),
        None if math.isnan(reward) else reward,
        None if success is None else int(success),
        int(episode.terminated),
        int(episode.truncated),
        float(episode.duration_s),
        None if error is None else clean_text(error),
        int(episode.attempts),
        json.dumps([clean_text(c) for c in episode.causes]) if episode.causes else None,
        _odd_text(episode.odd_observations) if episode.odd_observations else None,
        ended_at,
    )


def episode_of(row: Row) -> EpisodeResult:
    """Return the episode of a row."""
    seed, reward, success, causes, odd = row[3], row[7], row[8], row[14], row[15]
    return EpisodeResult(
        index=row[1],
        task=row[2],
        seed=int(seed) if isinstance(seed, str) else seed,
        episode_id=row[4],
        env_index=row[5],
        steps=row[6],
        total_reward=math.nan if reward is None else reward,
        success=None if success is None else bool(success),
        terminated=bool(row[9]),
        truncated=bool(row[10]),
        duration_s=row[11],
        error=row[12],
        attempts=row[13],
        causes=() if causes is None else _causes_of(causes),
        odd_observations=() if odd is None else _odd_of(odd),
    )


def _odd_text(odd: tuple[OddObservations, ...]) -> str:
    return json.dumps([{**asdict(one), "path": clean_text(one.path)} for one in odd])


def attempt_row(attempt: FailedAttempt, failed_at: float) -> Row:
    """Return a failed attempt's row; `failed_at` in seconds since 1970."""
    return (
        attempt.index,
        attempt.attempt,
        attempt.worker,
        clean_text(attempt.cause),
        attempt.signal,
        attempt.exit_code,
        clean_text(attempt.stderr),
        failed_at,
    )


def attempt_of(row: Row) -> FailedAttempt:
    """Return the failed attempt of a row."""
    return FailedAttempt(
        index=row[0],
        attempt=row[1],
        worker=row[2],
        cause=row[3],
        signal=row[4],
        exit_code=row[5],
        stderr=row[6],
    )


def checksum(row: Row, before: bytes = b"") -> bytes:
    """Return the checksum of a row, chained to the one before it.

    BLAKE2b, 64 bits, over the checksum before and the row as MessagePack, whose spelling of these
    values is fixed.
    """
    return hashlib.blake2b(before + _packed(row), digest_size=CHECKSUM_BYTES).digest()


def episode_checksum(row: Row, before: bytes) -> bytes:
    """Return the checksum of an episode's row, with its sequence number, chained.

    One without odd observations has that of the first format, which did not know of any.
    """
    return checksum((*row[:_ODD], *row[_ODD + 1 :]) if row[_ODD] is None else row, before)


def clean_text(text: str) -> str:
    """Return a text that UTF-8 can carry: half a character becomes an escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _whole(number: int | None) -> int | str | None:
    if number is None or _LEAST <= number <= _MOST:
        return None if number is None else int(number)
    return str(number)
