"""The env service as a server speaks it: requests in, replies out (layer 4).

Towards a released peer a step also reports the whole of each episode that ended, and, with the next
step, of those that a reset interrupted; `episodes.py` keeps count of them.

Strict where the released server is loose: seeds and episode ids of a whole reset must be as many as
there are lanes, or none (more are cut off, as it does); a partial request must name different
lanes.

Knows no sockets and keeps no state between calls but what was agreed at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
from rollmesh.wire.png import is_image, write_png
from rollmesh.wire.proto_env import Envelope, EpisodeFacts, enclose_request
from rollmesh.wire.proto_env_client import TRIAL_INDEX
from rollmesh.wire.proto_errors import write_env_error
from rollmesh.wire.proto_metadata import (
    Report,
    decode_map,
    encode_lanes,
    encode_map,
    encode_vector,
)
from rollmesh.wire.proto_values import (
    check_lanes,
    cut_leaves,
    message_with,
    parse,
    read_leaves,
    tag,
    value_parts,
    write_leaves,
)

logger = logging.getLogger(__name__)

_RESET = tag(1)
_STEP = tag(2)
_OBSERVATION = tag(1)
_HOLDERS = (tag(2)[0],)
"""Requests that hold an action: steps."""
_ACTION = tag(1)[0]
_NO_FACTS: Mapping[int, EpisodeFacts] = {}
_KINDS = {
    "reset": Kind.RESET,
    "step": Kind.STEP,
    "render": Kind.RENDER,
    "close": Kind.CLOSE,
    "configure": Kind.CONFIGURE,
    "rebuild": Kind.REBUILD,
    "cancel": Kind.CANCEL,
    "probe": Kind.PROBE,
}


def open_env_request(data: bytes) -> Envelope:
    """Return a request with its id and kind; kind None is one that is not known here.

    Raises:
        WireError: The bytes are no request.
    """
    cut = cut_leaves(data, _HOLDERS, _ACTION)
    rest = data if cut is None else cut[0]
    message: pb.JoinRequest = parse(pb.JoinRequest, rest, "request to an env")
    return enclose_request(message, _KINDS, len(data), None if cut is None else cut[1])


class EnvServerWire:
    """Reads the requests of one session and writes its replies.

    Args:
        contract: What is served.
        dialect: What both ends know.
        has_lanes: Whether each lane can be stepped on its own (`SUBSET_STEP`); decides how infos
            of several lanes look to a released peer.
        report: Called once for each info that has no form on the peer's wire, with its path.
    """

    def __init__(
        self,
        contract: EnvContract,
        dialect: Dialect,
        *,
        has_lanes: bool = False,
        report: Report | None = None,
    ) -> None:
        self._dialect = dialect
        self._has_lanes = has_lanes
        self._num_envs = contract.num_envs
        self._observations = contract.observation_space.codec
        self._actions = contract.action_space.codec
        self._report: Report = ReportOnce(report or _log)

    # ---------------------------------------------------------------------------- requests

    def read(self, envelope: Envelope) -> Any:  # noqa: PLR0911 - one per kind
        """Return the request in an envelope: what `ports` or `messages` call it.

        Raises:
            InvalidValue: Lanes, seeds, ids or the action do not fit (answer `invalid_action`).
            WireError: Its kind is not known (answer `unsupported`), or it is over a limit.
        """
        message = envelope.message
        match envelope.kind:
            case Kind.STEP:
                return self._read_step(message, envelope)
            case Kind.RESET:
                return self._read_reset(message)
            case Kind.RENDER:
                lanes = check_lanes(message.env_indices, self._num_envs, "render")
                return ours.Render(env_indices=lanes, timeout_ms=message.timeout_ms)
            case Kind.CLOSE:
                return ours.Close(
                    reason=message.reason,
                    timeout_ms=message.timeout_ms,
                    close_env=message.close_env,
                )
            case Kind.CONFIGURE:
                return ours.Configure(edition=message.selected_workflow_edition)
            case Kind.REBUILD:
                lanes = check_lanes(message.env_indices, self._num_envs, "rebuild")
                return ours.Rebuild(env_indices=lanes, timeout_ms=message.timeout_ms)
            case Kind.CANCEL:
                return ours.Cancel(reason=message.reason)
            case Kind.PROBE:
                return ours.Probe(message.payload)
            case _:
                raise WireError("a request to an env without a kind that this version knows")

    def _read_reset(self, message: pb.ResetRequest) -> ResetRequest:
        lanes = check_lanes(message.env_indices, self._num_envs, "reset")
        rows = len(lanes) or self._num_envs
        return ResetRequest(
            episode_ids=_per_lane(message.episode_ids, rows, "reset.episode_ids") or ("",) * rows,
            seeds=_per_lane(message.seeds, rows, "reset.seeds", cut=not lanes),
            options=_read_options(message, rows),
            timeout_ms=message.timeout_ms,
            env_indices=lanes,
        )

    def _read_step(self, message: pb.StepRequest, envelope: Envelope) -> StepRequest:
        lanes = check_lanes(message.env_indices, self._num_envs, "step")
        rows = len(lanes) or self._num_envs
        return StepRequest(
            action=read_leaves(message.action, self._actions, rows, "action", envelope.leaves),
            episode_ids=_per_lane(message.episode_ids, rows, "step.episode_ids") or ("",) * rows,
            timeout_ms=message.timeout_ms,
            env_indices=lanes,
            next_episode_ids=_per_lane(message.next_episode_ids, rows, "step.next_episode_ids"),
        )

    # ----------------------------------------------------------------------------- replies

    def write(
        self,
        request_id: str,
        body: Any,
        request: Any = None,
        *,
        ended: Mapping[int, EpisodeFacts] = _NO_FACTS,
        interrupted: Sequence[EpisodeFacts] = (),
        timing_ns: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return a reply as bytes.

        Args:
            request_id: The request's, unchanged.
            body: A `ResetReply`, `StepReply`, `RenderReply`, `Done`, `ProbeReply` or `ErrorBody`.
            request: The body of the request; needed for all but errors.
            ended: What is known of the episodes that this step ended, by lane.
            interrupted: Episodes that a reset cut, not reported yet.
            timing_ns: Times by field name: `endpoint_total_ns`, `user_ns`, `queue_ns`, ….

        Raises:
            WireError: The reply does not hold together, or is larger than a message may be.
        """
        message = pb.JoinResponse(request_id=request_id, **(timing_ns or {}))
        if type(body) is StepReply and type(request) is StepRequest:
            step = self._step_rest(body, request, ended, interrupted)
            return self._around(body.observation, _STEP, step, message)
        if type(body) is ResetReply and type(request) is ResetRequest:
            reset = pb.ResetResponse()
            self._write_infos(body.infos, reset, [True] * len(body.infos))
            if body.odd and self._dialect.details:
                _write_odd(body.odd, reset)
            return self._around(body.observation, _RESET, reset, message)
        match body:
            case ours.ErrorBody():
                write_env_error(body, message.error, self._dialect)
                for facts in interrupted:
                    _write_facts(facts, message.error.interrupted_episodes.add())
            case ours.RenderReply():
                self._write_frame(body, message.render)
            case ours.ProbeReply():
                message.probe.payload = body.payload
                message.probe.SetInParent()
            case ours.Done():
                self._write_done(request, message, interrupted)
            case _:
                raise TypeError(f"expected the reply of an env, got {type(body).__name__}")
        return message.SerializeToString()

    def _around(self, leaves: Any, field: bytes, inner: Any, outer: pb.JoinResponse) -> bytes:
        """Return a response whose observation is put in by hand."""
        rest = inner.SerializeToString()
        parts, size = value_parts(leaves, self._observations, _OBSERVATION)
        parts.append(rest)
        return message_with(outer.SerializeToString(), field, parts, size + len(rest))

    def _write_done(
        self, request: Any, message: pb.JoinResponse, interrupted: Sequence[EpisodeFacts]
    ) -> None:
        match request:
            case ours.Configure():
                message.configure.SetInParent()
            case ours.Rebuild():
                message.rebuild.SetInParent()
            case ours.Close():
                message.close.SetInParent()
                for facts in interrupted:
                    _write_facts(facts, message.close.final_episodes.add())
            case _:
                raise TypeError(
                    f"expected a request without a result, got {type(request).__name__}"
                )

    def _step_rest(
        self,
        reply: StepReply,
        request: StepRequest,
        ended: Mapping[int, EpisodeFacts],
        interrupted: Sequence[EpisodeFacts],
    ) -> pb.StepResponse:
        """Return a step's response without its observation."""
        lanes = request.env_indices
        rows = len(lanes) or self._num_envs
        if len(reply.rewards) != rows or len(reply.infos) != rows:
            raise WireError(
                f"the env gave {len(reply.rewards)} rewards and {len(reply.infos)} infos for "
                f"{rows} lanes"
            )
        message = pb.StepResponse(rewards=reply.rewards, env_indices=lanes)
        flags = [False] * rows
        if reply.completions:
            terminated, truncated = bytearray(rows), bytearray(rows)
            for completion in reply.completions:
                row = _row_of(completion.env_index, lanes, rows)
                self._write_end(completion, reply, row, message, ended)
                if not _is_stale(completion, request, row):
                    terminated[row] |= completion.terminated
                    truncated[row] |= completion.truncated
                    flags[row] = True
            message.terminated_mask = bytes(terminated)
            message.truncated_mask = bytes(truncated)
        elif not self._dialect.details:
            message.terminated_mask = message.truncated_mask = bytes(rows)
        if not self._dialect.details:
            for facts in interrupted:
                _write_facts(facts, message.completed_episodes.add())
        self._write_infos(reply.infos, message, flags)
        if reply.odd and self._dialect.details:
            _write_odd(reply.odd, message)
        return message

    def _write_end(
        self,
        completion: Completion,
        reply: StepReply,
        row: int,
        message: pb.StepResponse,
        ended: Mapping[int, EpisodeFacts],
    ) -> None:
        target = message.completed_episodes.add()
        facts = ended.get(completion.env_index)
        if facts is not None:
            _write_facts(facts, target)
        target.env_index = completion.env_index
        target.terminated = completion.terminated
        target.truncated = completion.truncated
        if completion.episode_id:
            target.episode_id = completion.episode_id
        if completion.step_count is not None:
            target.step_count = completion.step_count
        if completion.cumulative_reward is not None:
            target.cumulative_reward = completion.cumulative_reward
        info = completion.final_info
        if self._dialect.exact_maps:
            if info is not None:
                target.exact_final_info = encode_exact(info, self._report)
        else:
            encode_map(reply.infos[row] if info is None else info, target.final_info, self._report)
        if completion.final_observation is not None and self._dialect.details:
            write_leaves(completion.final_observation, self._observations, target.final_observation)

    def _write_infos(self, infos: Sequence[Info], target: Any, ended: Sequence[bool]) -> None:
        if self._dialect.exact_maps:
            if any(infos):
                target.exact_infos.extend([encode_exact(info, self._report) for info in infos])
        elif len(infos) == 1:
            if infos[0]:
                encode_map(infos[0], target.infos, self._report)
        elif self._has_lanes:
            encode_lanes(infos, target.infos, self._report, ended)
        elif any(infos):
            encode_vector(infos, target.infos, self._report)

    def _write_frame(self, body: ours.RenderReply, target: pb.RenderResponse) -> None:
        target.SetInParent()
        frame = body.frame
        if frame is None:
            return
        if self._dialect.exact_maps:
            target.exact_frame = encode_exact({"frame": frame}, self._report, "render")
        elif is_image(frame):
            target.frame = write_png(frame)
            target.format = pb.RENDER_FORMAT_PNG
        else:
            self._report("render", f"{type(frame).__name__} is no image that a PNG can hold")


def _per_lane(values: Sequence[Any], rows: int, what: str, *, cut: bool = False) -> tuple[Any, ...]:
    """Return one value per lane, or none."""
    given = len(values)
    if given in (0, rows):
        return tuple(values)
    if cut and given > rows:
        return tuple(values[:rows])
    raise InvalidValue(what, f"expected none or {rows}, one per lane, got {given}")


def _read_options(message: pb.ResetRequest, rows: int) -> tuple[Info | None, ...]:
    exact = message.exact_options
    if exact:
        given = _per_lane(exact, rows, "reset.options")
        return tuple([decode_exact(one[1:]) if one else None for one in given])
    if not message.HasField("options"):
        return ()
    shared = decode_map(message.options)
    trials = shared.get(TRIAL_INDEX)
    lanes = [dict(shared) for _ in range(rows)]
    if rows > 1 and isinstance(trials, list) and len(trials) == rows:  # pyright: ignore[reportUnknownArgumentType]
        for options, trial in zip(lanes, trials, strict=True):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            options[TRIAL_INDEX] = trial
    return tuple(lanes)


def _row_of(env_index: int, lanes: tuple[int, ...], rows: int) -> int:
    row = lanes.index(env_index) if env_index in lanes else env_index if not lanes else -1
    if not 0 <= row < rows:
        raise WireError(f"the env ended lane {env_index} in a step of lanes {list(lanes) or 'all'}")
    return row


def _is_stale(completion: Completion, request: StepRequest, row: int) -> bool:
    """Return whether an end names another episode than the one that was stepped."""
    pushed = request.episode_ids[row] if row < len(request.episode_ids) else ""
    return bool(completion.episode_id and pushed and completion.episode_id != pushed)


def _write_odd(odd: Sequence[OddValue], target: pb.ResetResponse | pb.StepResponse) -> None:
    for one in odd:
        target.odd.add(row=one.row, kind=one.kind, path=one.path, is_final=one.is_final)


def _write_facts(facts: EpisodeFacts, target: pb.EpisodeMetadata) -> None:
    target.episode_id = facts.episode_id
    if facts.seed is not None:
        target.seed = facts.seed
    target.env_index = facts.env_index
    target.step_count = facts.step_count
    target.cumulative_reward = facts.cumulative_reward
    target.terminated = facts.terminated
    target.truncated = facts.truncated
    target.start_timestamp_ns = facts.started_ns
    target.end_timestamp_ns = facts.ended_ns


def _log(path: str, detail: str) -> None:
    logger.warning("info_changed path=%s detail=%s", path, detail)
