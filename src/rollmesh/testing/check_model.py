"""Checks a model against an env: what a run will trip over, said in plain sentences (layer 7).

Asks the model through its port, as a run does, on observations the env really gives: one row, many
rows, chunks and horizons, twice with the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.endpoint.models.corners import find_corners
from rollmesh.endpoint.models.declared_spaces import DECLARED_FIELDS
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.errors import EndpointFault, InvalidSpec, InvalidValue, OperationTimeout
from rollmesh.limits import Limits
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    ModelPort,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetRequest,
)
from rollmesh.runtime.seeds import episode_seed
from rollmesh.testing.findings import CheckReport

if TYPE_CHECKING:
    from collections.abc import Generator

    from rollmesh.spaces.codec import Leaves

_ROWS = 3
_HORIZON = 2


def check_model(
    model: Any,
    env: Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    limits: Limits | None = None,
) -> CheckReport:
    """Ask a model for actions on first observations of an env and report what is wrong.

    Looks at: the corners it has, loading, the shape and domain of its actions, chunks and horizons,
    a batch of rows against the same rows alone, the same seed twice, and the end of an episode.

    Args:
        model: As in `rollmesh.evaluate`.
        env: As in `rollmesh.evaluate`; only its resets are used.
        env_kwargs: Keyword arguments for the env's id or factory.
        model_kwargs: Keyword arguments for the model's class or factory.
        seed: The number that the seeds of the observations follow from.
        limits: How long building, loading and closing may take.

    Returns:
        The report; `report.passed` says whether anything failed.

    Raises:
        InvalidSpec: There is no such target.
        EndpointFault: The env cannot be built or reset.
    """
    checked_limits = limits or Limits()
    report = CheckReport(subject=_name(model))
    _corners(model, report)
    contract, observation = _observations(env, env_kwargs, seed, checked_limits)
    rows = len(observation)
    with _opened(model, contract, model_kwargs, checked_limits, report) as port:
        if port is None:
            return report
        check = _ModelCheck(port, contract, observation, seed, report)
        if check.one_row():
            check.many_rows(rows)
            check.horizon()
            check.end()
    if report.passed:
        with _opened(model, contract, model_kwargs, checked_limits, report) as again:
            if again is not None:
                check.same_seed(_ModelCheck(again, contract, observation, seed, report))
    return report


class _ModelCheck:
    """The questions put to one opened model; rows are numbered like their episodes."""

    def __init__(
        self,
        port: ModelPort,
        contract: EnvContract,
        observations: Sequence[Leaves],
        seed: int,
        report: CheckReport,
    ) -> None:
        self._port = port
        self._contract = contract
        self._observations = observations
        self._seed = seed
        self._report = report
        self._count = 0
        self.first: tuple[Leaves, ...] = ()

    def one_row(self) -> bool:
        """Ask for one row; tell whether it makes sense to go on."""
        frames = self._ask([0], "one")
        if frames is None:
            return False
        self.first = frames
        space = self._contract.action_space
        self._report.ok("load", "is built and loaded")
        self._report.ok("action", f"one observation gives an action of {space!r}")
        if len(frames) > 1:
            self._report.ok("chunk", f"one observation gives a chunk of {len(frames)} actions")
        return True

    def many_rows(self, rows: int) -> None:
        """Ask for several rows at once and compare each with the same row alone."""
        together = self._ask(list(range(rows)), "batch")
        if together is None:
            return
        codec = self._contract.action_space.codec
        self._report.ok("batch", f"{rows} observations give {rows} actions")
        for row in range(rows):
            alone = self._ask([row], f"alone-{row}")
            if alone is None:
                return
            for frame, (many, single) in enumerate(zip(together, alone, strict=False)):
                if not _same(codec.take(many, [row]), single):
                    self._report.warn(
                        "batch and row",
                        f"row {row} of a batch of {rows} gets another action than alone (action "
                        f"{frame} of its chunk): results will depend on how many envs run; this is "
                        "expected only of a model that samples without context.policy_seed",
                    )
                    return
        self._report.ok("batch and row", "a row gets the same action alone and in a batch")

    def horizon(self) -> None:
        """Ask with an execution horizon."""
        frames = self._ask([0], "horizon", horizon=_HORIZON)
        if frames is not None:
            self._report.ok("horizon", f"execution_horizon={_HORIZON} gives {len(frames)} actions")

    def end(self) -> None:
        """End an episode."""
        try:
            self._port.reset_adapter(ResetAdapterRequest(self._context(), ("one",)))
        except EndpointFault as fault:
            self._report.fail(
                "episode end", f"on_episode_end raised {fault.error_class}: {fault.detail}"
            )
        else:
            self._report.ok("episode end", "is taken")

    def same_seed(self, again: _ModelCheck) -> None:
        """Compare with a model opened anew."""
        frames = again._ask([0], "one")
        if frames is None:
            return
        if len(frames) == len(self.first) and all(map(_same, frames, self.first)):
            self._report.ok("same seed", "opened again, gives the same actions for the same seed")
        else:
            self._report.warn(
                "same seed",
                "opened again, it gives other actions for the same observation and seed: runs "
                "cannot be repeated; draw its randomness from context.policy_seed",
            )

    def _ask(
        self, rows: list[int], episode: str, *, horizon: int | None = None
    ) -> tuple[Leaves, ...] | None:
        """Return the frames for these rows, or None where the report says what went wrong."""
        gather = self._contract.observation_space.codec.gather
        request = PredictRequest(
            context=self._context(),
            observation=gather([(self._observations[row], 0) for row in rows]),
            episode_info=tuple(
                [
                    EpisodeInfo(
                        episode if len(rows) == 1 else f"{episode}-{row}",
                        episode_seed(self._seed, "", row),
                    )
                    for row in rows
                ]
            ),
            execution_horizon=horizon,
        )
        asked = f"asked for {len(rows)} row{'s' if len(rows) > 1 else ''}"
        try:
            reply = self._port.predict(request)
            for frame in reply.frames:
                self._contract.action_space.codec.verify(frame, len(rows))
        except EndpointFault as fault:
            text = f"{asked}, it raised {fault.error_class}: {fault.detail}"
            self._report.fail("action", text)
            return None
        except InvalidValue as error:
            self._report.fail("action", f"{asked}, it gave {error}")
            return None
        return reply.frames

    def _context(self) -> AdapterContext:
        self._count += 1
        return AdapterContext("check", "check", f"check:{self._count:06d}")


@contextmanager
def _opened(
    model: Any,
    contract: EnvContract,
    model_kwargs: Mapping[str, Any] | None,
    limits: Limits,
    report: CheckReport,
) -> Generator[ModelPort | None]:
    """Open the model and release it in the end; None where the report says why not."""
    try:
        port = open_model(
            model,
            observation_space=contract.observation_space,
            action_space=contract.action_space,
            report=lambda path, detail: report.warn("action", f"{path}: {detail}"),
            limits=limits,
            model_kwargs=model_kwargs,
        )
    except EndpointFault as fault:
        report.fail("load", f"raised {fault.error_class}: {fault.detail}")
        yield None
        return
    except OperationTimeout as error:
        report.fail("load", str(error))
        yield None
        return
    except InvalidSpec as error:
        if error.field not in DECLARED_FIELDS:
            raise
        report.fail("spaces", str(error))
        yield None
        return
    try:
        yield port
    finally:
        context = AdapterContext("check", "check", "check:release")
        try:
            port.release_adapter(ReleaseAdapterRequest(context, "checked", limits.close_s))
        except EndpointFault as fault:
            report.fail("close", f"raised {fault.error_class}: {fault.detail}")
        else:
            report.ok("close", "returns")


def _observations(
    env: Any, env_kwargs: Mapping[str, Any] | None, seed: int, limits: Limits
) -> tuple[EnvContract, list[Leaves]]:
    """Return the env's contract and a few first observations, a batch of one row each."""
    port = open_env(env, env_kwargs=env_kwargs, limits=limits)
    try:
        contract = port.contract
        take = contract.observation_space.codec.take
        found: list[Leaves] = []
        while len(found) < _ROWS:
            rows = range(len(found), len(found) + contract.num_envs)
            request = ResetRequest(
                episode_ids=tuple([f"check-{row}" for row in rows]),
                seeds=tuple([episode_seed(seed, "", row) for row in rows]),
            )
            reply = port.reset(request)
            found += [take(reply.observation, [row]) for row in range(contract.num_envs)]
    finally:
        if not is_env(env):
            port.close(limits.close_s)
    return contract, found[:_ROWS]


def _corners(model: Any, report: CheckReport) -> None:
    """Say which corners a policy that is here already has; targets are read when opened."""
    if isinstance(model, (str, type)):
        return
    try:
        corners = find_corners(model)
    except InvalidSpec:
        return  # a torch module or an algorithm: opened by its own wrapper
    own = [
        name
        for name in ("predict", "predict_chunk", "predict_batch", "predict_chunk_batch")
        if getattr(corners, name) is not None
    ]
    report.ok(
        "corners", f"has {', '.join(own)}; the others are derived" if own else "is a callable"
    )


def _same(ours: Leaves, theirs: Leaves) -> bool:
    return len(ours) == len(theirs) and all(
        bytes(one) == bytes(other) for one, other in zip(ours, theirs, strict=True)
    )


def _name(model: Any) -> str:
    if isinstance(model, str):
        return model
    return str(getattr(model, "__qualname__", None) or type(model).__name__)
