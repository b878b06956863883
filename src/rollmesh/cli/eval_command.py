"""`rollmesh eval`: evaluate a model in an env and print what it came to (layer 9)."""

from __future__ import annotations

import contextlib
import json as json_module
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from rollmesh.api import evaluate
from rollmesh.cli import exit_codes
from rollmesh.cli.command_line import WORDS
from rollmesh.cli.flags import ConnectFlags, Policy, Whole, whole_number
from rollmesh.cli.interrupts import watch as watch_signals
from rollmesh.cli.output import Output, own_output
from rollmesh.cli.run_flags import RunFlags
from rollmesh.cli.run_folders import Folder, discard_unused
from rollmesh.cli.tuned import tuned
from rollmesh.cli.watch_flags import WatchFlags
from rollmesh.errors import (
    EndpointFault,
    InvalidSpec,
    JournalError,
    PortTimeout,
    RollmeshError,
    RouteCancelled,
    RunError,
)
from rollmesh.limits import Limits
from rollmesh.results.result import EvalResult
from rollmesh.runtime.cancel import CancelToken
from rollmesh.viewer.live.json_lines import result_line
from rollmesh.viewer.live.tally import Tally
from rollmesh.viewer.live.watching import watching

if TYPE_CHECKING:
    from collections.abc import Generator

    from rollmesh.cli.interrupts import Interrupts


def eval_command(
    env: str | None = None,
    /,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    episodes: Annotated[
        int | None, Parameter(name=["--episodes", "-n"], converter=whole_number)
    ] = None,
    seed: Whole | None = None,
    num_envs: Whole | None = None,
    max_episode_steps: Whole | None = None,
    max_episode_seconds: float | None = None,
    execution_horizon: Whole | None = None,
    replan: Literal["lane", "batch"] = "lane",
    on_error: Literal["raise", "continue"] | None = None,
    conformance: Policy = "warn",
    env_kwargs: str | None = None,
    model_kwargs: str | None = None,
    limits: str | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    json_lines: Annotated[bool, Parameter(negative=())] = False,
    run: Annotated[RunFlags | None, Parameter(name="*")] = None,
    watch: Annotated[WatchFlags | None, Parameter(name="*")] = None,
    flags: Annotated[ConnectFlags | None, Parameter(name="*")] = None,
) -> int:
    """Evaluate a model in an env.

    Standard output carries the result and nothing else; progress goes to standard error. Every
    episode is written down as it ends: the same command again goes on with a run that was cut
    short. Ctrl-C starts no new episode and lets running ones end, for a while; a second one does
    not wait for anything. Both print what had finished.

    Exit codes: 0 done, 1 the run failed, 2 bad arguments, 3 some episodes errored, 130 Ctrl-C,
    143 SIGTERM.

    Parameters
    ----------
    env
        A Gymnasium id (CartPole-v1, module:Name-v0), module:callable, or the address of a served
        one; left out where every task of a plan names its own.
    model
        module:callable, module:Class, a Stable-Baselines3 .zip, random, or the address of a served
        one; a torch module is named as module:attribute or built by a module:Class.
    episodes
        How many episodes; a plan says so itself.
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
        Whether a fault of an env (it raises, exits, hangs past a limit) ends the run (raise) or
        only its episode (continue, which is so with workers if left out). A model that raises or
        hangs ends the run in any case; the same command goes on with what is left, with
        --accept-changes if the model's code was mended.
    conformance
        What happens to a value outside its space: a warning (the result then names the episodes
        with such observations), an error, or nothing.
    env_kwargs
        Keyword arguments for the env, as a JSON object.
    model_kwargs
        Keyword arguments for the model, as a JSON object.
    limits
        Time limits as a JSON object, such as {"env_step_s": 5} in seconds, or, by the names of the
        wire, {"envStepTimeoutMs": 5000} in milliseconds.
    json
        Print the result as JSON.
    json_lines
        Print one JSON object a line while the run goes on, the result last; see docs/watching.md.
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
            fix_working_directory()
            run = run or RunFlags()
            if run.plan is not None:
                _refuse_beside_plan({"--episodes": episodes, "--seed": seed})
            if episodes is None and run.plan is None:
                output.note("error: --episodes is missing.\nsee rollmesh eval --help")
                return exit_codes.BAD_ARGUMENTS
            arguments.update(run.arguments())
            model = absolute_file(model)
            folder = _folder(run, env, model, arguments) if run.journal else None
            if run.tune:
                arguments.update(tuned(output, model, env, arguments))
            watchers = (watch or WatchFlags()).hooks(None if folder is None else folder.path)
            arguments["hooks"] = stack.enter_context(watchers)
        except InvalidSpec as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except (EndpointFault, PortTimeout) as error:
            output.note(f"error: --tune: {error}")
            return exit_codes.FAILED
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        style: _Style = "lines" if json_lines else "json" if json else "text"
        return _run(output, model, env, arguments, folder=folder, grace_s=run.grace_s, style=style)


def _refuse_beside_plan(options: dict[str, int | None]) -> None:
    for option, value in options.items():
        if value is not None:
            raise InvalidSpec(option, "contradicts --plan, which says which episodes there are")


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
    return cast("dict[str, Any]", value)


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
def log_to(note: Any) -> Generator[None]:
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
        text = _IDS.sub("", record.getMessage())
        self._note(f"{record.levelname.lower()}: {text}")


_IDS = re.compile(r" source=\S+ session_id=\S+$")
_Style = Literal["text", "json", "lines"]
_DECIDING = (
    "episodes",
    "base_seed",
    "max_episode_steps",
    "max_episode_seconds",
    "execution_horizon",
    "replan",
    "env_kwargs",
    "model_kwargs",
)


def _folder(run: RunFlags, env: str | None, model: str, arguments: dict[str, Any]) -> Folder:
    deciding = {name: arguments[name] for name in _DECIDING}
    if run.plan is not None:
        deciding["plan"] = arguments["plan"].hash
    return Folder.of(run, env, model, deciding)


def _run(
    output: Output,
    model: str,
    env: str | None,
    arguments: dict[str, Any],
    *,
    folder: Folder | None,
    grace_s: float,
    style: _Style,
) -> int:
    cancel = CancelToken()
    plan = arguments["plan"]
    planned = (arguments["episodes"] or 0) if plan is None else len(plan.episodes)
    with contextlib.ExitStack() as stack:
        tally = Tally(planned)
        json_lines = output.result if style == "lines" else None
        shown = stack.enter_context(
            watching(tally, notes=output.notes, json_lines=json_lines, is_stored=folder is not None)
        )

        def give_up(code: int) -> None:
            shown.stop()
            _print(output, _partial(tally, model, env, None, folder), style)
            os._exit(code)

        interrupts = stack.enter_context(watch_signals(cancel, give_up, grace_s, tell=tally.note))
        with log_to(shown.note):
            hooks = [tally, interrupts, *arguments["hooks"]]
            arguments = {**arguments, "hooks": hooks, "cancel": cancel}
            result, error = _evaluate(model, env, arguments, folder=folder, tally=tally)
        interrupts.is_printing = True
        shown.stop()
        if isinstance(error, InvalidSpec):
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        is_refused = isinstance(error, RunError) and result is None and not tally.episodes
        if not is_refused:  # then there is nothing to tell of
            _print(output, result or _partial(tally, model, env, error, folder), style)
        if arguments["stop_when"] is not None and result is not None and _is_silent(result):
            output.note(
                "warning: --stop-when could not end the run: the env does not say whether an "
                "episode was a success"
            )
        return _exit_code(output, result, error, interrupts)


def _is_silent(result: EvalResult) -> bool:
    """Return whether episodes finished and none of them is known to be a success or a failure."""
    return result.success_rate is None and result.num_errors < len(result.episodes)


def _evaluate(
    model: str, env: str | None, arguments: dict[str, Any], *, folder: Folder | None, tally: Tally
) -> tuple[EvalResult | None, BaseException | None]:
    kept: dict[str, Any] = {}
    unkept = {**arguments, "new": False, "accept_changes": False}
    if folder is None:
        tally.count_as_stored()
    else:
        kept = {"run_dir": folder.path, "command": WORDS.get()}
    try:
        return evaluate(model, env, **arguments, **kept), None
    except InvalidSpec as error:
        if folder is not None and folder.is_default:
            discard_unused(folder.path)
            if error.field == "run_dir":
                return _evaluate(model, env, unkept, folder=None, tally=tally)
        return None, error
    except JournalError as error:
        if (
            folder is not None
            and folder.is_default
            and error.acknowledged == 0
            and error.result is None
        ):
            _say_unkept(error)
            return _evaluate(model, env, unkept, folder=None, tally=tally)
        return error.result, error
    except (RollmeshError, OSError, KeyboardInterrupt) as error:
        return getattr(error, "result", None), error


def _say_unkept(error: JournalError) -> None:
    """Say why a run is played without a folder."""
    from rollmesh.runs.disk import GOES_ON

    reason = str(error).removesuffix(GOES_ON)
    logging.getLogger("rollmesh").warning(
        "this run is not kept, and is played all the same: %s: that one is kept", reason
    )


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


def _print(output: Output, result: EvalResult, style: _Style) -> None:
    if style == "lines":
        output.result(result_line(result))
    else:
        output.result(result.to_json(indent=2) if style == "json" else repr(result))


def _partial(
    tally: Tally, model: str, env: str | None, error: BaseException | None, folder: Folder | None
) -> EvalResult:
    from rollmesh.runs.schema import STORE_FILE

    is_told = error is not None and not isinstance(error, KeyboardInterrupt)
    is_kept = folder is not None and (folder.path / STORE_FILE).exists()
    return EvalResult(
        episodes=tally.episodes,
        model=model,
        env=env or "",
        planned=tally.planned,
        stopped=str(error) if is_told else "interrupted",
        run_dir=str(folder.path) if folder is not None and is_kept else None,
    )
