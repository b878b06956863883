"""Ways with an env or a model that is served, by servers on threads of this process.

| way | env | model |
|---|---|---|
| env over unix, tcp, grpc | served, a factory | a callable |
| session over unix | served | an object, turned by hand |
| isolated env | served, in a process of its own | a callable |
| model over unix, grpc | a factory | served, an object |
| both over tcp | served | served |
| lanes over unix, grpc | served, K lanes | a callable, or served |
| … vector over unix | SyncVectorEnv of that mode, served | a callable |

Between rollmesh ends nothing is lost over gRPC either; what foreign peers cannot say stands in
`docs/wire-compatibility.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmesh import evaluate
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from tests.cases.case_files import environment, loaded
from tests.cases.case_run import NO_VARIANT, CaseRun
from tests.cases.recording import Outcome
from tests.cases.ways import ByHand, Lanes, SingleLane, Vector, make_vector_env

LARGEST_SEED = 2**63 - 1
TOO_LARGE_MIB = 300
CHANGES_ITS_MODULE = frozenset({"C28", "C30"})
"""Their `make_env` sets for a variant what the policy reads, and the policy is in this process."""
SLOW_IN_CHILD = frozenset(
    {"env over grpc", "session over unix", "model over unix", "lanes over grpc, model too"}
)
"""Ways that run with the slow tests where a case has a process of its own: others show as much."""
OVER_TCP = frozenset({"C16", "C31", "C33", "C36", "C44", "C62", "C69"})
"""Cases that run over TCP with the quick tests: the others differ from a unix socket in nothing."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """How a served endpoint is reached.

    Attributes:
        address: Where servers listen.
        transport: Which path clients take.
    """

    address: str
    transport: str = "auto"


UNIX = Link(address="rollmesh+unix://")
TCP = Link(address="rollmesh+tcp://127.0.0.1:0")
GRPC = Link(address="tcp://127.0.0.1:0", transport="grpc")


def options(**given: Any) -> ServerOptions:
    """Return the options of a server that a case may leave hanging, and is reached as it says."""
    return ServerOptions(
        expose_tracebacks=True,
        drain_timeout_s=0.2,
        close_timeout_s=0.5,
        build_timeout_s=30,
        native=False,
        **given,
    )


@contextlib.contextmanager
def served_env(env: Any, link: Link, **given: Any) -> Iterator[str]:
    """Serve an env and give its address."""
    with (
        environment({"ROLLMESH_TRANSPORT": link.transport}),
        EnvServer(env, link.address, options(**given)) as server,
    ):
        yield server.address


@contextlib.contextmanager
def served_model(model: Any, link: Link) -> Iterator[str]:
    """Serve a model and give its address."""
    with (
        environment({"ROLLMESH_TRANSPORT": link.transport}),
        ModelServer(model, link.address, options()) as server,
    ):
        yield server.address


def is_isolated(way: str) -> bool:
    """Tell whether the env of a way has a process of its own."""
    return way == IsolatedEnv.name or way.startswith("workers")


def is_env_served(way: str) -> bool:
    """Tell whether the env of a way is served."""
    return way.startswith(("env over", "session over", "both", "lanes over")) or is_isolated(way)


def refuses_seeds(run: CaseRun) -> str | None:
    """Return why the seeds of a case cannot be sent, or None."""
    if any([isinstance(seed, int) and seed > LARGEST_SEED for seed in run.seeds or ()]):
        return "seeds of a served env or model are below 2**63, and larger ones are refused"
    return None


class ServedEnv(SingleLane):
    """A served env and a callable.

    Args:
        name: Of the way.
        link: How the env is reached.
        quick: The cases that do not run with the slow tests; None is all.
    """

    def __init__(self, name: str, link: Link, quick: frozenset[str] | None = None) -> None:
        self.name, self._link, self._quick = name, link, quick

    def is_slow(self, case_id: str) -> bool:
        return self._quick is not None and case_id not in self._quick

    def refuses(self, run: CaseRun) -> str | None:
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with served_env(run.factory, self._link) as address:
            outcome.result = evaluate(
                run.make_policy(), address, hooks=outcome.recorder, **run.arguments
            )


class ServedByHand(ByHand):
    """A served env that a `Session` turns."""

    name = "session over unix"

    def refuses(self, run: CaseRun) -> str | None:
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with served_env(run.factory, UNIX) as address:
            self.turn(run, address, outcome)


class IsolatedEnv(SingleLane):
    """A served env in a process of its own, and a callable."""

    name = "isolated env"
    has_processes = True
    QUICK = frozenset({"C47", "C48", "C50", "C51", "C52"})
    """What is about processes; the others run with the slow tests."""

    def is_slow(self, case_id: str) -> bool:
        return case_id not in self.QUICK

    WARNS = frozenset({"C36", "C45", "C63"})
    """Their env's process warns, on its own standard error, and the case looks for that here."""

    def refuses(self, run: CaseRun) -> str | None:
        if run.case.ID in self.WARNS and run.variant not in ("hang", "ok"):
            return "the env's process warns on its own standard error, where the case does not look"
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        kwargs: dict[str, Any] = {"path": run.case.__file__}
        if run.variant is not NO_VARIANT:
            kwargs["variant"] = run.variant
            if run.case.ID in CHANGES_ITS_MODULE:
                run.make_env()
        builder = "tests.cases.served_ways:make_env"
        with served_env(builder, UNIX, isolate="process", env_kwargs=kwargs) as address:
            outcome.result = evaluate(
                run.make_policy(), address, hooks=outcome.recorder, **run.arguments
            )


def make_env(path: str, variant: Any = NO_VARIANT) -> Any:
    """Build a case's env in a process of its own."""
    stack = contextlib.ExitStack()  # the case stays loaded until the process ends
    case = stack.enter_context(loaded(Path(path)))
    stack.pop_all()
    return CaseRun(case=case, run={}, variant=variant).make_env(0)


class ServedModel(SingleLane):
    """A factory, and a served model."""

    def __init__(self, name: str, link: Link) -> None:
        self.name, self._link = name, link

    def refuses(self, run: CaseRun) -> str | None:
        if run.case.ID == "C33" and run.variant == TOO_LARGE_MIB:
            return "the model is asked first: what is too large to be sent fails there"
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with served_model(run.make_policy(), self._link) as address:
            outcome.result = evaluate(address, run.factory, hooks=outcome.recorder, **run.arguments)


class ServedBoth(SingleLane):
    """Env and model are served."""

    name = "both over tcp"

    def is_slow(self, case_id: str) -> bool:
        return case_id not in OVER_TCP

    def refuses(self, run: CaseRun) -> str | None:
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with (
            served_env(run.factory, TCP) as env,
            served_model(run.make_policy(), TCP) as model,
        ):
            outcome.result = evaluate(model, env, hooks=outcome.recorder, **run.arguments)


class ServedLanes(Lanes):
    """Lanes of one server, and a callable or a served model."""

    def __init__(self, name: str, link: Link, *, serves_model: bool) -> None:
        self.name, self._link, self._serves_model = name, link, serves_model

    def refuses(self, run: CaseRun) -> str | None:
        return refuses_seeds(run)

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with contextlib.ExitStack() as stack:
            serve = stack.enter_context
            env = serve(served_env(run.factory, self._link, num_envs=run.lanes))
            model = run.make_policy()
            if self._serves_model:
                model = serve(served_model(model, self._link))
            outcome.result = evaluate(model, env, hooks=outcome.recorder, **run.arguments)


class ServedVector(Vector):
    """A served vector env, and a callable."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.name = f"{mode.lower()} vector over unix"

    def refuses(self, run: CaseRun) -> str | None:
        return refuses_seeds(run) or (None if run.deadlines else super().refuses(run))

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        with served_env(lambda: make_vector_env(run, self.mode), UNIX) as address:
            outcome.result = evaluate(
                run.make_policy(), address, hooks=outcome.recorder, **run.arguments
            )
