"""`--tune`: measures a minute, says what it found, and chooses (layer 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmesh.cli.output import Output


def tuned(output: Output, model: str, env: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `evaluate` that measurements speak for, and show these.

    Raises:
        InvalidSpec: The env is none that workers could build.
        EndpointFault: Building, loading, a step or a call failed.
        PortTimeout: Something did not come back.
    """
    from rollmesh.fleet.settings import FleetSettings
    from rollmesh.tuning import TuningOptions, tune

    plan, workers = arguments["plan"], arguments["workers"]
    options = TuningOptions(
        settings=arguments["fleet"] or FleetSettings(),
        task=None if plan is None else plan.tasks[0],
        most_workers=workers if isinstance(workers, int) else None,
        env_kwargs=arguments["env_kwargs"],
        model_kwargs=arguments["model_kwargs"],
        limits=arguments["limits"],
        execution_horizon=arguments["execution_horizon"],
    )
    found = tune(model, env, options=options)
    output.note(found.table())
    return {"workers": found.workers, "fleet": found.settings}
