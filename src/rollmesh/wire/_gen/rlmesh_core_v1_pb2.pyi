from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as _rlmesh_spaces_v1_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AutoresetMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTORESET_MODE_UNSPECIFIED: _ClassVar[AutoresetMode]
    AUTORESET_MODE_NEXT_STEP: _ClassVar[AutoresetMode]
    AUTORESET_MODE_SAME_STEP: _ClassVar[AutoresetMode]
    AUTORESET_MODE_DISABLED: _ClassVar[AutoresetMode]
AUTORESET_MODE_UNSPECIFIED: AutoresetMode
AUTORESET_MODE_NEXT_STEP: AutoresetMode
AUTORESET_MODE_SAME_STEP: AutoresetMode
AUTORESET_MODE_DISABLED: AutoresetMode

class PeerInfo(_message.Message):
    __slots__ = ("component", "package_version", "language", "language_version", "os", "os_version", "arch", "framework_versions", "extra")
    class FrameworkVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ExtraEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OS_FIELD_NUMBER: _ClassVar[int]
    OS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    component: str
    package_version: str
    language: str
    language_version: str
    os: str
    os_version: str
    arch: str
    framework_versions: _containers.ScalarMap[str, str]
    extra: _containers.ScalarMap[str, str]
    def __init__(self, component: _Optional[str] = ..., package_version: _Optional[str] = ..., language: _Optional[str] = ..., language_version: _Optional[str] = ..., os: _Optional[str] = ..., os_version: _Optional[str] = ..., arch: _Optional[str] = ..., framework_versions: _Optional[_Mapping[str, str]] = ..., extra: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("protocol_generation", "peer_info", "capabilities", "supported_workflow_editions", "preferred_workflow_edition", "session_id")
    class CapabilitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    PEER_INFO_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_WORKFLOW_EDITIONS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_WORKFLOW_EDITION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    protocol_generation: str
    peer_info: PeerInfo
    capabilities: _containers.ScalarMap[str, str]
    supported_workflow_editions: _containers.RepeatedScalarFieldContainer[str]
    preferred_workflow_edition: str
    session_id: str
    def __init__(self, protocol_generation: _Optional[str] = ..., peer_info: _Optional[_Union[PeerInfo, _Mapping]] = ..., capabilities: _Optional[_Mapping[str, str]] = ..., supported_workflow_editions: _Optional[_Iterable[str]] = ..., preferred_workflow_edition: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("compatible", "peer_info", "capabilities", "supported_workflow_editions", "error_message", "preferred_workflow_edition", "session_id", "position", "is_resumed")
    class CapabilitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    PEER_INFO_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_WORKFLOW_EDITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_WORKFLOW_EDITION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    compatible: bool
    peer_info: PeerInfo
    capabilities: _containers.ScalarMap[str, str]
    supported_workflow_editions: _containers.RepeatedScalarFieldContainer[str]
    error_message: str
    preferred_workflow_edition: str
    session_id: str
    position: int
    is_resumed: bool
    def __init__(self, compatible: _Optional[bool] = ..., peer_info: _Optional[_Union[PeerInfo, _Mapping]] = ..., capabilities: _Optional[_Mapping[str, str]] = ..., supported_workflow_editions: _Optional[_Iterable[str]] = ..., error_message: _Optional[str] = ..., preferred_workflow_edition: _Optional[str] = ..., session_id: _Optional[str] = ..., position: _Optional[int] = ..., is_resumed: _Optional[bool] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ("accepted", "message")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class EnvSpec(_message.Message):
    __slots__ = ("id", "action_space", "observation_space", "metadata", "exact_metadata")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXACT_METADATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    action_space: _rlmesh_spaces_v1_pb2.SpaceSpec
    observation_space: _rlmesh_spaces_v1_pb2.SpaceSpec
    metadata: _rlmesh_spaces_v1_pb2.MetaMap
    exact_metadata: bytes
    def __init__(self, id: _Optional[str] = ..., action_space: _Optional[_Union[_rlmesh_spaces_v1_pb2.SpaceSpec, _Mapping]] = ..., observation_space: _Optional[_Union[_rlmesh_spaces_v1_pb2.SpaceSpec, _Mapping]] = ..., metadata: _Optional[_Union[_rlmesh_spaces_v1_pb2.MetaMap, _Mapping]] = ..., exact_metadata: _Optional[bytes] = ...) -> None: ...

class EnvContract(_message.Message):
    __slots__ = ("spec", "num_envs", "render_mode", "autoreset_mode")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVS_FIELD_NUMBER: _ClassVar[int]
    RENDER_MODE_FIELD_NUMBER: _ClassVar[int]
    AUTORESET_MODE_FIELD_NUMBER: _ClassVar[int]
    spec: EnvSpec
    num_envs: int
    render_mode: str
    autoreset_mode: AutoresetMode
    def __init__(self, spec: _Optional[_Union[EnvSpec, _Mapping]] = ..., num_envs: _Optional[int] = ..., render_mode: _Optional[str] = ..., autoreset_mode: _Optional[_Union[AutoresetMode, str]] = ...) -> None: ...
