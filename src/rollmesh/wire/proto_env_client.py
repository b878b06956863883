"""The env service as a client speaks it: requests out, replies in (layer 4).

Towards a released peer the options of a reset are one map for all lanes, in which only
`trial_index` may differ from lane to lane (it is sent as a list); other differences are refused, so
a caller with a lane each resets lane by lane.

Which lanes ended is said by the masks. The entry of `completed_episodes` with the id that the
request pushed has the details; entries with other ids report episodes that a reset interrupted, and
are left out.

Knows no sockets and keeps no state between calls but what was agreed at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    Completion,
    EnvContract,
    Info,
    OddValue,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.metadata import ReportOnce
from rollmesh.wire import messages as ours
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import Dialect
from rollmesh.wire.messages import Kind
from rollmesh.wire.metadata import decode_map as decode_exact
from rollmesh.wire.metadata import encode_map as encode_exact
from rollmesh.wire.png import read_png
from rollmesh.wire.proto_env import Envelope, enclose_response
from rollmesh.wire.proto_errors import read_env_error
from rollmesh.wire.proto_metadata import Report, decode_lanes, decode_map, encode_map
from rollmesh.wire.proto_values import (
    cut_leaves,
    message_with,
    parse,
    read_leaves,
    tag,
    value_parts,
)
from rollmesh.wire.sections import check_odd

logger = logging.getLogger(__name__)

TRIAL_INDEX = "trial_index"
"""The one reset option that the released wire reserves: a number, or a list of one per lane."""

_INT64 = 2**63
_STEP = tag(2)
_ACTION = tag(1)
_HOLDERS = (tag(1)[0], tag(2)[0])
"""Responses that hold an observation: to reset and step."""
_OBSERVATION = tag(1)[0]
_KINDS = {
    "reset": Kind.RESET,
    "step": Kind.STEP,
    "render": Kind.RENDER,
    "close": Kind.CLOSE,
    "configure": Kind.CONFIGURE,
    "error": Kind.ERROR,
    "rebuild": Kind.REBUILD,
    "probe": Kind.PROBE,
}


class EnvClientWire:
    """Writes the requests of one session and reads its replies.

    Args:
        contract: What the server said it serves.
        dialect: What both ends know.
        report: Called once for each option that has no form on the peer's wire, with its path.
    """

    def __init__(
        self, contract: EnvContract, dialect: Dialect, report: Report | None = None
    ) -> None:
        self._dialect = dialect
        self._num_envs = contract.num_envs
        self._observations = contract.observation_space.codec
        self._actions = contract.action_space.codec
        self._report: Report = ReportOnce(report or _log)

    # ---------------------------------------------------------------------------- requests

    def write(self, request_id: str, body: Any) -> bytes:
        """Return a request as bytes.

        Args:
            request_id: Any string; the reply carries it.
            body: A `ResetRequest` or `StepRequest`, or a `Render`, `Close`, `Configure`,
                `Rebuild`, `Cancel` or `Probe`.

        Raises:
            InvalidValue: A seed or an option cannot be said on this peer's wire.
            WireError: The request is larger than a message may be, or of a kind that this peer
                does not know.
        """
        if type(body) is StepRequest:
            return self._write_step(request_id, body)
        message = pb.JoinRequest(request_id=request_id)
        match body:
            case ResetRequest():
                self._write_reset(body, message.reset)
            case ours.Configure():
                message.configure.selected_workflow_edition = body.edition
            case ours.Render():
                message.render.env_indices.extend(body.env_indices)
                message.render.timeout_ms = body.timeout_ms
            case ours.Close():
                self._write_close(body, message.close)
            case _:
                self._write_more(body, message)
        return message.SerializeToString()

    def _write_step(self, request_id: str, body: StepRequest) -> bytes:
        step = pb.StepRequest(
            timeout_ms=body.timeout_ms,
            env_indices=body.env_indices,
            episode_ids=body.episode_ids,
            next_episode_ids=body.next_episode_ids if self._dialect.details else (),
        ).SerializeToString()
        parts, size = value_parts(body.action, self._actions, _ACTION)
        parts.append(step)
        outer = pb.JoinRequest(request_id=request_id).SerializeToString()
        return message_with(outer, _STEP, parts, size + len(step))

    def _write_reset(self, body: ResetRequest, target: pb.ResetRequest) -> None:
        target.SetInParent()
        for seed in body.seeds:
            if not -_INT64 <= seed < _INT64:
                raise InvalidValue(
                    "seeds", f"{seed} does not fit the wire's 64 bits; choose a smaller seed"
                )
        target.seeds.extend(body.seeds)
        target.timeout_ms = body.timeout_ms
        target.env_indices.extend(body.env_indices)
        target.episode_ids.extend(body.episode_ids)
        if not any(one is not None for one in body.options):
            return
        if self._dialect.exact_maps:
            target.exact_options.extend(
                [
                    b"" if one is None else b"\x01" + encode_exact(one, self._report, "options")
                    for one in body.options
                ]
            )
        else:
            merged = _merge_options(body.options)
            if merged is not None:
                encode_map(merged, target.options, self._report, "options")

    def _write_close(self, body: ours.Close, target: pb.CloseEnvsRequest) -> None:
        target.SetInParent()
        target.reason = body.reason
        if self._dialect.details:
            target.timeout_ms = body.timeout_ms
            target.close_env = body.close_env

    def _write_more(self, body: Any, message: pb.JoinRequest) -> None:
        if not self._dialect.details:
            raise WireError(f"this peer's wire has no {type(body).__name__}; only rollmesh's has")
        match body:
            case ours.Rebuild():
                message.rebuild.SetInParent()
                message.rebuild.env_indices.extend(body.env_indices)
                message.rebuild.timeout_ms = body.timeout_ms
            case ours.Cancel():
                message.cancel.reason = body.reason
                message.cancel.SetInParent()
            case ours.Probe():
                message.probe.payload = body.payload
                message.probe.SetInParent()
            case _:
                raise TypeError(f"expected a request to an env, got {type(body).__name__}")

    # ----------------------------------------------------------------------------- replies

    def open(self, data: bytes) -> Envelope:
        """Return a response with its request id, so that its request can be found.

        Raises:
            WireError: The bytes are no response.
        """
        cut = cut_leaves(data, _HOLDERS, _OBSERVATION)
        rest = data if cut is None else cut[0]
        message: pb.JoinResponse = parse(pb.JoinResponse, rest, "response of an env")
        return enclose_response(message, _KINDS, len(data), None if cut is None else cut[1])

    def read(self, envelope: Envelope, request: Any) -> Any:
        """Return the reply in a response: what `ports` or `messages` call it, or an `ErrorBody`.

        Args:
            envelope: What `open` returned.
            request: The body of the request that it answers.

        Raises:
            WireError: It is no reply to such a request, or breaks the rules of the wire.
            InvalidValue: A value does not fit its space.
        """
        message = envelope.message
        match envelope.kind:
            case Kind.STEP if type(request) is StepRequest:
                return self._read_step(envelope, message, request)
            case Kind.RESET if type(request) is ResetRequest:
                return self._read_reset(envelope, message, request)
            case Kind.ERROR:
                return read_env_error(message)
            case Kind.RENDER if type(request) is ours.Render:
                return _read_frame(message)
            case Kind.PROBE if type(request) is ours.Probe:
                return ours.ProbeReply(message.payload)
            case kind if kind is not None and _DONE.get(kind) is type(request):
                return ours.Done()
            case _:
                name = "nothing" if envelope.kind is None else envelope.kind.name
                raise WireError(f"the env answered a {type(request).__name__} with {name}")

    def _read_reset(
        self, envelope: Envelope, message: pb.ResetResponse, request: ResetRequest
    ) -> ResetReply:
        rows = len(request.env_indices) or self._num_envs
        return ResetReply(
            observation=read_leaves(
                message.observation, self._observations, rows, "observation", envelope.leaves
            ),
            infos=_read_infos(message, rows),
            odd=_read_odd(message, rows) if message.odd else (),
            endpoint_total_ns=envelope.endpoint_total_ns,
            response_bytes=envelope.nbytes,
        )

    def _read_step(
        self, envelope: Envelope, message: pb.StepResponse, request: StepRequest
    ) -> StepReply:
        lanes = request.env_indices
        rows = len(lanes) or self._num_envs
        if message.env_indices and tuple(message.env_indices) != lanes:
            raise WireError(
                f"the env answered a step of lanes {list(lanes) or 'all'} for lanes "
                f"{list(message.env_indices)[:20]}"
            )
        rewards = tuple(message.rewards) or (0.0,) * rows
        if len(rewards) != rows:
            raise WireError(f"the env sent {len(rewards)} rewards for {rows} lanes")
        return StepReply(
            observation=read_leaves(
                message.observation, self._observations, rows, "observation", envelope.leaves
            ),
            rewards=rewards,
            infos=_read_infos(message, rows),
            completions=self._completions(message, request, rows),
            odd=_read_odd(message, rows) if message.odd else (),
            endpoint_total_ns=envelope.endpoint_total_ns,
            response_bytes=envelope.nbytes,
        )

    def _completions(
        self, message: pb.StepResponse, request: StepRequest, rows: int
    ) -> tuple[Completion, ...]:
        terminated = _mask(message.terminated_mask, rows)
        truncated = _mask(message.truncated_mask, rows)
        if not terminated and not truncated:
            if message.completed_episodes:
                logger.debug("interrupted_episodes count=%d", len(message.completed_episodes))
            return ()
        found: list[Completion] = []
        for row in range(rows):
            has_terminated = bool(terminated) and terminated[row] != 0
            has_truncated = bool(truncated) and truncated[row] != 0
            if not has_terminated and not has_truncated:
                continue
            lane = request.env_indices[row] if request.env_indices else row
            pushed = request.episode_ids[row] if row < len(request.episode_ids) else ""
            entry = _entry(message.completed_episodes, lane, pushed)
            found.append(self._completion(lane, entry, has_terminated, has_truncated))
        return tuple(found)

    def _completion(
        self,
        lane: int,
        entry: pb.EpisodeMetadata | None,
        terminated: bool,  # noqa: FBT001 - the two flags of an end
        truncated: bool,  # noqa: FBT001
    ) -> Completion:
        if entry is None:
            return Completion(env_index=lane, terminated=terminated, truncated=truncated)
        info: Info | None = None
        if entry.HasField("exact_final_info"):
            info = decode_exact(entry.exact_final_info)
        elif entry.HasField("final_info"):
            info = decode_map(entry.final_info)
        observation = None
        if entry.HasField("final_observation"):
            observation = read_leaves(
                entry.final_observation, self._observations, 1, "final_observation"
            )
        counted = entry.step_count > 0
        return Completion(
            env_index=lane,
            terminated=terminated,
            truncated=truncated,
            final_info=info,
            final_observation=observation,
            episode_id=entry.episode_id or None,
            step_count=entry.step_count if counted else None,
            cumulative_reward=entry.cumulative_reward if counted else None,
        )


_DONE: dict[Kind, type[Any]] = {
    Kind.CLOSE: ours.Close,
    Kind.CONFIGURE: ours.Configure,
    Kind.REBUILD: ours.Rebuild,
}


def _entry(
    entries: Sequence[pb.EpisodeMetadata], lane: int, pushed: str
) -> pb.EpisodeMetadata | None:
    """Return the entry of the episode that ended on a lane; others tell of interrupted ones."""
    for entry in reversed(entries):
        if entry.env_index == lane and (not entry.episode_id or entry.episode_id == pushed):
            return entry
    return None


def _mask(mask: bytes, rows: int) -> bytes:
    """Return a mask, or nothing where no lane is set."""
    if not mask or not mask.strip(b"\0"):
        mask_rows = len(mask)
        if mask_rows not in (0, rows):
            raise WireError(f"the env sent a mask of {mask_rows} bytes for {rows} lanes")
        return b""
    if len(mask) != rows:
        raise WireError(f"the env sent a mask of {len(mask)} bytes for {rows} lanes")
    return mask


def _read_infos(message: Any, rows: int) -> tuple[Info, ...]:
    exact = message.exact_infos
    if exact:
        if len(exact) != rows:
            raise WireError(f"the env sent {len(exact)} infos for {rows} lanes")
        return tuple([decode_exact(one) for one in exact])
    return decode_lanes(message.infos, rows)


def _read_odd(message: pb.ResetResponse | pb.StepResponse, rows: int) -> tuple[OddValue, ...]:
    told = [OddValue(one.row, one.kind, one.path, one.is_final) for one in message.odd]
    return check_odd(tuple(told), rows)


def _read_frame(message: pb.RenderResponse) -> ours.RenderReply:
    if message.exact_frame:
        return ours.RenderReply(frame=decode_exact(message.exact_frame).get("frame"))
    if not message.HasField("frame"):
        return ours.RenderReply()
    if message.format not in (0, 1):
        raise WireError(f"a rendered frame of an unknown format, number {message.format}")
    return ours.RenderReply(frame=read_png(message.frame))


def _merge_options(options: Sequence[Info | None]) -> dict[Any, Any] | None:
    """Return the one map that stands for the options of all lanes.

    Raises:
        InvalidValue: They differ in more than `trial_index`.
    """
    first = dict(options[0] or {})
    if len(options) == 1:
        return first
    trials = [None if one is None else one.get(TRIAL_INDEX) for one in options]
    rest = [{key: (one or {})[key] for key in one or {} if key != TRIAL_INDEX} for one in options]
    if any(not _same(one, rest[0]) for one in rest[1:]):
        raise InvalidValue(
            "options",
            f"this peer takes the same options for all lanes of a reset ({TRIAL_INDEX} apart); "
            "reset the lanes one by one, or use one lane",
        )
    merged: dict[Any, Any] = rest[0]
    if any(trial is not None for trial in trials):
        merged[TRIAL_INDEX] = trials
    return merged


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one is other or encode_exact(one) == encode_exact(other)


def _log(path: str, detail: str) -> None:
    logger.warning("options_changed path=%s detail=%s", path, detail)
