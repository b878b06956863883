"""Options of `rollmesh eval` that say what is played, and how (layer 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.cli.flags import Policy, Whole, json_object, whole_number
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits


def _flag(text: str) -> Parameter:
    return Parameter(help=text, negative=())


@dataclass(frozen=True, kw_only=True)
class PlayFlags:
    """Episodes, seeds, caps and limits; None leaves the default."""

    episodes: Annotated[
        int | None,
        Parameter(
            name=["--episodes", "-n"],
            converter=whole_number,
            help="How many episodes; a plan says so itself.",
        ),
    ] = None
    seed: Annotated[
        Whole | None,
        _flag("The seed that all episode seeds follow from; drawn and shown if left out."),
    ] = None
    num_envs: Annotated[
        Whole | None,
        _flag("How many envs run side by side, each on its own thread of this process."),
    ] = None
    max_episode_steps: Annotated[
        Whole | None, _flag("Truncate an episode after so many steps.")
    ] = None
    max_episode_seconds: Annotated[
        float | None, _flag("Truncate an episode after so many seconds.")
    ] = None
    execution_horizon: Annotated[
        Whole | None,
        _flag(
            "How many actions of a chunk are executed before the model is asked again; all if "
            "left out."
        ),
    ] = None
    replan: Annotated[
        Literal["lane", "batch"],
        _flag("Whose remaining actions an episode's end drops: that lane's, or everybody's."),
    ] = "lane"
    on_error: Annotated[
        Literal["raise", "continue"] | None,
        _flag(
            "Whether a fault of an env (it raises, exits, hangs past a limit) ends the run (raise) "
            "or only its episode (continue, which is so with workers if left out). A model that "
            "raises or hangs ends the run in any case; the same command goes on with what is left, "
            "with --accept-changes if the model's code was mended."
        ),
    ] = None
    conformance: Annotated[
        Policy,
        _flag(
            "What happens to a value outside its space: a warning (the result then names the "
            "episodes with such observations), an error, or nothing."
        ),
    ] = "warn"
    env_kwargs: Annotated[str | None, _flag("Keyword arguments for the env, as a JSON object.")] = (
        None
    )
    model_kwargs: Annotated[
        str | None, _flag("Keyword arguments for the model, as a JSON object.")
    ] = None
    limits: Annotated[
        str | None,
        _flag(
            'Time limits as a JSON object, such as {"env_step_s": 5} in seconds, or, by the names '
            'of the wire, {"envStepTimeoutMs": 5000} in milliseconds.'
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `evaluate` that these options come to.

        Raises:
            InvalidSpec: One of them is no JSON object, or holds no limits.
        """
        return {
            "episodes": self.episodes,
            "base_seed": self.seed,
            "num_envs": self.num_envs,
            "max_episode_steps": self.max_episode_steps,
            "max_episode_seconds": self.max_episode_seconds,
            "execution_horizon": self.execution_horizon,
            "replan": self.replan,
            "on_error": self.on_error,
            "conformance": self.conformance,
            "env_kwargs": json_object("--env-kwargs", self.env_kwargs),
            "model_kwargs": json_object("--model-kwargs", self.model_kwargs),
            "limits": Limits.from_json(json_object("--limits", self.limits) or {}),
        }

    def refuse_beside_plan(self) -> None:
        """Refuse what a plan says itself.

        Raises:
            InvalidSpec: Episodes or a seed were given.
        """
        for option, value in (("--episodes", self.episodes), ("--seed", self.seed)):
            if value is not None:
                raise InvalidSpec(option, "contradicts --plan, which says which episodes there are")
