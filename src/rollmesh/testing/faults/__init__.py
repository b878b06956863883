"""The fault kit: breaks connections, processes, envs and policies on purpose (layer 7).

What rollmesh's own promises are tested with, for users to break their own envs with:

- `FaultProxy` (`proxy.py`) stands between a client and a server and stalls, splits, delays, cuts
  and resets what passes, on command or by a plan drawn from a seed.
- `Child` (`processes.py`) runs a function in a process of its own, to be stopped, killed and
  waited for; `take_stock` (`stock.py`) tells what a test left behind.
- `broken_env` (`envs.py`) and `broken_model` (`models.py`) wrap any env or policy and misbehave in
  a way that has a name, at a step that is given.

Nothing here is imported by the rest of rollmesh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmesh.testing.faults.envs import ENV_FAULTS, broken_env
    from rollmesh.testing.faults.links import LinkState
    from rollmesh.testing.faults.models import MODEL_FAULTS, broken_model
    from rollmesh.testing.faults.plans import LinkFaults, PipeFaults, seeded_plan
    from rollmesh.testing.faults.processes import Child
    from rollmesh.testing.faults.proxy import FaultProxy
    from rollmesh.testing.faults.stock import Stock, take_stock

__all__ = [
    "ENV_FAULTS",
    "MODEL_FAULTS",
    "Child",
    "FaultProxy",
    "LinkFaults",
    "LinkState",
    "PipeFaults",
    "Stock",
    "broken_env",
    "broken_model",
    "seeded_plan",
    "take_stock",
]

_MODULE_OF = {
    "ENV_FAULTS": "envs",
    "MODEL_FAULTS": "models",
    "Child": "processes",
    "FaultProxy": "proxy",
    "LinkFaults": "plans",
    "LinkState": "links",
    "PipeFaults": "plans",
    "Stock": "stock",
    "broken_env": "envs",
    "broken_model": "models",
    "seeded_plan": "plans",
    "take_stock": "stock",
}

if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> object:
        """Load a public name from its module: a child process needs one of them, not gymnasium."""
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{module}"), name)

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return sorted({*globals(), *__all__})
