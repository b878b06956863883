from rollmesh.wire._gen import rlmesh_core_v1_pb2 as _rlmesh_core_v1_pb2
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as _rlmesh_spaces_v1_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_ERROR_CODE_UNSPECIFIED: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_INVALID_REQUEST: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_NOT_CONFIGURED: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_BUSY: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_UNSUPPORTED: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_INTERNAL: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_CANCELLED: _ClassVar[ModelErrorCode]
    MODEL_ERROR_CODE_CLOSED: _ClassVar[ModelErrorCode]
MODEL_ERROR_CODE_UNSPECIFIED: ModelErrorCode
MODEL_ERROR_CODE_INVALID_REQUEST: ModelErrorCode
MODEL_ERROR_CODE_NOT_CONFIGURED: ModelErrorCode
MODEL_ERROR_CODE_BUSY: ModelErrorCode
MODEL_ERROR_CODE_UNSUPPORTED: ModelErrorCode
MODEL_ERROR_CODE_INTERNAL: ModelErrorCode
MODEL_ERROR_CODE_CANCELLED: ModelErrorCode
MODEL_ERROR_CODE_CLOSED: ModelErrorCode

class HandshakeRequest(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: _rlmesh_core_v1_pb2.HandshakeRequest
    def __init__(self, base: _Optional[_Union[_rlmesh_core_v1_pb2.HandshakeRequest, _Mapping]] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: _rlmesh_core_v1_pb2.HandshakeResponse
    def __init__(self, base: _Optional[_Union[_rlmesh_core_v1_pb2.HandshakeResponse, _Mapping]] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: _rlmesh_core_v1_pb2.ShutdownRequest
    def __init__(self, base: _Optional[_Union[_rlmesh_core_v1_pb2.ShutdownRequest, _Mapping]] = ...) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: _rlmesh_core_v1_pb2.ShutdownResponse
    def __init__(self, base: _Optional[_Union[_rlmesh_core_v1_pb2.ShutdownResponse, _Mapping]] = ...) -> None: ...

class AdapterContext(_message.Message):
    __slots__ = ("session_id", "env_id", "request_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    env_id: str
    request_id: str
    def __init__(self, session_id: _Optional[str] = ..., env_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ResolveAdapterRequest(_message.Message):
    __slots__ = ("context", "env_spec", "selected_workflow_edition", "execution_horizon", "delivers_history", "num_envs", "autoreset_mode", "render_mode")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ENV_SPEC_FIELD_NUMBER: _ClassVar[int]
    SELECTED_WORKFLOW_EDITION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_HORIZON_FIELD_NUMBER: _ClassVar[int]
    DELIVERS_HISTORY_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVS_FIELD_NUMBER: _ClassVar[int]
    AUTORESET_MODE_FIELD_NUMBER: _ClassVar[int]
    RENDER_MODE_FIELD_NUMBER: _ClassVar[int]
    context: AdapterContext
    env_spec: _rlmesh_core_v1_pb2.EnvSpec
    selected_workflow_edition: str
    execution_horizon: int
    delivers_history: bool
    num_envs: int
    autoreset_mode: _rlmesh_core_v1_pb2.AutoresetMode
    render_mode: str
    def __init__(self, context: _Optional[_Union[AdapterContext, _Mapping]] = ..., env_spec: _Optional[_Union[_rlmesh_core_v1_pb2.EnvSpec, _Mapping]] = ..., selected_workflow_edition: _Optional[str] = ..., execution_horizon: _Optional[int] = ..., delivers_history: _Optional[bool] = ..., num_envs: _Optional[int] = ..., autoreset_mode: _Optional[_Union[_rlmesh_core_v1_pb2.AutoresetMode, str]] = ..., render_mode: _Optional[str] = ...) -> None: ...

class HistoryRequirement(_message.Message):
    __slots__ = ("keys", "prunable")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRUNABLE_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    prunable: bool
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., prunable: _Optional[bool] = ...) -> None: ...

class ResolveAdapterResponse(_message.Message):
    __slots__ = ("native_chunk", "history")
    NATIVE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    native_chunk: int
    history: HistoryRequirement
    def __init__(self, native_chunk: _Optional[int] = ..., history: _Optional[_Union[HistoryRequirement, _Mapping]] = ...) -> None: ...

class EpisodeInfo(_message.Message):
    __slots__ = ("episode_id", "seed")
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    seed: int
    def __init__(self, episode_id: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class ObservationHistory(_message.Message):
    __slots__ = ("observation", "episode_info", "step")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    EPISODE_INFO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    observation: _rlmesh_spaces_v1_pb2.SpaceValue
    episode_info: _containers.RepeatedCompositeFieldContainer[EpisodeInfo]
    step: int
    def __init__(self, observation: _Optional[_Union[_rlmesh_spaces_v1_pb2.SpaceValue, _Mapping]] = ..., episode_info: _Optional[_Iterable[_Union[EpisodeInfo, _Mapping]]] = ..., step: _Optional[int] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("context", "observation", "episode_info", "history", "step", "timeout_ms")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    EPISODE_INFO_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    context: AdapterContext
    observation: _rlmesh_spaces_v1_pb2.SpaceValue
    episode_info: _containers.RepeatedCompositeFieldContainer[EpisodeInfo]
    history: _containers.RepeatedCompositeFieldContainer[ObservationHistory]
    step: int
    timeout_ms: int
    def __init__(self, context: _Optional[_Union[AdapterContext, _Mapping]] = ..., observation: _Optional[_Union[_rlmesh_spaces_v1_pb2.SpaceValue, _Mapping]] = ..., episode_info: _Optional[_Iterable[_Union[EpisodeInfo, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[ObservationHistory, _Mapping]]] = ..., step: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("context", "actions")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    context: AdapterContext
    actions: _containers.RepeatedCompositeFieldContainer[_rlmesh_spaces_v1_pb2.SpaceValue]
    def __init__(self, context: _Optional[_Union[AdapterContext, _Mapping]] = ..., actions: _Optional[_Iterable[_Union[_rlmesh_spaces_v1_pb2.SpaceValue, _Mapping]]] = ...) -> None: ...

class GroupedPredictRequest(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[PredictRequest]
    def __init__(self, groups: _Optional[_Iterable[_Union[PredictRequest, _Mapping]]] = ...) -> None: ...

class GroupedPredictResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: PredictResponse
    error: ModelError
    def __init__(self, response: _Optional[_Union[PredictResponse, _Mapping]] = ..., error: _Optional[_Union[ModelError, _Mapping]] = ...) -> None: ...

class GroupedPredictResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GroupedPredictResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GroupedPredictResult, _Mapping]]] = ...) -> None: ...

class ReleaseAdapterRequest(_message.Message):
    __slots__ = ("context", "reason", "timeout_ms")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    context: AdapterContext
    reason: str
    timeout_ms: int
    def __init__(self, context: _Optional[_Union[AdapterContext, _Mapping]] = ..., reason: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ReleaseAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetAdapterRequest(_message.Message):
    __slots__ = ("context", "episode_ids")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EPISODE_IDS_FIELD_NUMBER: _ClassVar[int]
    context: AdapterContext
    episode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, context: _Optional[_Union[AdapterContext, _Mapping]] = ..., episode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ResetAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelError(_message.Message):
    __slots__ = ("code", "message", "is_recoverable", "debug_info", "error_class", "traceback_text", "outcome", "error_id", "code_name")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_RECOVERABLE_FIELD_NUMBER: _ClassVar[int]
    DEBUG_INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_TEXT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_NAME_FIELD_NUMBER: _ClassVar[int]
    code: ModelErrorCode
    message: str
    is_recoverable: bool
    debug_info: str
    error_class: str
    traceback_text: str
    outcome: str
    error_id: str
    code_name: str
    def __init__(self, code: _Optional[_Union[ModelErrorCode, str]] = ..., message: _Optional[str] = ..., is_recoverable: _Optional[bool] = ..., debug_info: _Optional[str] = ..., error_class: _Optional[str] = ..., traceback_text: _Optional[str] = ..., outcome: _Optional[str] = ..., error_id: _Optional[str] = ..., code_name: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("resolve_adapter", "predict", "release_adapter", "close", "grouped_predict", "reset_adapter", "cancel", "probe", "request_id")
    RESOLVE_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    GROUPED_PREDICT_FIELD_NUMBER: _ClassVar[int]
    RESET_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    resolve_adapter: ResolveAdapterRequest
    predict: PredictRequest
    release_adapter: ReleaseAdapterRequest
    close: CloseRequest
    grouped_predict: GroupedPredictRequest
    reset_adapter: ResetAdapterRequest
    cancel: _rlmesh_core_v1_pb2.CancelRequest
    probe: _rlmesh_core_v1_pb2.ProbeRequest
    request_id: str
    def __init__(self, resolve_adapter: _Optional[_Union[ResolveAdapterRequest, _Mapping]] = ..., predict: _Optional[_Union[PredictRequest, _Mapping]] = ..., release_adapter: _Optional[_Union[ReleaseAdapterRequest, _Mapping]] = ..., close: _Optional[_Union[CloseRequest, _Mapping]] = ..., grouped_predict: _Optional[_Union[GroupedPredictRequest, _Mapping]] = ..., reset_adapter: _Optional[_Union[ResetAdapterRequest, _Mapping]] = ..., cancel: _Optional[_Union[_rlmesh_core_v1_pb2.CancelRequest, _Mapping]] = ..., probe: _Optional[_Union[_rlmesh_core_v1_pb2.ProbeRequest, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("resolve_adapter", "predict", "release_adapter", "close", "grouped_predict", "reset_adapter", "error", "probe", "request_id", "endpoint_total_ns", "decode_ns", "user_ns", "encode_ns", "queue_ns", "in_flight", "adapter_ns", "held_episodes", "held_state_bytes")
    RESOLVE_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    GROUPED_PREDICT_FIELD_NUMBER: _ClassVar[int]
    RESET_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    USER_NS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_NS_FIELD_NUMBER: _ClassVar[int]
    HELD_EPISODES_FIELD_NUMBER: _ClassVar[int]
    HELD_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    resolve_adapter: ResolveAdapterResponse
    predict: PredictResponse
    release_adapter: ReleaseAdapterResponse
    close: CloseResponse
    grouped_predict: GroupedPredictResponse
    reset_adapter: ResetAdapterResponse
    error: ModelError
    probe: _rlmesh_core_v1_pb2.ProbeResponse
    request_id: str
    endpoint_total_ns: int
    decode_ns: int
    user_ns: int
    encode_ns: int
    queue_ns: int
    in_flight: int
    adapter_ns: int
    held_episodes: int
    held_state_bytes: int
    def __init__(self, resolve_adapter: _Optional[_Union[ResolveAdapterResponse, _Mapping]] = ..., predict: _Optional[_Union[PredictResponse, _Mapping]] = ..., release_adapter: _Optional[_Union[ReleaseAdapterResponse, _Mapping]] = ..., close: _Optional[_Union[CloseResponse, _Mapping]] = ..., grouped_predict: _Optional[_Union[GroupedPredictResponse, _Mapping]] = ..., reset_adapter: _Optional[_Union[ResetAdapterResponse, _Mapping]] = ..., error: _Optional[_Union[ModelError, _Mapping]] = ..., probe: _Optional[_Union[_rlmesh_core_v1_pb2.ProbeResponse, _Mapping]] = ..., request_id: _Optional[str] = ..., endpoint_total_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., user_ns: _Optional[int] = ..., encode_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., in_flight: _Optional[int] = ..., adapter_ns: _Optional[int] = ..., held_episodes: _Optional[int] = ..., held_state_bytes: _Optional[int] = ...) -> None: ...
