"""An env whose methods run on a thread of its own, each for a limited time (layer 7).

What `check_env` plays when it built the env itself, so that a hung method is a finding and not a
silent wait. Attributes that cannot be called are the env's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollmesh.endpoint.own_thread import OwnThread
    from rollmesh.limits import Limits


class BoundedEnv:
    """Passes everything on to an env, its methods on `home` and within the limits.

    A method that does not come back in time raises TimeoutError, and the thread is left behind: no
    other method of an env on it is called any more.
    """

    def __init__(self, env: Any, home: OwnThread, limits: Limits) -> None:
        self._env = env
        self._home = home
        self._limits = {"reset": limits.env_reset_s, "close": limits.close_s}
        self._other_limit = limits.env_step_s

    @property
    def is_left_behind(self) -> bool:
        """Whether a method hung: no other one is called any more."""
        return self._home.abandoned

    def __getattr__(self, name: str) -> Any:
        """Return the env's attribute, a method as one that runs on the thread."""
        value = getattr(self._env, name)
        if not callable(value):
            return value
        limit = self._limits.get(name, self._other_limit)

        def bounded(*args: Any, **kwargs: Any) -> Any:
            return call_on(self._home, lambda: value(*args, **kwargs), limit, name)

        return bounded


def call_on(home: OwnThread, call: Callable[[], Any], limit_s: float | None, name: str) -> Any:
    """Make a call on the thread; leave the thread behind if it does not come back in time.

    Raises:
        TimeoutError: The time is up.
        KeyboardInterrupt: It came during the call; its message names the call.
    """
    try:
        return home.call(call, limit_s, name)
    except TimeoutError:
        home.abandon()
        raise
    except KeyboardInterrupt:
        home.abandon()
        raise KeyboardInterrupt(f"{name} had not come back") from None
