"""`rollmesh eval`: evaluate a model in an env and print what it came to (layer 9)."""

from __future__ import annotations

import contextlib
import json as json_module
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.api import evaluate
from rollmesh.cli import exit_codes
from rollmesh.cli.flags import ConnectFlags, Policy, Whole, whole_number
from rollmesh.cli.interrupts import watch
from rollmesh.cli.live import View, display
from rollmesh.cli.output import Output, own_output
from rollmesh.errors import InvalidSpec, RollmeshError, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.results.result import EvalResult
from rollmesh.runtime.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollmesh.cli.interrupts import Interrupts


def eval_command(
    env: str,
    /,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    episodes: Annotated[int, Parameter(name=["--episodes", "-n"], converter=whole_number)],
    seed: Whole | None = None,
    num_envs: Whole | None = None,
    max_episode_steps: Whole | None = None,
    max_episode_seconds: float | None = None,
    execution_horizon: Whole | None = None,
    replan: Literal["lane", "batch"] = "lane",
    on_error: Literal["raise", "continue"] = "raise",
    conformance: Policy = "warn",
    env_kwargs: str | None = None,
    model_kwargs: str | None = None,
    limits: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    flags: Annotated[ConnectFlags | None, Parameter(name="*")] = None,
) -> int:
    """Evaluate a model in an env.

    Standard output carries the result and nothing else; progress goes to standard error. Ctrl-C
    stops the run and prints what had finished; a second one does not wait for anything.

    Exit codes: 0 done, 1 the run failed, 2 bad arguments, 3 some episodes errored, 130 Ctrl-C,
    143 SIGTERM.

    Parameters
    ----------
    env
        A Gymnasium id (CartPole-v1, module:Name-v0), module:callable, or the address of a served
        one.
    model
        module:callable, module:Class, a Stable-Baselines3 .zip, random, or the address of a served
        one; a torch module is named as module:attribute or built by a module:Class.
    episodes
        How many episodes.
    seed
        The seed that all episode seeds follow from; drawn and shown if left out.
    num_envs
        How many envs run side by side, each on its own thread of this process.
    max_episode_steps
        Truncate an episode after so many steps.
    max_episode_seconds
        Truncate an episode after so many seconds.
    execution_horizon
        How many actions of a chunk are executed before the model is asked again; all if left out.
    replan
        Whose remaining actions an episode's end drops: that lane's, or everybody's.
    on_error
        Whether a fault of an env ends the run or only its episode.
    conformance
        What happens to a value outside its space: a warning, an error, or nothing.
    env_kwargs
        Keyword arguments for the env, as a JSON object.
    model_kwargs
        Keyword arguments for the model, as a JSON object.
    limits
        Time limits as a JSON object in milliseconds, such as {"envStepTimeoutMs": 5000}.
    json
        Print the result as JSON.
    """
    with own_output() as output, contextlib.ExitStack() as stack:
        try:
            stack.enter_context((flags or ConnectFlags()).in_environment())
            arguments: dict[str, Any] = {
                "episodes": episodes,
                "base_seed": seed,
                "num_envs": num_envs,
                "max_episode_steps": max_episode_steps,
                "max_episode_seconds": max_episode_seconds,
                "execution_horizon": execution_horizon,
                "replan": replan,
                "on_error": on_error,
                "conformance": conformance,
                "env_kwargs": json_object("--env-kwargs", env_kwargs),
                "model_kwargs": json_object("--model-kwargs", model_kwargs),
                "limits": Limits.from_json(json_object("--limits", limits) or {}),
            }
        except InvalidSpec as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        fix_working_directory()
        return _run(output, absolute_file(model), env, arguments, as_json=json)


def json_object(option: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object that an option carries, or None if it is left out.

    Raises:
        InvalidSpec: The text is not a JSON object.
    """
    if text is None:
        return None
    try:
        value = json_module.loads(text)
    except ValueError as error:
        raise InvalidSpec(
            option, f"wants a JSON object such as '{{\"key\": 1}}', got {text!r}: {error}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidSpec(option, f"wants a JSON object, got {text!r}")
    return value


def absolute_file(target: str) -> str:
    """Return a target that is a file as an absolute path: an env may change the directory."""
    return os.path.abspath(target) if os.path.isfile(target) else target  # noqa: PTH100, PTH113


def fix_working_directory() -> None:
    """Make modules beside the user importable by absolute path, before anything can move away."""
    with contextlib.suppress(OSError):  # the directory was deleted
        here = os.getcwd()  # noqa: PTH109
        if here not in sys.path:
            sys.path.insert(0, here)


@contextlib.contextmanager
def log_to(note: Any) -> Iterator[None]:
    """Show the package's warnings as notes."""
    handler = _NoteHandler(note)
    logger = logging.getLogger("rollmesh")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _NoteHandler(logging.Handler):
    def __init__(self, note: Any) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(f"{record.levelname.lower()}: {record.getMessage()}")


def _run(output: Output, model: str, env: str, arguments: dict[str, Any], *, as_json: bool) -> int:
    cancel = CancelToken()
    planned = arguments["episodes"]
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(display(planned, output))
        view = View(planned, shown)

        def give_up(code: int) -> None:
            shown.stop()
            _print(output, _partial(view, model, env), as_json=as_json)
            os._exit(code)

        interrupts = stack.enter_context(watch(cancel, give_up))
        with log_to(shown.note):
            hooks = [view, interrupts]
            result, error = _evaluate(model, env, {**arguments, "hooks": hooks, "cancel": cancel})
        interrupts.is_printing = True
        shown.stop()
        if isinstance(error, InvalidSpec):
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        _print(output, result or _partial(view, model, env), as_json=as_json)
        return _exit_code(output, result, error, interrupts)


def _evaluate(
    model: str, env: str, arguments: dict[str, Any]
) -> tuple[EvalResult | None, BaseException | None]:
    try:
        return evaluate(model, env, **arguments), None
    except (RollmeshError, OSError, KeyboardInterrupt) as error:
        return getattr(error, "result", None), error


def _exit_code(
    output: Output,
    result: EvalResult | None,
    error: BaseException | None,
    interrupts: Interrupts,
) -> int:
    if interrupts.exit_code is not None:
        return interrupts.exit_code
    if isinstance(error, (KeyboardInterrupt, RouteCancelled)):
        return exit_codes.INTERRUPTED
    if error is not None:
        output.note(f"error: {type(error).__name__}: {error}")
        return exit_codes.FAILED
    return exit_codes.SPOILED_EPISODES if result and result.num_errors else exit_codes.OK


def _print(output: Output, result: EvalResult, *, as_json: bool) -> None:
    output.result(result.to_json(indent=2) if as_json else repr(result))


def _partial(view: View, model: str, env: str) -> EvalResult:
    return EvalResult(
        episodes=view.episodes, model=model, env=env, planned=view.planned, stopped="interrupted"
    )
