"""`rollmesh check env` and `rollmesh check model`: what is wrong, in plain sentences (layer 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.eval_command import absolute_file, fix_working_directory, log_to
from rollmesh.cli.flags import ConnectFlags, Whole, json_object
from rollmesh.cli.output import own_output
from rollmesh.errors import InvalidSpec, RollmeshError
from rollmesh.limits import Limits
from rollmesh.testing import check_env, check_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollmesh.testing import CheckReport


def check_env_command(
    target: str,
    /,
    *,
    env_kwargs: str | None = None,
    seed: Whole = 0,
    max_steps: Whole = 1000,
    limits: str | None = None,
    flags: Annotated[ConnectFlags | None, Parameter(name="*")] = None,
) -> int:
    """Play a few episodes of an env with random actions and say what is wrong with it.

    Exit codes: 0 nothing failed (warnings pass), 1 something did, 2 bad arguments.

    Parameters
    ----------
    target
        A Gymnasium id (CartPole-v1, module:Name-v0), module:callable, or the address of a served
        one.
    env_kwargs
        Keyword arguments for the env, as a JSON object.
    seed
        The first seed to play.
    max_steps
        Longest episode to play.
    limits
        Time limits as a JSON object, such as {"env_step_s": 5} in seconds, or, by the names of the
        wire, {"envStepTimeoutMs": 5000} in milliseconds.
    """
    return _check(
        lambda: check_env(
            target,
            env_kwargs=json_object("--env-kwargs", env_kwargs),
            seed=seed,
            max_steps=max_steps,
            limits=Limits.from_json(json_object("--limits", limits) or {}),
        ),
        flags,
    )


def check_model_command(
    target: str,
    /,
    *,
    env: Annotated[str, Parameter(name=["--env", "-e"])],
    env_kwargs: str | None = None,
    model_kwargs: str | None = None,
    seed: Whole = 0,
    flags: Annotated[ConnectFlags | None, Parameter(name="*")] = None,
) -> int:
    """Ask a model for actions on observations of an env and say what is wrong with them.

    Exit codes: 0 nothing failed (warnings pass), 1 something did, 2 bad arguments.

    Parameters
    ----------
    target
        module:callable, module:Class, a Stable-Baselines3 .zip, random, or the address of a served
        one; a torch module is named as module:attribute or built by a module:Class.
    env
        The env it is made for: a Gymnasium id, module:callable or an address.
    env_kwargs
        Keyword arguments for the env, as a JSON object.
    model_kwargs
        Keyword arguments for the model, as a JSON object.
    seed
        The seed of the observations it is asked about.
    """
    model = absolute_file(target)
    return _check(
        lambda: check_model(
            model,
            env,
            env_kwargs=json_object("--env-kwargs", env_kwargs),
            model_kwargs=json_object("--model-kwargs", model_kwargs),
            seed=seed,
        ),
        flags,
    )


def _check(run: Callable[[], CheckReport], flags: ConnectFlags | None) -> int:
    with own_output() as output, log_to(output.note):
        fix_working_directory()
        try:
            with (flags or ConnectFlags()).in_environment():
                report = run()
        except InvalidSpec as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except RollmeshError as error:
            output.note(f"error: {type(error).__name__}: {error}")
            return exit_codes.FAILED
        except KeyboardInterrupt as error:
            output.note(f"interrupted: {error}" if str(error) else "interrupted")
            return exit_codes.INTERRUPTED
        output.result(str(report))
        return exit_codes.OK if report.passed else exit_codes.FAILED
