"""`rollmesh eval`: evaluate a model in an env and print what it came to (layer 9)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from rollmesh.api import evaluate
from rollmesh.cli import exit_codes
from rollmesh.cli.command_line import WORDS
from rollmesh.cli.flags import ConnectFlags
from rollmesh.cli.interrupts import watch as watch_signals
from rollmesh.cli.output import Output, own_output
from rollmesh.cli.play_flags import PlayFlags
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
from rollmesh.results.conditions import Conditions, written
from rollmesh.results.result import EvalResult
from rollmesh.runtime.cancel import CancelToken
from rollmesh.viewer.live.json_lines import result_line
from rollmesh.viewer.live.tally import Tally
from rollmesh.viewer.live.watching import watching

if TYPE_CHECKING:
    from collections.abc import Generator

    from rollmesh.cli.interrupts import Interrupts
    from rollmesh.fleet.plan import Plan


# the panels of --help, in this order
_PLAY = Parameter(name="*", group=Group("What is played", sort_key=1))
_RUN = Parameter(name="*", group=Group("Processes and the run that is kept", sort_key=2))
_WATCH = Parameter(name="*", group=Group("Watching", sort_key=3))
_CONNECT = Parameter(name="*", group=Group("Connections", sort_key=4))


def eval_command(
    env: str | None = None,
    /,
    *,
    model: Annotated[str, Parameter(name=["--model", "-m"])],
    play: Annotated[PlayFlags | None, _PLAY] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    json_lines: Annotated[bool, Parameter(negative=())] = False,
    run: Annotated[RunFlags | None, _RUN] = None,
    watch: Annotated[WatchFlags | None, _WATCH] = None,
    flags: Annotated[ConnectFlags | None, _CONNECT] = None,
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
    json
        Print the result as JSON.
    json_lines
        Print one JSON object a line while the run goes on, the result last; see docs/watching.md.
    """
    style: _Style = "lines" if json_lines else "json" if json else "text"
    play, run = play or PlayFlags(), run or RunFlags()
    with own_output() as output, contextlib.ExitStack() as stack:
        if play.episodes is None and run.plan is None:
            output.note("error: --episodes is missing.\nsee rollmesh eval --help")
            return exit_codes.BAD_ARGUMENTS
        try:
            with log_to(output.note):
                stack.enter_context((flags or ConnectFlags()).in_environment())
                fix_working_directory()
                model = absolute_file(model)
                arguments = _arguments(play, run)
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
        return _run(output, model, env, arguments, folder=folder, grace_s=run.grace_s, style=style)


def _arguments(play: PlayFlags, run: RunFlags) -> dict[str, Any]:
    """Return the keyword arguments of `evaluate` that the options come to."""
    arguments = play.arguments()
    if run.plan is not None:
        play.refuse_beside_plan()
    return {**arguments, **run.arguments()}


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
            _print(output, _partial(tally, model, env, arguments, folder=folder), style)
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
            ended = result or _partial(tally, model, env, arguments, error=error, folder=folder)
            _print(output, ended, style)
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
    tally: Tally,
    model: str,
    env: str | None,
    arguments: dict[str, Any],
    *,
    folder: Folder | None,
    error: BaseException | None = None,
) -> EvalResult:
    """Return what is known of a run that returned nothing."""
    from rollmesh.runs.schema import STORE_FILE

    plan: Plan | None = arguments["plan"]
    is_told = error is not None and not isinstance(error, KeyboardInterrupt)
    is_kept = folder is not None and (folder.path / STORE_FILE).exists()
    return EvalResult(
        episodes=tally.episodes,
        model=model,
        env=env or "",
        planned=tally.planned,
        stopped=str(error) if is_told else "interrupted",
        plan_hash=None if plan is None else plan.hash,
        run_dir=str(folder.path) if folder is not None and is_kept else None,
        conditions=_conditions(env, arguments),
        model_kwargs=written(arguments["model_kwargs"]),
    )


def _conditions(env: str | None, arguments: dict[str, Any]) -> Conditions:
    """Return what the episodes of a run are played under."""
    caps = {name: arguments[name] for name in ("max_episode_steps", "max_episode_seconds")}
    plan: Plan | None = arguments["plan"]
    tasks: Any = [{"name": ""}] if plan is None else plan.to_dict()["tasks"]
    return Conditions.of(
        env=env or ", ".join(dict.fromkeys([task.get("env", "") for task in tasks])),
        settings={"env_kwargs": written(arguments["env_kwargs"]), **caps},
        tasks=tasks,
    )
