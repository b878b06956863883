"""Registers the ids of served envs with Gymnasium, when it is imported (layer 8).

```python
import gymnasium
import rollmesh

env = gymnasium.make("rollmesh/Remote-v0", address="rollmesh+tcp://sim-host:5000")
```

`import rollmesh`, and the first use of each of its names, import it where Gymnasium is loaded
already, and never load Gymnasium themselves.
`gymnasium.make("rollmesh.gymnasium_plugin:rollmesh/Remote-v0", address=…)` works in any order.
Gymnasium has looked for plugins by itself before 1.0 only. Nothing is loaded before an env is made.
"""

from __future__ import annotations

import gymnasium

ENV_ID = "rollmesh/Remote-v0"


def register() -> None:
    """Register `rollmesh/Remote-v0`, for `make` and `make_vec`; again does nothing."""
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(  # pyright: ignore[reportUnknownMemberType] - the stub
        ENV_ID,
        entry_point="rollmesh.endpoint.clients.remote_env:remote_env",
        vector_entry_point="rollmesh.endpoint.clients.remote_vector_env:RemoteVectorEnv",
        nondeterministic=True,
    )


register()
