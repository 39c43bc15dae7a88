from farbus.api.v1 import types_pb2 as _types_pb2
from farbus.api.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeMessage(_message.Message):
    __slots__ = ("hello", "inventory_changed", "heartbeat", "outcome", "task_changed", "log_data", "lease_ended", "leaving", "move_progress", "chassis_changed", "lease_overused", "lease_paths")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_CHANGED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LOG_DATA_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MOVE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LEASE_OVERUSED_FIELD_NUMBER: _ClassVar[int]
    LEASE_PATHS_FIELD_NUMBER: _ClassVar[int]
    hello: NodeHello
    inventory_changed: InventoryChanged
    heartbeat: Heartbeat
    outcome: Outcome
    task_changed: TaskChanged
    log_data: LogData
    lease_ended: LeaseEnded
    leaving: Leaving
    move_progress: MoveProgress
    chassis_changed: ChassisChanged
    lease_overused: LeaseOverused
    lease_paths: LeasePaths
    def __init__(self, hello: _Optional[_Union[NodeHello, _Mapping]] = ..., inventory_changed: _Optional[_Union[InventoryChanged, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., task_changed: _Optional[_Union[TaskChanged, _Mapping]] = ..., log_data: _Optional[_Union[LogData, _Mapping]] = ..., lease_ended: _Optional[_Union[LeaseEnded, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., move_progress: _Optional[_Union[MoveProgress, _Mapping]] = ..., chassis_changed: _Optional[_Union[ChassisChanged, _Mapping]] = ..., lease_overused: _Optional[_Union[LeaseOverused, _Mapping]] = ..., lease_paths: _Optional[_Union[LeasePaths, _Mapping]] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("welcome", "refused", "heartbeat_reply", "prepare_devices", "prepare_client", "start_task", "stop_task", "unprepare_client", "unprepare_devices", "log_request", "log_cancel", "detach_device", "attach_device", "serve_chassis", "cancel_move", "make_volume", "resize_volume", "remove_volume", "grow_client", "trust_changed", "log_credit")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    PREPARE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    PREPARE_CLIENT_FIELD_NUMBER: _ClassVar[int]
    START_TASK_FIELD_NUMBER: _ClassVar[int]
    STOP_TASK_FIELD_NUMBER: _ClassVar[int]
    UNPREPARE_CLIENT_FIELD_NUMBER: _ClassVar[int]
    UNPREPARE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOG_CANCEL_FIELD_NUMBER: _ClassVar[int]
    DETACH_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_DEVICE_FIELD_NUMBER: _ClassVar[int]
    SERVE_CHASSIS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_MOVE_FIELD_NUMBER: _ClassVar[int]
    MAKE_VOLUME_FIELD_NUMBER: _ClassVar[int]
    RESIZE_VOLUME_FIELD_NUMBER: _ClassVar[int]
    REMOVE_VOLUME_FIELD_NUMBER: _ClassVar[int]
    GROW_CLIENT_FIELD_NUMBER: _ClassVar[int]
    TRUST_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LOG_CREDIT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Refused
    heartbeat_reply: HeartbeatReply
    prepare_devices: PrepareDevices
    prepare_client: PrepareClient
    start_task: StartTask
    stop_task: StopTask
    unprepare_client: UnprepareClient
    unprepare_devices: UnprepareDevices
    log_request: LogRequest
    log_cancel: LogCancel
    detach_device: DetachDevice
    attach_device: AttachDevice
    serve_chassis: ServeChassis
    cancel_move: CancelMove
    make_volume: MakeVolume
    resize_volume: ResizeVolume
    remove_volume: RemoveVolume
    grow_client: GrowClient
    trust_changed: TrustChanged
    log_credit: LogCredit
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat_reply: _Optional[_Union[HeartbeatReply, _Mapping]] = ..., prepare_devices: _Optional[_Union[PrepareDevices, _Mapping]] = ..., prepare_client: _Optional[_Union[PrepareClient, _Mapping]] = ..., start_task: _Optional[_Union[StartTask, _Mapping]] = ..., stop_task: _Optional[_Union[StopTask, _Mapping]] = ..., unprepare_client: _Optional[_Union[UnprepareClient, _Mapping]] = ..., unprepare_devices: _Optional[_Union[UnprepareDevices, _Mapping]] = ..., log_request: _Optional[_Union[LogRequest, _Mapping]] = ..., log_cancel: _Optional[_Union[LogCancel, _Mapping]] = ..., detach_device: _Optional[_Union[DetachDevice, _Mapping]] = ..., attach_device: _Optional[_Union[AttachDevice, _Mapping]] = ..., serve_chassis: _Optional[_Union[ServeChassis, _Mapping]] = ..., cancel_move: _Optional[_Union[CancelMove, _Mapping]] = ..., make_volume: _Optional[_Union[MakeVolume, _Mapping]] = ..., resize_volume: _Optional[_Union[ResizeVolume, _Mapping]] = ..., remove_volume: _Optional[_Union[RemoveVolume, _Mapping]] = ..., grow_client: _Optional[_Union[GrowClient, _Mapping]] = ..., trust_changed: _Optional[_Union[TrustChanged, _Mapping]] = ..., log_credit: _Optional[_Union[LogCredit, _Mapping]] = ...) -> None: ...

class TrustChanged(_message.Message):
    __slots__ = ("revocations", "authorities")
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    revocations: bytes
    authorities: bytes
    def __init__(self, revocations: _Optional[bytes] = ..., authorities: _Optional[bytes] = ...) -> None: ...

class NodeHello(_message.Message):
    __slots__ = ("protocol", "node", "held", "tasks", "instance", "clients", "lists_clients", "moves", "chassis")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LISTS_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node: _types_pb2.Node
    held: _containers.RepeatedCompositeFieldContainer[HeldLease]
    tasks: _containers.RepeatedCompositeFieldContainer[HeldTask]
    instance: str
    clients: _containers.RepeatedCompositeFieldContainer[HeldClient]
    lists_clients: bool
    moves: _containers.RepeatedCompositeFieldContainer[HeldMove]
    chassis: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., node: _Optional[_Union[_types_pb2.Node, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[HeldTask, _Mapping]]] = ..., instance: _Optional[str] = ..., clients: _Optional[_Iterable[_Union[HeldClient, _Mapping]]] = ..., lists_clients: _Optional[bool] = ..., moves: _Optional[_Iterable[_Union[HeldMove, _Mapping]]] = ..., chassis: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldMove(_message.Message):
    __slots__ = ("move_id", "device", "attach", "trouble")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    move_id: str
    device: str
    attach: bool
    trouble: str
    def __init__(self, move_id: _Optional[str] = ..., device: _Optional[str] = ..., attach: _Optional[bool] = ..., trouble: _Optional[str] = ...) -> None: ...

class HeldLease(_message.Message):
    __slots__ = ("lease_id", "device_side", "endpoint", "devices", "trouble")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SIDE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    device_side: bool
    endpoint: str
    devices: _containers.RepeatedCompositeFieldContainer[_types_pb2.LeasedDevice]
    trouble: str
    def __init__(self, lease_id: _Optional[str] = ..., device_side: _Optional[bool] = ..., endpoint: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[_types_pb2.LeasedDevice, _Mapping]]] = ..., trouble: _Optional[str] = ...) -> None: ...

class HeldClient(_message.Message):
    __slots__ = ("job_id", "task")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    task: str
    def __init__(self, job_id: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class HeldTask(_message.Message):
    __slots__ = ("job_id", "status")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status: _types_pb2.TaskStatus
    def __init__(self, job_id: _Optional[str] = ..., status: _Optional[_Union[_types_pb2.TaskStatus, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "lease_ttl_s", "heartbeat_s", "scheduler_version")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_VERSION_FIELD_NUMBER: _ClassVar[int]
    term: int
    lease_ttl_s: float
    heartbeat_s: float
    scheduler_version: str
    def __init__(self, term: _Optional[int] = ..., lease_ttl_s: _Optional[float] = ..., heartbeat_s: _Optional[float] = ..., scheduler_version: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class InventoryChanged(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: _types_pb2.Node
    def __init__(self, node: _Optional[_Union[_types_pb2.Node, _Mapping]] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("cpu_busy_fraction", "memory_used_bytes", "devices", "network_receive_bytes_per_s", "network_send_bytes_per_s", "update")
    CPU_BUSY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_RECEIVE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SEND_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    cpu_busy_fraction: float
    memory_used_bytes: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceTelemetry]
    network_receive_bytes_per_s: float
    network_send_bytes_per_s: float
    update: TelemetryUpdate
    def __init__(self, cpu_busy_fraction: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceTelemetry, _Mapping]]] = ..., network_receive_bytes_per_s: _Optional[float] = ..., network_send_bytes_per_s: _Optional[float] = ..., update: _Optional[_Union[TelemetryUpdate, _Mapping]] = ...) -> None: ...

class TelemetryUpdate(_message.Message):
    __slots__ = ("number", "started", "ended", "series", "values", "collectors")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COLLECTORS_FIELD_NUMBER: _ClassVar[int]
    number: int
    started: _containers.RepeatedCompositeFieldContainer[SeriesStart]
    ended: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    collectors: CollectorStates
    def __init__(self, number: _Optional[int] = ..., started: _Optional[_Iterable[_Union[SeriesStart, _Mapping]]] = ..., ended: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[int]] = ..., collectors: _Optional[_Union[CollectorStates, _Mapping]] = ...) -> None: ...

class SeriesStart(_message.Message):
    __slots__ = ("series", "metric", "labels", "step")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERIES_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    series: int
    metric: str
    labels: _containers.ScalarMap[str, str]
    step: float
    def __init__(self, series: _Optional[int] = ..., metric: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., step: _Optional[float] = ...) -> None: ...

class CollectorStates(_message.Message):
    __slots__ = ("stale",)
    STALE_FIELD_NUMBER: _ClassVar[int]
    stale: _containers.RepeatedCompositeFieldContainer[_types_pb2.CollectorState]
    def __init__(self, stale: _Optional[_Iterable[_Union[_types_pb2.CollectorState, _Mapping]]] = ...) -> None: ...

class DeviceTelemetry(_message.Message):
    __slots__ = ("device", "busy_fraction", "memory_used_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BUSY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: str
    busy_fraction: float
    memory_used_bytes: int
    def __init__(self, device: _Optional[str] = ..., busy_fraction: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("lease_ids", "telemetry")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    telemetry: Telemetry
    def __init__(self, lease_ids: _Optional[_Iterable[str]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("renewed", "void", "telemetry_lost")
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_LOST_FIELD_NUMBER: _ClassVar[int]
    renewed: _containers.RepeatedScalarFieldContainer[str]
    void: _containers.RepeatedScalarFieldContainer[str]
    telemetry_lost: bool
    def __init__(self, renewed: _Optional[_Iterable[str]] = ..., void: _Optional[_Iterable[str]] = ..., telemetry_lost: _Optional[bool] = ...) -> None: ...

class PrepareDevices(_message.Message):
    __slots__ = ("command_id", "lease", "peer_endpoint")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    lease: _types_pb2.Lease
    peer_endpoint: str
    def __init__(self, command_id: _Optional[str] = ..., lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., peer_endpoint: _Optional[str] = ...) -> None: ...

class PrepareClient(_message.Message):
    __slots__ = ("command_id", "job_id", "task", "user", "leases", "interactive", "attachment")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    job_id: str
    task: str
    user: str
    leases: _containers.RepeatedCompositeFieldContainer[PreparedLease]
    interactive: bool
    attachment: bool
    def __init__(self, command_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ..., user: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[PreparedLease, _Mapping]]] = ..., interactive: _Optional[bool] = ..., attachment: _Optional[bool] = ...) -> None: ...

class PreparedLease(_message.Message):
    __slots__ = ("lease", "endpoint", "peer_endpoint")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    endpoint: str
    peer_endpoint: str
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., endpoint: _Optional[str] = ..., peer_endpoint: _Optional[str] = ...) -> None: ...

class StartTask(_message.Message):
    __slots__ = ("command_id", "job_id", "task", "user", "command", "cwd", "environment", "requests", "time_limit_s", "stage_in", "stage_out")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    STAGE_IN_FIELD_NUMBER: _ClassVar[int]
    STAGE_OUT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    job_id: str
    task: str
    user: str
    command: _containers.RepeatedScalarFieldContainer[str]
    cwd: str
    environment: _containers.ScalarMap[str, str]
    requests: _types_pb2.Requests
    time_limit_s: float
    stage_in: str
    stage_out: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, command_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ..., user: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., cwd: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., requests: _Optional[_Union[_types_pb2.Requests, _Mapping]] = ..., time_limit_s: _Optional[float] = ..., stage_in: _Optional[str] = ..., stage_out: _Optional[_Iterable[str]] = ...) -> None: ...

class StopTask(_message.Message):
    __slots__ = ("command_id", "job_id", "task", "grace_s")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    job_id: str
    task: str
    grace_s: float
    def __init__(self, command_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class UnprepareClient(_message.Message):
    __slots__ = ("command_id", "job_id", "task")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    job_id: str
    task: str
    def __init__(self, command_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class UnprepareDevices(_message.Message):
    __slots__ = ("command_id", "lease_id")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    lease_id: str
    def __init__(self, command_id: _Optional[str] = ..., lease_id: _Optional[str] = ...) -> None: ...

class DetachDevice(_message.Message):
    __slots__ = ("command_id", "move_id", "device", "chassis", "evict", "drain_s", "dry_run")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    move_id: str
    device: str
    chassis: str
    evict: bool
    drain_s: float
    dry_run: bool
    def __init__(self, command_id: _Optional[str] = ..., move_id: _Optional[str] = ..., device: _Optional[str] = ..., chassis: _Optional[str] = ..., evict: _Optional[bool] = ..., drain_s: _Optional[float] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class AttachDevice(_message.Message):
    __slots__ = ("command_id", "move_id", "device", "chassis", "port", "functions", "dry_run")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    move_id: str
    device: str
    chassis: str
    port: str
    functions: bytes
    dry_run: bool
    def __init__(self, command_id: _Optional[str] = ..., move_id: _Optional[str] = ..., device: _Optional[str] = ..., chassis: _Optional[str] = ..., port: _Optional[str] = ..., functions: _Optional[bytes] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CancelMove(_message.Message):
    __slots__ = ("move_id", "by")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    move_id: str
    by: str
    def __init__(self, move_id: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class MakeVolume(_message.Message):
    __slots__ = ("command_id", "part")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    part: _types_pb2.VolumePart
    def __init__(self, command_id: _Optional[str] = ..., part: _Optional[_Union[_types_pb2.VolumePart, _Mapping]] = ...) -> None: ...

class ResizeVolume(_message.Message):
    __slots__ = ("command_id", "part")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    part: _types_pb2.VolumePart
    def __init__(self, command_id: _Optional[str] = ..., part: _Optional[_Union[_types_pb2.VolumePart, _Mapping]] = ...) -> None: ...

class RemoveVolume(_message.Message):
    __slots__ = ("command_id", "part")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    part: _types_pb2.VolumePart
    def __init__(self, command_id: _Optional[str] = ..., part: _Optional[_Union[_types_pb2.VolumePart, _Mapping]] = ...) -> None: ...

class GrowClient(_message.Message):
    __slots__ = ("command_id", "job_id", "task", "volume", "size_bytes")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    job_id: str
    task: str
    volume: str
    size_bytes: int
    def __init__(self, command_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ..., volume: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ServeChassis(_message.Message):
    __slots__ = ("chassis", "term", "node", "address")
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    chassis: str
    term: int
    node: str
    address: str
    def __init__(self, chassis: _Optional[str] = ..., term: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class MoveProgress(_message.Message):
    __slots__ = ("move_id", "device", "step", "steps", "says", "expected_s")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAYS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    move_id: str
    device: str
    step: int
    steps: int
    says: str
    expected_s: float
    def __init__(self, move_id: _Optional[str] = ..., device: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., says: _Optional[str] = ..., expected_s: _Optional[float] = ...) -> None: ...

class ChassisChanged(_message.Message):
    __slots__ = ("term", "view", "history", "parallel", "trouble")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    term: int
    view: bytes
    history: bytes
    parallel: int
    trouble: str
    def __init__(self, term: _Optional[int] = ..., view: _Optional[bytes] = ..., history: _Optional[bytes] = ..., parallel: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("command_id", "ok", "error", "endpoint", "environment", "move")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    ok: bool
    error: str
    endpoint: str
    environment: _containers.ScalarMap[str, str]
    move: bytes
    def __init__(self, command_id: _Optional[str] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ..., endpoint: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., move: _Optional[bytes] = ...) -> None: ...

class TaskChanged(_message.Message):
    __slots__ = ("job_id", "status")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status: _types_pb2.TaskStatus
    def __init__(self, job_id: _Optional[str] = ..., status: _Optional[_Union[_types_pb2.TaskStatus, _Mapping]] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("lease_id", "device_side", "reason", "job_id", "task")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SIDE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    device_side: bool
    reason: str
    job_id: str
    task: str
    def __init__(self, lease_id: _Optional[str] = ..., device_side: _Optional[bool] = ..., reason: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class LeaseOverused(_message.Message):
    __slots__ = ("lease_id", "bytes_per_s", "granted_bytes_per_s")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    GRANTED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    bytes_per_s: int
    granted_bytes_per_s: int
    def __init__(self, lease_id: _Optional[str] = ..., bytes_per_s: _Optional[int] = ..., granted_bytes_per_s: _Optional[int] = ...) -> None: ...

class LeasePaths(_message.Message):
    __slots__ = ("lease_id", "trouble")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    trouble: str
    def __init__(self, lease_id: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("request_id", "job_id", "task", "follow", "credit_bytes", "position", "user", "tasks")
    class TasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    job_id: str
    task: str
    follow: bool
    credit_bytes: int
    position: int
    user: str
    tasks: _containers.ScalarMap[str, int]
    def __init__(self, request_id: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[str] = ..., follow: _Optional[bool] = ..., credit_bytes: _Optional[int] = ..., position: _Optional[int] = ..., user: _Optional[str] = ..., tasks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LogCredit(_message.Message):
    __slots__ = ("request_id", "bytes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    bytes: int
    def __init__(self, request_id: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class LogCancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class LogData(_message.Message):
    __slots__ = ("request_id", "chunk", "end", "error", "missing")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    chunk: _cluster_pb2.LogChunk
    end: bool
    error: str
    missing: bool
    def __init__(self, request_id: _Optional[str] = ..., chunk: _Optional[_Union[_cluster_pb2.LogChunk, _Mapping]] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ..., missing: _Optional[bool] = ...) -> None: ...
