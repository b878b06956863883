"""What a user writes a policy with: `Model` and `EpisodeContext` (layer 6).

A policy may also be a plain callable or any object with one of the corners; `policy.py` drives
all of them. This module knows nothing of spaces, ports or the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CORNERS = ("predict", "predict_chunk", "predict_batch", "predict_chunk_batch")
"""The methods that a model may answer with; at least one is needed."""

_FIELDS = ("episode_id", "seed", "policy_seed", "state")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EpisodeContext(Mapping[str, Any]):
    """The episode that an observation belongs to: one object from its first predict to its end.

    Its fields can also be read as keys: `context["episode_id"]`, `context.get("seed")`. Two
    contexts are equal only if they are the same object, so that one may be a key itself.

    Attributes:
        episode_id: Id of the episode.
        seed: The seed that the env was reset with, or None.
        policy_seed: A seed for the policy's own randomness, or None where there is no seed. By
            default it is derived from `seed`, so that it does not depend on lanes or order.
        state: Whatever the policy wants to keep for this episode; empty at its start.
    """

    episode_id: str
    seed: int | None = None
    policy_seed: int | None = None
    state: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        if key in _FIELDS:
            return getattr(self, key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(_FIELDS)

    def __len__(self) -> int:
        return len(_FIELDS)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)


class Model:
    """A policy. Override at least one of the four corners; rollmesh derives the others.

    | method | returns (A: shape of an action, T: time steps, B: rows) |
    |---|---|
    | `predict(observation)` | one action, (*A) |
    | `predict_chunk(observation)` | a chunk, (T, *A), T ≥ 1 |
    | `predict_batch(observations)` | an action per row, (B, *A) |
    | `predict_chunk_batch(observations)` | a chunk per row, (B, T, *A) |

    With Dict and Tuple action spaces the axes are those of each leaf. Batched observations follow
    Gymnasium's vector convention: arrays (B, …), dicts and tuples of them, a tuple of B texts.

    Each corner may take two more parameters, passed only if it names them (or takes `**kwargs`):
    `context`, the `EpisodeContext` (in the batch corners a tuple of them, one per row), and
    `horizon`, the number of frames that will be executed before the next predict (int), or None
    for all of them.

    Which corner is asked. A chunk corner, if one is overridden: all its frames are used, up to the
    horizon; else a single-action one. Of the two left, the batch corner for several rows and the
    other one for a single row. Where only one of them is overridden it serves both: a batch
    corner takes a single row as a batch of one, another takes several row by row.

    Observations are copies: a policy may write into them.

    The base class's corners do nothing but say so: rollmesh asks the overridden ones only.

    All methods are called on one thread: the caller's for an instance, a thread of the model's
    own if rollmesh built it (a class or `module:Class`).
    """

    def load(self) -> None:
        """Get ready (weights, warm-up): called once, before the first predict.

        An instance that is used for several evaluations is loaded once.
        """

    def predict(self, observation: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return one action, (*A), for one observation."""
        raise _not_overridden(self, "predict")

    def predict_chunk(self, observation: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return a chunk of actions, (T, *A), for one observation."""
        raise _not_overridden(self, "predict_chunk")

    def predict_batch(self, observations: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return one action per row, (B, *A)."""
        raise _not_overridden(self, "predict_batch")

    def predict_chunk_batch(self, observations: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return a chunk of actions per row, (B, T, *A)."""
        raise _not_overridden(self, "predict_chunk_batch")

    def on_episode_start(self, context: EpisodeContext) -> None:
        """Take note that an episode begins: called before its first predict."""

    def on_episode_end(self, context: EpisodeContext) -> None:
        """Take note that an episode is over: called once per started episode.

        It may come a little after the episode's last step, but never while a predict is running.
        """

    def close(self) -> None:
        """Let go of everything: called once, after the last episode's end.

        Called only if rollmesh built the model; an instance is its owner's to close.
        """


def overridden(model: object, name: str) -> Any:
    """Return the model's own method of this name, or None if it has only `Model`'s default."""
    method = getattr(model, name, None)
    if not callable(method):
        return None
    return None if getattr(method, "__func__", None) is Model.__dict__.get(name) else method


def _not_overridden(model: Model, name: str) -> NotImplementedError:
    own = [corner for corner in CORNERS if overridden(model, corner)]
    instead = f"call {own[0]}, or " if own else ""
    return NotImplementedError(
        f"{type(model).__name__} does not override {name}: {instead}let rollmesh drive the "
        "model, which derives the corners that are missing"
    )
