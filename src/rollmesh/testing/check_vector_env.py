"""Checks a vector env: batches, flags, seeds per lane, and autoreset as declared (layer 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmesh.endpoint.envs.contracts import read_autoreset_mode
from rollmesh.errors import InvalidSpec, InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.gymnasium import to_gymnasium
from rollmesh.testing.playing import Broken, is_step_answer, kind, told

if TYPE_CHECKING:
    from rollmesh.spaces.space import Space
    from rollmesh.testing.findings import CheckReport

_COMPARED_STEPS = 20


def check_vector_env(
    env: Any, *, spaces: tuple[Space, Space], report: CheckReport, seed: int, max_steps: int
) -> None:
    """Add to `report` what a vector env does against the rules of its declared autoreset mode."""
    check = _VectorCheck(env, spaces, report, max_steps)
    try:
        mode = check.mode()
        check.seeds(seed)
        check.autoreset(mode, seed)
    except Broken:
        return
    report.ok("reset", f"returns a batch of {env.num_envs} observations and takes a seed a lane")
    report.ok("step", f"returns batches of {env.num_envs}")
    report.ok("observation", "always lies in its space")
    report.ok("flags", "terminated and truncated are arrays of bools")


class _VectorCheck:
    def __init__(
        self, env: Any, spaces: tuple[Space, Space], report: CheckReport, max_steps: int
    ) -> None:
        self._env = env
        self._n = int(env.num_envs)
        self._codec = spaces[0].codec
        self._actions: Any = to_gymnasium(spaces[1])
        self._report = report
        self._max_steps = max_steps
        self._checker = Checker(
            root="observation",
            policy="warn",
            nan="policy",
            report=lambda path, detail: report.fail("observation", f"{path}: {detail}"),
        )

    def mode(self) -> str:
        """Return the declared autoreset mode's name."""
        metadata: Mapping[str, Any] = getattr(self._env, "metadata", None) or {}
        declared = metadata.get("autoreset_mode")
        try:
            return read_autoreset_mode(declared).name
        except InvalidSpec as exc:
            self._report.fail(
                "autoreset",
                f"metadata['autoreset_mode'] is {declared!r}; declare one of "
                "gymnasium.vector.AutoresetMode, or nobody knows which observation ends an episode",
            )
            raise Broken from exc

    def seeds(self, seed: int) -> None:
        """Check that a seed a lane is taken and decides the lane's episode."""
        lanes = [seed + k for k in range(self._n)]
        first, second = self._opening(lanes), self._opening(lanes)
        if first != second:
            self._report.fail(
                "same seed",
                "the same seeds and actions give other observations; draw every random number from "
                "the lane's own generator and rebuild all state in reset",
            )
        self._report.ok("same seed", "gives the same observations again")

    def autoreset(self, mode: str, seed: int) -> None:
        """Play until a lane ends and check what happens to it next."""
        self._actions.seed(seed)
        self._reset([seed + k for k in range(self._n)])
        for _ in range(self._max_steps):
            rows, ended, info = self._step()
            if not ended.any():
                continue
            lane = int(np.flatnonzero(ended)[0])
            check = {
                "NEXT_STEP": self._next_step,
                "SAME_STEP": self._same_step,
                "DISABLED": self._disabled,
            }[mode]
            check(lane, ended, rows, info)
            self._report.ok("autoreset", f"does what {mode} says")
            return
        self._report.warn(
            "autoreset",
            f"no episode ended within {self._max_steps} random steps: {mode} was not seen at work",
        )

    # ------------------------------------------------------------------------------ modes

    def _next_step(self, lane: int, _ended: Any, _rows: list[bytes], _info: Any) -> None:
        rewards, again = self._rolled()
        if rewards[lane] != 0 or again[lane]:
            self._report.fail(
                "autoreset",
                f"after lane {lane} ended, its next step must be its reset with reward 0 and both "
                f"flags False (NEXT_STEP); it gave reward {float(rewards[lane])!r} and ended="
                f"{bool(again[lane])}",
            )

    def _same_step(self, lane: int, _ended: Any, _rows: list[bytes], info: Any) -> None:
        for key in ("final_obs", "final_info"):
            if not _is_told(info, key, lane):
                self._report.fail(
                    "autoreset",
                    f"lane {lane} ended without info[{key!r}] (SAME_STEP): the last observation "
                    "and info of the episode are lost",
                )

    def _disabled(self, lane: int, ended: Any, rows: list[bytes], _info: Any) -> None:
        try:
            answer = self._env.reset(options={"reset_mask": np.asarray(ended, dtype=np.bool_)})
        except Exception as exc:  # noqa: BLE001 - this is what the check is for
            self._report.fail(
                "autoreset",
                f"resetting only lane {lane} by options['reset_mask'] raised {told(exc)}; a "
                "DISABLED vector env wider than 1 needs it",
            )
            return
        after = self._rows(answer[0])
        for k in range(self._n):
            if not ended[k] and after[k] != rows[k]:
                self._report.fail(
                    "autoreset", f"resetting lane {lane} alone changed lane {k}'s observation"
                )

    # ------------------------------------------------------------------------------ calls

    def _opening(self, lanes: list[int]) -> list[list[bytes]]:
        self._actions.seed(0)
        seen = [self._reset(lanes)]
        for _ in range(_COMPARED_STEPS):
            rows, ended, _ = self._step()
            seen.append(rows)
            if ended.any():
                break
        return seen

    def _reset(self, lanes: list[int]) -> list[bytes]:
        try:
            observation, _ = self._env.reset(seed=lanes)
        except Exception as exc:
            self._report.fail("reset", f"reset(seed={lanes}) raised {told(exc)}")
            raise Broken from exc
        return self._rows(observation)

    def _call_step(self) -> tuple[Any, Any, Any, Any, Any]:
        from gymnasium.vector.utils import concatenate, create_empty_array

        actions = [self._actions.sample() for _ in range(self._n)]
        empty = create_empty_array(self._actions, n=self._n)
        batch = concatenate(self._actions, actions, empty)
        try:
            answer = self._env.step(batch)
        except Exception as exc:
            self._report.fail("step", f"raised {told(exc)} on actions of its own space")
            raise Broken from exc
        if not is_step_answer(answer):
            self._report.fail("step", f"returned {kind(answer)} where five values are wanted")
            raise Broken
        return answer

    def _step(self) -> tuple[list[bytes], Any, Any]:
        observation, rewards, terminated, truncated, info = self._call_step()
        if np.shape(rewards) != (self._n,):  # pyright: ignore[reportUnknownMemberType] - the stub
            self._report.fail("reward", f"is {kind(rewards)} where shape ({self._n},) is wanted")
        ended = self._flags("terminated", terminated) | self._flags("truncated", truncated)
        return self._rows(observation), ended, info

    def _rolled(self) -> tuple[Any, Any]:
        _, rewards, terminated, truncated, _ = self._call_step()
        return np.asarray(rewards), self._flags("terminated", terminated) | self._flags(
            "truncated", truncated
        )

    def _flags(self, name: str, value: Any) -> Any:
        flags = np.asarray(value)
        if flags.shape != (self._n,):
            self._report.fail("flags", f"{name} is {kind(value)}; shape ({self._n},) is wanted")
            raise Broken
        if flags.dtype != np.bool_:
            self._report.warn("flags", f"{name} has dtype {flags.dtype}; it is read as bool")
        return flags.astype(np.bool_)

    def _rows(self, observation: Any) -> list[bytes]:
        codec = self._codec
        try:
            leaves = codec.encode_stacked(observation, self._n, self._checker)
        except InvalidValue as exc:
            self._report.fail("observation", str(exc))
            raise Broken from exc
        return [
            b"".join(bytes(part) for part in codec.to_buffers(codec.take(leaves, [k])))
            for k in range(self._n)
        ]


def _is_told(infos: Mapping[str, Any] | Sequence[Mapping[str, Any]], key: str, lane: int) -> bool:
    """Return whether a lane's info has this key: with its mask, or in a list with a dict a lane."""
    if not isinstance(infos, Mapping):
        return infos[lane].get(key) is not None
    mask = infos.get(f"_{key}")
    return infos.get(key) is not None and mask is not None and bool(np.asarray(mask)[lane])
