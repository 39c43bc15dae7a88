from farbus.api.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
