"""Observers for other people's tools: Prometheus, OpenTelemetry and experiment trackers (layer 7).

Each is a hooks object in a module of its own, and needs a library that comes with an extra of the
same name. They watch; nothing they do reaches a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmesh.observers.observer import Observer

_CLASSES = {
    "prometheus": ("rollmesh.observers.prometheus", "PrometheusHooks"),
    "opentelemetry": ("rollmesh.observers.opentelemetry", "OpenTelemetryHooks"),
    "wandb": ("rollmesh.observers.wandb", "WandbHooks"),
    "mlflow": ("rollmesh.observers.mlflow", "MlflowHooks"),
    "tensorboard": ("rollmesh.observers.tensorboard", "TensorBoardHooks"),
}
NAMES = tuple(_CLASSES)


def open(name: str, /, **options: Any) -> Observer:  # noqa: A001 - reads as `observers.open(...)`
    """Return an observer by name: a hooks object that is closed after the run.

    ```python
    with observers.open("tensorboard", folder="logs") as watching:
        rollmesh.evaluate(policy, env, episodes=100, hooks=watching)
    ```

    Args:
        name: One of `NAMES`.
        options: Keyword arguments of its class.

    Raises:
        InvalidSpec: No observer has this name, an option is wrong, its library is missing, or it
            could not begin: a port is taken, a tracking server does not answer.
    """
    from importlib import import_module

    from rollmesh.errors import InvalidSpec

    if name not in _CLASSES:
        raise InvalidSpec("observer", f"wants one of {', '.join(NAMES)}, got {name!r}")
    module, attribute = _CLASSES[name]
    make = getattr(import_module(module), attribute)
    try:
        return make(**options)
    except InvalidSpec:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidSpec(name, f"cannot watch this run: {said}") from error
