"""The env service: contract, envelopes and what both ends of a Join share (layer 4).

`proto_env_client.py` and `proto_env_server.py` hold the two directions. Request ids are any strings
here: a released client counts `grpc-req-1`, `grpc-req-2`, … per connection, and a server echoes
what it was sent, be it empty or there twice.

Seen on the released peer (0.1.0). It reads `num_envs` 0 and an unspecified autoreset mode without
complaint, and refuses a contract without spec or spaces. It sends masks with every step, one byte a
lane, and `env_indices` only in replies to partial requests. A reply of one row has one row's
observation, reward, mask byte and plain info, and `env_index` in its `completed_episodes` is the
lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rollmesh.errors import WireError
from rollmesh.ports import NO_INFO, AutoresetMode, EnvContract, Info
from rollmesh.wire._gen import rlmesh_core_v1_pb2 as core_pb
from rollmesh.wire.dialect import Dialect
from rollmesh.wire.messages import Kind
from rollmesh.wire.metadata import decode_map as decode_exact
from rollmesh.wire.metadata import encode_map as encode_exact
from rollmesh.wire.proto_metadata import Report, decode_map, encode_map
from rollmesh.wire.proto_spaces import decode_space, encode_space

SERVICE = "rlmesh.env.v1.EnvService"
MOST_ENVS = 2**16
"""Lanes that a peer may claim to have."""

_MODES = {
    AutoresetMode.UNSPECIFIED: 0,
    AutoresetMode.NEXT_STEP: 1,
    AutoresetMode.SAME_STEP: 2,
    AutoresetMode.DISABLED: 3,
}
_MODE_OF = {number: mode for mode, number in _MODES.items()}
_MOST_CHARS = 4096


class Envelope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message of a Join, opened but not read yet.

    Attributes:
        request_id: As it was sent.
        kind: What it is about, or None where this version knows no such kind (or there is none).
        message: The part inside, of the generated class.
        nbytes: Its size on the wire.
        endpoint_total_ns: How long the server took, where it is a response that says so.
        leaves: Leaves that were cut out of a large message before it was parsed.
    """

    request_id: str
    kind: Kind | None
    message: Any
    nbytes: int
    endpoint_total_ns: int | None = None
    leaves: list[memoryview] | None = None


def enclose_request(
    message: Any, kinds: Mapping[str, Kind], nbytes: int, leaves: list[memoryview] | None = None
) -> Envelope:
    """Return the envelope of a parsed request of a Join.

    Args:
        message: Of a generated class.
        kinds: The kind of each part that it may hold, by the name of its field.
        nbytes: Its size on the wire.
        leaves: What was cut out of it before.
    """
    part = message.WhichOneof("request")
    return Envelope(
        request_id=message.request_id,
        kind=kinds.get(part or ""),
        message=None if part is None else getattr(message, part),
        nbytes=nbytes,
        leaves=leaves,
    )


def enclose_response(
    message: Any, kinds: Mapping[str, Kind], nbytes: int, leaves: list[memoryview] | None = None
) -> Envelope:
    """Return the envelope of a parsed response of a Join; arguments as of `enclose_request`."""
    part = message.WhichOneof("response")
    timed = message.HasField("endpoint_total_ns")
    return Envelope(
        request_id=message.request_id,
        kind=kinds.get(part or ""),
        message=None if part is None else getattr(message, part),
        nbytes=nbytes,
        endpoint_total_ns=message.endpoint_total_ns if timed else None,
        leaves=leaves,
    )


class EpisodeFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a released peer wants to know of an episode that ended, or was interrupted.

    Attributes:
        episode_id: The id that was pushed when it began.
        env_index: The lane.
        seed: The seed of its reset, or None.
        step_count: Steps taken.
        cumulative_reward: Sum of its rewards.
        terminated: Whether it ended by itself.
        truncated: Whether it was cut, by the env or by a reset.
        started_ns: Wall time of its start.
        ended_ns: Wall time of its end.
    """

    episode_id: str
    env_index: int
    seed: int | None = None
    step_count: int = 0
    cumulative_reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    started_ns: int = 0
    ended_ns: int = 0


# --------------------------------------------------------------------------------- contract


def check_contract(contract: EnvContract, dialect: Dialect) -> None:
    """Raise `WireError` with a sentence if a peer of this dialect cannot drive such an env."""
    if contract.autoreset_mode is AutoresetMode.SAME_STEP and not dialect.details:
        raise WireError(
            f"{contract.id}: an env under SAME_STEP cannot be driven by this peer, whose wire has "
            "no place for the final observation; make the vector env with "
            "AutoresetMode.NEXT_STEP or DISABLED"
        )
    encode_space(contract.observation_space, dialect)
    encode_space(contract.action_space, dialect)


def encode_contract(contract: EnvContract, dialect: Dialect, report: Report) -> core_pb.EnvContract:
    """Return a contract as a peer of this dialect understands it.

    Args:
        contract: The env's.
        dialect: What the peer knows.
        report: Called for each metadata value that has no form on the peer's wire.

    Raises:
        WireError: A space or the autoreset mode cannot be said.
    """
    check_contract(contract, dialect)
    message = core_pb.EnvContract(
        num_envs=contract.num_envs,
        render_mode=contract.render_mode or "",
        autoreset_mode=_MODES[contract.autoreset_mode],  # pyright: ignore[reportArgumentType]
    )
    write_env_spec(contract, message.spec, dialect, report)
    return message


def write_env_spec(
    contract: EnvContract, target: core_pb.EnvSpec, dialect: Dialect, report: Report
) -> None:
    """Write the part of a contract that models see too."""
    target.id = contract.id
    target.action_space.CopyFrom(encode_space(contract.action_space, dialect))
    target.observation_space.CopyFrom(encode_space(contract.observation_space, dialect))
    if dialect.exact_maps:
        target.exact_metadata = encode_exact(contract.metadata, report, "metadata")
    elif contract.metadata:
        encode_map(contract.metadata, target.metadata, report, "metadata")


def decode_contract(message: core_pb.EnvContract) -> EnvContract:
    """Return the contract that a peer sent.

    Raises:
        WireError: It is incomplete, invalid, or over a limit.
    """
    if not message.HasField("spec"):
        raise WireError("the peer's env contract has no spec")
    return read_env_spec(
        message.spec,
        num_envs=message.num_envs,
        mode=message.autoreset_mode,
        render_mode=message.render_mode,
    )


def read_env_spec(
    spec: core_pb.EnvSpec, *, num_envs: int, mode: int, render_mode: str
) -> EnvContract:
    """Return the contract made of a spec and the facts beside it."""
    if num_envs > MOST_ENVS:
        raise WireError(f"the peer's env claims {num_envs} lanes; at most {MOST_ENVS} are believed")
    if mode not in _MODE_OF:
        raise WireError(f"the peer's env has an unknown autoreset mode, number {mode}")
    for name in ("observation_space", "action_space"):
        if not spec.HasField(name):
            raise WireError(f"the peer's env contract has no {name}")
    metadata: Info = NO_INFO
    if spec.HasField("exact_metadata"):
        metadata = decode_exact(spec.exact_metadata)
    elif spec.HasField("metadata"):
        metadata = decode_map(spec.metadata)
    return EnvContract(
        id=spec.id[:_MOST_CHARS],
        observation_space=decode_space(spec.observation_space, "observation_space"),
        action_space=decode_space(spec.action_space, "action_space"),
        num_envs=num_envs or 1,
        autoreset_mode=_MODE_OF[mode],
        render_mode=render_mode or None,
        metadata=metadata,
    )


def mode_number(mode: AutoresetMode) -> int:
    """Return an autoreset mode as its number on the wire."""
    return _MODES[mode]
