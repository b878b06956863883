"""rollmesh runs any policy in any environment and produces a number people can trust.

This is the public door: every name in `__all__` is loaded from its module when it is first used,
so that `import rollmesh` stays cheap and pulls in no simulator, statistics or terminal library.
It sits above all layers and holds nothing but the list.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmesh.api import evaluate
    from rollmesh.connecting import connect
    from rollmesh.endpoint.clients.remote_env import RemoteEnv
    from rollmesh.endpoint.clients.remote_model import RemoteModel
    from rollmesh.endpoint.clients.remote_vector_env import RemoteVectorEnv
    from rollmesh.endpoint.models.model import EpisodeContext, Model
    from rollmesh.endpoint.servers.env_server import EnvServer
    from rollmesh.endpoint.servers.model_server import ModelServer
    from rollmesh.endpoint.servers.server_options import ServerOptions
    from rollmesh.errors import (
        EnvFailed,
        InvalidSpec,
        ModelFailed,
        OperationTimeout,
        RollmeshError,
        RouteCancelled,
        RouteError,
    )
    from rollmesh.fleet.plan import Plan, Task
    from rollmesh.limits import Limits
    from rollmesh.ports import AutoresetMode
    from rollmesh.results.compare import compare
    from rollmesh.results.result import EvalResult
    from rollmesh.runtime.background_hooks import BackgroundHooks
    from rollmesh.runtime.cancel import CancelToken
    from rollmesh.runtime.hooks import Hooks
    from rollmesh.session import Session
    from rollmesh.transport.security import TlsClient, TlsServer

__version__ = "0.1.0"

__all__ = [
    "AutoresetMode",
    "BackgroundHooks",
    "CancelToken",
    "EnvFailed",
    "EnvServer",
    "EpisodeContext",
    "EvalResult",
    "Hooks",
    "InvalidSpec",
    "Limits",
    "Model",
    "ModelFailed",
    "ModelServer",
    "OperationTimeout",
    "Plan",
    "RemoteEnv",
    "RemoteModel",
    "RemoteVectorEnv",
    "RollmeshError",
    "RouteCancelled",
    "RouteError",
    "ServerOptions",
    "Session",
    "Task",
    "TlsClient",
    "TlsServer",
    "__version__",
    "compare",
    "connect",
    "evaluate",
]

_MODULE_OF = {
    "AutoresetMode": "rollmesh.ports",
    "BackgroundHooks": "rollmesh.runtime.background_hooks",
    "CancelToken": "rollmesh.runtime.cancel",
    "EnvFailed": "rollmesh.errors",
    "EnvServer": "rollmesh.endpoint.servers.env_server",
    "EpisodeContext": "rollmesh.endpoint.models.model",
    "EvalResult": "rollmesh.results.result",
    "Hooks": "rollmesh.runtime.hooks",
    "InvalidSpec": "rollmesh.errors",
    "Limits": "rollmesh.limits",
    "Model": "rollmesh.endpoint.models.model",
    "ModelFailed": "rollmesh.errors",
    "ModelServer": "rollmesh.endpoint.servers.model_server",
    "OperationTimeout": "rollmesh.errors",
    "Plan": "rollmesh.fleet.plan",
    "RemoteEnv": "rollmesh.endpoint.clients.remote_env",
    "RemoteModel": "rollmesh.endpoint.clients.remote_model",
    "RemoteVectorEnv": "rollmesh.endpoint.clients.remote_vector_env",
    "RollmeshError": "rollmesh.errors",
    "RouteCancelled": "rollmesh.errors",
    "RouteError": "rollmesh.errors",
    "ServerOptions": "rollmesh.endpoint.servers.server_options",
    "Session": "rollmesh.session",
    "Task": "rollmesh.fleet.plan",
    "TlsClient": "rollmesh.transport.security",
    "TlsServer": "rollmesh.transport.security",
    "compare": "rollmesh.results.compare",
    "connect": "rollmesh.connecting",
    "evaluate": "rollmesh.api",
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and flags a name that is not there

    def __getattr__(name: str) -> object:
        """Load a public name from its module and keep it (PEP 562)."""
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module 'rollmesh' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(module), name)
        globals()[name] = value
        _register_envs()
        return value

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return sorted({*globals(), *__all__})


def _register_envs() -> None:
    """Have Gymnasium know the ids of served envs, where it is loaded: then that costs nothing."""
    if hasattr(sys.modules.get("gymnasium"), "register"):
        from importlib import import_module

        import_module("rollmesh.gymnasium_plugin")


_register_envs()
