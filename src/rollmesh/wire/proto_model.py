"""The model service: requests and replies of a Join, in both directions (layer 4).

A Join carries any number of routes, told apart by the context in each request. What a predict means
depends on the spaces of its route, so readers are given the route's contract.

Seen on the released peer (0.1.0). Request ids are not empty and equal the context's; a response
repeats both. A client says `delivers_history`, sends `execution_horizon` 1 for a model without
chunks, and announces no capabilities. `adapter_ns` does not come; `held_episodes` and
`held_state_bytes` do. Responses to other requests than predict carry no context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rollmesh.errors import InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.limits import timeout_ms as as_timeout_ms
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.wire import messages as ours
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as pb
from rollmesh.wire.dialect import Dialect
from rollmesh.wire.messages import Kind
from rollmesh.wire.proto_env import (
    MOST_ENVS,
    Envelope,
    enclose_request,
    enclose_response,
    mode_number,
    read_env_spec,
    write_env_spec,
)
from rollmesh.wire.proto_errors import read_model_error, write_model_error
from rollmesh.wire.proto_metadata import Report
from rollmesh.wire.proto_values import (
    cut_leaves,
    message_with,
    parse,
    read_leaves,
    tag,
    value_parts,
    write_leaves,
)

SERVICE = "rlmesh.model.v1.ModelService"
MOST_FRAMES = 4096
"""Frames of one chunk that are believed."""

_PREDICT = tag(2)
_OBSERVATION = tag(2)
_HOLDERS = (tag(2)[0],)
"""Requests that hold an observation: predicts that are not grouped."""
_INT64 = 2**63
_REQUESTS = {
    "resolve_adapter": Kind.RESOLVE,
    "predict": Kind.PREDICT,
    "grouped_predict": Kind.PREDICT,
    "release_adapter": Kind.RELEASE_ADAPTER,
    "reset_adapter": Kind.RESET_ADAPTER,
    "close": Kind.CLOSE,
    "cancel": Kind.CANCEL,
    "probe": Kind.PROBE,
}
_RESPONSES = {**_REQUESTS, "error": Kind.ERROR}


class ResolveRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Prepare the model for an env; comes before its first predict.

    Attributes:
        context: Whose.
        contract: The env's contract. A released peer tells spaces, id and metadata only.
        edition: The workflow edition that was selected, or `""`.
        execution_horizon: How many frames of a chunk will be executed; None is all.
        delivers_history: The driver can send earlier observations (which nothing here asks for).
    """

    context: AdapterContext
    contract: EnvContract
    edition: str = ""
    execution_horizon: int | None = None
    delivers_history: bool = False


def is_grouped(envelope: Envelope) -> bool:
    """Return whether a predict, or its reply, is of several routes at once."""
    return isinstance(envelope.message, (pb.GroupedPredictRequest, pb.GroupedPredictResponse))


# ---------------------------------------------------------------------- requests of a client


def write_model_request(
    request_id: str,
    body: Any,
    dialect: Dialect,
    report: Report,
    contract: EnvContract | None = None,
) -> bytes:
    """Return a request as bytes.

    Args:
        request_id: The context's own, where there is one.
        body: A `ResolveRoute`, `PredictRequest`, `ResetAdapterRequest`, `ReleaseAdapterRequest`,
            `Close`, `Cancel` or `Probe`.
        dialect: What both ends know.
        report: Called for each metadata value that has no form on the peer's wire.
        contract: The route's; needed for a predict.

    Raises:
        InvalidValue: A seed cannot be said on the wire.
        WireError: A space cannot, or the request is too large or not known to the peer.
    """
    if type(body) is PredictRequest and contract is not None:
        return _write_predict(request_id, body, dialect, contract)
    message = pb.JoinRequest(request_id=request_id)
    match body:
        case ResolveRoute():
            _write_resolve(body, message.resolve_adapter, dialect, report)
        case ResetAdapterRequest():
            _write_context(body.context, message.reset_adapter.context)
            message.reset_adapter.episode_ids.extend(body.episode_ids)
        case ReleaseAdapterRequest():
            _write_context(body.context, message.release_adapter.context)
            message.release_adapter.reason = body.reason
            if dialect.details:
                message.release_adapter.timeout_ms = as_timeout_ms(body.timeout_s)
        case ours.Close():
            message.close.reason = body.reason
            message.close.SetInParent()
        case ours.Cancel() if dialect.details:
            message.cancel.reason = body.reason
            message.cancel.SetInParent()
        case ours.Probe() if dialect.details:
            message.probe.payload = body.payload
            message.probe.SetInParent()
        case _:
            raise WireError(f"this peer's wire has no {type(body).__name__} for models")
    return message.SerializeToString()


def _write_predict(
    request_id: str, body: PredictRequest, dialect: Dialect, contract: EnvContract
) -> bytes:
    message = pb.PredictRequest()
    _write_context(body.context, message.context)
    episodes = message.episode_info
    for info in body.episode_info:
        if info.seed is None:
            episodes.add(episode_id=info.episode_id)
        elif -_INT64 <= info.seed < _INT64:
            episodes.add(episode_id=info.episode_id, seed=info.seed)
        else:
            raise InvalidValue("seeds", f"{info.seed} does not fit the wire's 64 bits")
    if dialect.details:
        message.timeout_ms = body.timeout_ms
    rest = message.SerializeToString()
    parts, size = value_parts(body.observation, contract.observation_space.codec, _OBSERVATION)
    parts.append(rest)
    outer = pb.JoinRequest(request_id=request_id).SerializeToString()
    return message_with(outer, _PREDICT, parts, size + len(rest))


def _write_resolve(
    body: ResolveRoute, target: pb.ResolveAdapterRequest, dialect: Dialect, report: Report
) -> None:
    _write_context(body.context, target.context)
    write_env_spec(body.contract, target.env_spec, dialect, report)
    target.selected_workflow_edition = body.edition
    target.execution_horizon = body.execution_horizon or 0
    target.delivers_history = body.delivers_history
    if dialect.details:
        target.num_envs = body.contract.num_envs
        target.autoreset_mode = mode_number(body.contract.autoreset_mode)  # pyright: ignore[reportAttributeAccessIssue]
        target.render_mode = body.contract.render_mode or ""


def _write_context(context: AdapterContext, target: pb.AdapterContext) -> None:
    target.session_id = context.session_id
    target.env_id = context.env_id
    target.request_id = context.request_id


def open_model_response(data: bytes) -> Envelope:
    """Return a response with its request id, so that its request can be found.

    Raises:
        WireError: The bytes are no response.
    """
    message: pb.JoinResponse = parse(pb.JoinResponse, data, "response of a model")
    return enclose_response(message, _RESPONSES, len(data))


def read_model_reply(envelope: Envelope, request: Any, contract: EnvContract | None = None) -> Any:
    """Return the reply in a response: what `ports` or `messages` call it, or an `ErrorBody`.

    Args:
        envelope: What `open_model_response` returned.
        request: The body of the request that it answers.
        contract: The route's; needed for a predict.

    Raises:
        WireError: It is no reply to such a request, or over a limit.
        InvalidValue: A value does not fit the action space.
    """
    message = envelope.message
    match envelope.kind, request:
        case Kind.PREDICT, PredictRequest() if contract is not None and not is_grouped(envelope):
            return read_prediction(message, request, contract, envelope)
        case Kind.ERROR, _:
            return read_model_error(message)
        case Kind.RESOLVE, ResolveRoute():
            chunk = message.native_chunk if message.HasField("native_chunk") else None
            return ours.ResolveReply(context=request.context, native_chunk=chunk)
        case Kind.PROBE, ours.Probe():
            return ours.ProbeReply(message.payload)
        case kind, _ if kind is not None and _DONE.get(kind) is type(request):
            return ours.Done()
        case _:
            name = "nothing" if envelope.kind is None else envelope.kind.name
            raise WireError(f"the model answered a {type(request).__name__} with {name}")


_DONE: dict[Kind, type[Any]] = {
    Kind.RESET_ADAPTER: ResetAdapterRequest,
    Kind.RELEASE_ADAPTER: ReleaseAdapterRequest,
    Kind.CLOSE: ours.Close,
}


def read_prediction(
    message: pb.PredictResponse,
    request: PredictRequest,
    contract: EnvContract,
    envelope: Envelope | None = None,
) -> PredictReply:
    """Return the actions in a response; whose it is, the runtime compares."""
    if len(message.actions) > MOST_FRAMES:
        raise WireError(
            f"the model sent {len(message.actions)} frames; at most {MOST_FRAMES} are believed"
        )
    rows = len(request.episode_info)
    codec = contract.action_space.codec
    return PredictReply(
        context=_read_context(message.context),
        frames=tuple([read_leaves(frame, codec, rows, "action") for frame in message.actions]),
        endpoint_total_ns=None if envelope is None else envelope.endpoint_total_ns,
        response_bytes=0 if envelope is None else envelope.nbytes,
    )


# ---------------------------------------------------------------------- requests at a server


def open_model_request(data: bytes) -> Envelope:
    """Return a request with its id and kind; kind None is one that is not known here.

    Raises:
        WireError: The bytes are no request.
    """
    cut = cut_leaves(data, _HOLDERS, _OBSERVATION[0])
    rest = data if cut is None else cut[0]
    message: pb.JoinRequest = parse(pb.JoinRequest, rest, "request to a model")
    return enclose_request(message, _REQUESTS, len(data), None if cut is None else cut[1])


def read_model_request(envelope: Envelope) -> Any:
    """Return the request in an envelope, unless it is a predict (`context_of`, `read_predict`).

    Raises:
        WireError: Its kind is not known, or it is not valid (answer `invalid_request`).
    """
    message = envelope.message
    match envelope.kind:
        case Kind.RESOLVE:
            return _read_resolve(message)
        case Kind.RESET_ADAPTER:
            ids = tuple(message.episode_ids)
            if len(ids) > MOST_ENVS:
                raise WireError(f"{len(ids)} episode ids in one request; {MOST_ENVS} at most")
            return ResetAdapterRequest(context_of(message), ids)
        case Kind.RELEASE_ADAPTER:
            timeout_s = message.timeout_ms / 1000.0 if message.timeout_ms else None
            return ReleaseAdapterRequest(context_of(message), message.reason, timeout_s)
        case Kind.CLOSE:
            return ours.Close(reason=message.reason)
        case Kind.CANCEL:
            return ours.Cancel(reason=message.reason)
        case Kind.PROBE:
            return ours.Probe(message.payload)
        case _:
            raise WireError("a request to a model without a kind that this version knows")


def context_of(message: Any) -> AdapterContext:
    """Return whose a request is.

    Raises:
        WireError: It does not say.
    """
    if not message.HasField("context"):
        raise WireError("a request to a model has no context")
    return _read_context(message.context)


def _read_context(context: pb.AdapterContext) -> AdapterContext:
    for name in (context.session_id, context.env_id, context.request_id):
        if len(name) > 4 * SIZE_LIMITS.key_bytes:
            raise WireError(f"an id of {len(name)} characters in the context of a request")
    return AdapterContext(context.session_id, context.env_id, context.request_id)


def _read_resolve(message: pb.ResolveAdapterRequest) -> ResolveRoute:
    context = context_of(message)
    if not message.HasField("env_spec"):
        raise WireError("a resolve_adapter has no env_spec")
    contract = read_env_spec(
        message.env_spec,
        num_envs=message.num_envs,
        mode=message.autoreset_mode,
        render_mode=message.render_mode,
    )
    return ResolveRoute(
        context=context,
        contract=contract,
        edition=message.selected_workflow_edition,
        execution_horizon=message.execution_horizon or None,
        delivers_history=message.delivers_history,
    )


def read_predict(
    message: pb.PredictRequest,
    contract: EnvContract,
    execution_horizon: int | None,
    cut: Sequence[memoryview] | None = None,
) -> PredictRequest:
    """Return a predict; history and step number are left out.

    Args:
        message: From the envelope, or one of its groups.
        contract: Of the route that its context names.
        execution_horizon: Of that route.
        cut: `leaves` of the envelope, where the message is its own.

    Raises:
        InvalidValue: The observation does not fit its space.
        WireError: No episode is named, or one twice.
    """
    episodes = tuple(
        [
            EpisodeInfo(info.episode_id, info.seed if info.HasField("seed") else None)
            for info in message.episode_info
        ]
    )
    rows = len(episodes)
    if not rows or rows > MOST_ENVS:
        raise WireError(f"a predict of {rows} episodes; expected 1 to {MOST_ENVS}")
    if rows > 1 and len({info.episode_id for info in episodes}) != rows:
        raise WireError("a predict names an episode twice")
    codec = contract.observation_space.codec
    return PredictRequest(
        context=context_of(message),
        observation=read_leaves(message.observation, codec, rows, "observation", cut),
        episode_info=episodes,
        timeout_ms=message.timeout_ms,
        execution_horizon=execution_horizon,
    )


def groups_of(envelope: Envelope) -> Iterator[pb.PredictRequest]:
    """Return the predicts of a grouped one, in order."""
    return iter(envelope.message.groups)


def write_model_reply(
    request_id: str,
    body: Any,
    dialect: Dialect,
    *,
    request: Any = None,
    contract: EnvContract | None = None,
    timing_ns: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a reply as bytes.

    Args:
        request_id: The request's, unchanged.
        body: A `PredictReply`, `ResolveReply`, `Done`, `ProbeReply` or `ErrorBody`.
        dialect: What both ends know.
        request: The body of the request; needed for a `Done`.
        contract: Of the route; needed for a predict.
        timing_ns: Times and counts by field name: `endpoint_total_ns`, `in_flight`, ….

    Raises:
        WireError: The reply is larger than a message may be.
    """
    message = pb.JoinResponse(request_id=request_id, **(timing_ns or {}))
    match body:
        case PredictReply() if contract is not None:
            _write_prediction(body, contract, message.predict)
        case ours.ErrorBody():
            write_model_error(body, message.error, dialect)
        case ours.ResolveReply():
            message.resolve_adapter.SetInParent()
            if body.native_chunk is not None:
                message.resolve_adapter.native_chunk = body.native_chunk
        case ours.ProbeReply():
            message.probe.payload = body.payload
            message.probe.SetInParent()
        case ours.Done() if type(request) in _DONE_FIELDS:
            getattr(message, _DONE_FIELDS[type(request)]).SetInParent()
        case _:
            raise TypeError(f"expected the reply of a model, got {type(body).__name__}")
    return _finish(message)


_DONE_FIELDS: dict[type[Any], str] = {
    ResetAdapterRequest: "reset_adapter",
    ReleaseAdapterRequest: "release_adapter",
    ours.Close: "close",
}


def write_grouped_reply(
    request_id: str,
    bodies: Sequence[tuple[PredictReply | ours.ErrorBody, EnvContract | None]],
    dialect: Dialect,
    timing_ns: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the reply to a grouped predict: a reply or error per group, with its contract."""
    message = pb.JoinResponse(request_id=request_id, **(timing_ns or {}))
    message.grouped_predict.SetInParent()
    for body, contract in bodies:
        result = message.grouped_predict.results.add()
        if isinstance(body, PredictReply) and contract is not None:
            _write_prediction(body, contract, result.response)
        elif isinstance(body, ours.ErrorBody):
            write_model_error(body, result.error, dialect)
        else:
            raise TypeError("expected an error, or a reply and its contract")
    return _finish(message)


def _write_prediction(
    body: PredictReply, contract: EnvContract, target: pb.PredictResponse
) -> None:
    _write_context(body.context, target.context)
    codec = contract.action_space.codec
    for frame in body.frames:
        write_leaves(frame, codec, target.actions.add())


def _finish(message: pb.JoinResponse) -> bytes:
    data = message.SerializeToString()
    if len(data) > SIZE_LIMITS.message_bytes:
        raise WireError(f"a reply of {len(data)} bytes is larger than a message may be")
    return data
