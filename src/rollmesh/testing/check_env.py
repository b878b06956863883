"""Checks an env: what a run will trip over, said in plain sentences (layer 7).

Works on the env itself, by hand, with random actions. Scalar envs here, vector envs in
`check_vector_env`. The opening and closing is done by `check_env`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_at import env_at
from rollmesh.endpoint.envs.contracts import check_no_vec_env
from rollmesh.endpoint.envs.dm_env import adapt_dm_env, is_dm_env
from rollmesh.endpoint.envs.env_factory import EnvSource, find_source
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.reporting import OnceReporter
from rollmesh.limits import Limits
from rollmesh.spaces.gymnasium import from_gymnasium
from rollmesh.testing.bounded_env import BoundedEnv, call_on
from rollmesh.testing.check_vector_env import check_vector_env
from rollmesh.testing.findings import CheckReport
from rollmesh.testing.playing import Broken, Played, Player, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollmesh.spaces.space import Space

DEFAULT_STEPS = 1000
_EPISODES = 3
_LARGEST_PLAN_SEED = 2**31 - 1


def check_env(
    env: Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    max_steps: int = DEFAULT_STEPS,
    limits: Limits | None = None,
) -> CheckReport:
    """Play a few episodes of an env with random actions and report what is wrong with it.

    Looks at: spaces kept, seeds honoured, the same seed giving the same episode, buffers reused,
    flags and rewards typed, infos plain, what a step after the end does, autoreset as declared,
    close.

    Args:
        env: A target (`"CartPole-v1"`, `"module:callable"`, the address of a served one), a
            factory, or an instance. Only what is built here can be built twice, which is how hidden
            state outside the env is found. An instance is not closed.
        env_kwargs: Keyword arguments for the target or factory.
        seed: The first seed to play.
        max_steps: Longest episode played.
        limits: How long building or connecting, a reset, a step and closing may take. An instance
            is called on the caller's thread and has none.

    Returns:
        The report; `report.passed` says whether anything failed, `str(report)` is for people.

    Raises:
        InvalidSpec: There is no such target.
    """
    report = CheckReport(subject=_name(env))
    builder = _Builder(find_source(env, env_kwargs), report, limits or Limits())
    built = builder.build()
    if built is None:
        return report
    try:
        spaces = _spaces(built, report)
        if spaces is not None and hasattr(built, "num_envs"):
            check_vector_env(built, spaces=spaces, report=report, seed=seed, max_steps=max_steps)
        elif spaces is not None:
            fresh = builder.build if builder.is_factory else None
            _ScalarCheck(built, spaces, report, seed, max_steps).run(fresh)
    finally:
        if builder.is_ours:
            _close(built, report)
            builder.home.stop()
    return report


class _ScalarCheck:
    """The checks of one scalar env, in order; each needs the ones before it."""

    def __init__(
        self,
        env: Any,
        spaces: tuple[Space, Space],
        report: CheckReport,
        seed: int,
        max_steps: int,
    ) -> None:
        self._env = env
        self._spaces = spaces
        self._report = report
        self._seed = seed
        self._max_steps = max_steps
        self._player = self._player_of(env)

    def run(self, fresh: Any) -> None:
        """Run all checks; `fresh` builds a second env, or is None."""
        try:
            first = self._player.play(seed=self._seed)
            self._step_after_the_end(first)
            self._same_seed(first)
            if fresh is not None:
                self._same_seed_elsewhere(first, fresh)
            self._other_seeds(first)
            self._unseeded()
        except Broken:
            return
        report = self._report
        report.ok("reset", "returns an observation and an info, and takes a seed")
        report.ok("step", "accepts actions of its space and returns five values")
        report.ok("observation", "always lies in its space")
        report.ok("reward", "is always one finite number")
        report.ok("flags", "terminated and truncated are always bools")
        report.ok("info", "holds plain values only")
        report.ok("buffers", "observations given out are not written into later")

    def _player_of(self, env: Any) -> Player:
        return Player(env, spaces=self._spaces, report=self._report, max_steps=self._max_steps)

    def _step_after_the_end(self, played: Played) -> None:
        report = self._report
        if not played.ended:
            report.warn(
                "end",
                f"no episode ended within {self._max_steps} random steps; evaluate it with "
                "max_episode_steps, or it may run for ever",
            )
            return
        report.ok("end", "episodes end by themselves")
        try:
            self._player.step_once()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - refusing is the better answer
            report.ok("step after the end", f"is refused ({type(exc).__name__})")
        else:
            report.ok("step after the end", "is answered; rollmesh never takes one")

    def _same_seed(self, first: Played) -> None:
        difference = first.first_difference(self._player.play(seed=self._seed))
        if difference is not None:
            self._report.fail(
                "same seed",
                f"reset(seed={self._seed}) and the same actions give another episode: "
                f"{difference}; draw every random number from self.np_random and rebuild all "
                "state in reset",
            )
        self._report.ok("same seed", "gives the same episode again")

    def _same_seed_elsewhere(self, first: Played, fresh: Any) -> None:
        other = fresh()
        if other is None:
            raise Broken
        try:
            difference = first.first_difference(self._player_of(other).play(seed=self._seed))
        finally:
            _close(other, self._report)
        if difference is not None:
            self._report.fail(
                "same seed, new env",
                f"a second env with seed {self._seed} and the same actions gives another episode: "
                f"{difference}; results will depend on which lane an episode runs on",
            )
        self._report.ok("same seed, new env", "a second env gives the same episode")

    def _other_seeds(self, first: Played) -> None:
        episodes = [first]
        episodes += [self._player.play(seed=self._seed + k) for k in range(1, _EPISODES + 1)]
        if all(first.first_difference(other) is None for other in episodes[1:]):
            self._report.warn(
                "seeds",
                f"{len(episodes)} different seeds give the same episode: either nothing in the env "
                "is random, or reset ignores its seed",
            )
        self._player.play(seed=_LARGEST_PLAN_SEED)
        self._report.ok("seeds", "different seeds give different episodes")

    def _unseeded(self) -> None:
        self._player.play(seed=None)


class _Builder:
    """Builds the env, on a thread of its own where it comes from a factory.

    A served one is connected to: it has a thread over there, and its client the limits.
    """

    def __init__(self, source: EnvSource, report: CheckReport, limits: Limits) -> None:
        self._source = source
        self._report = report
        self._limits = limits
        self.is_factory = source.make is not None
        self.is_ours = self.is_factory or source.address is not None
        self.home = OwnThread("rollmesh-check")

    def build(self) -> Any:
        """Return the env, or None where building it failed; the report says why."""
        try:
            if not self.is_factory:
                return self._make()
            env = call_on(self.home, self._make, self._limits.env_connect_s, "building it")
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - this is what the check is for
            doing = "building it" if self._source.address is None else "connecting to it"
            self._report.fail("build", f"{doing} raised {told(exc)}")
            return None
        return BoundedEnv(env, self.home, self._limits)

    def _make(self) -> Any:
        if self._source.address is not None:
            return env_at(self._source.address, client_options(), self._limits)
        make = self._source.make
        env = self._source.instance if make is None else make(0)
        check_no_vec_env(env, "env", "the factory returned")
        return adapt_dm_env(env, OnceReporter(self._report.warn)) if is_dm_env(env) else env


def _spaces(env: Any, report: CheckReport) -> tuple[Space, Space] | None:
    prefix = "single_" if hasattr(env, "num_envs") else ""
    found: list[Space] = []
    for name in (f"{prefix}observation_space", f"{prefix}action_space"):
        space = getattr(env, name, None)
        if space is None:
            report.fail("spaces", f"{name} is missing; an env must declare it")
            continue
        try:
            found.append(from_gymnasium(space))
        except (TypeError, ValueError) as exc:
            report.fail("spaces", f"{name} cannot be used: {exc}")
    if len(found) != 2:  # noqa: PLR2004 - observation and action
        return None
    report.ok("spaces", f"observations {found[0]!r}, actions {found[1]!r}")
    return found[0], found[1]


def _close(env: Any, report: CheckReport) -> None:
    close = getattr(env, "close", None)
    if close is None or (isinstance(env, BoundedEnv) and env.is_left_behind):
        return
    try:
        close()
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - this is what the check is for
        report.fail("close", f"raised {told(exc)}")
    else:
        report.ok("close", "returns")


def _name(env: Any) -> str:
    if isinstance(env, str):
        return env
    spec = getattr(env, "spec", None)
    label = getattr(spec, "id", None) or getattr(env, "__name__", None) or type(env).__name__
    return str(label)
