from farbus.api.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChassisRequest(_message.Message):
    __slots__ = ("chassis", "term", "step", "device", "port")
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    chassis: str
    term: int
    step: str
    device: str
    port: str
    def __init__(self, chassis: _Optional[str] = ..., term: _Optional[int] = ..., step: _Optional[str] = ..., device: _Optional[str] = ..., port: _Optional[str] = ...) -> None: ...

class ChassisReply(_message.Message):
    __slots__ = ("value", "history")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    history: bytes
    def __init__(self, value: _Optional[bytes] = ..., history: _Optional[bytes] = ...) -> None: ...

class PeerRequest(_message.Message):
    __slots__ = ("leases", "released", "peer_endpoint")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[PeerLease]
    released: _containers.RepeatedCompositeFieldContainer[PeerLease]
    peer_endpoint: str
    def __init__(self, leases: _Optional[_Iterable[_Union[PeerLease, _Mapping]]] = ..., released: _Optional[_Iterable[_Union[PeerLease, _Mapping]]] = ..., peer_endpoint: _Optional[str] = ...) -> None: ...

class PeerLease(_message.Message):
    __slots__ = ("lease_id", "device_side", "devices")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SIDE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    device_side: bool
    devices: _containers.RepeatedCompositeFieldContainer[_types_pb2.LeasedDevice]
    def __init__(self, lease_id: _Optional[str] = ..., device_side: _Optional[bool] = ..., devices: _Optional[_Iterable[_Union[_types_pb2.LeasedDevice, _Mapping]]] = ...) -> None: ...

class PeerReply(_message.Message):
    __slots__ = ("renewed", "void")
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    renewed: _containers.RepeatedScalarFieldContainer[str]
    void: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, renewed: _Optional[_Iterable[str]] = ..., void: _Optional[_Iterable[str]] = ...) -> None: ...
