from farbus.api.v1 import profile_pb2 as _profile_pb2
from farbus.api.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MoveRequest(_message.Message):
    __slots__ = ("device", "node", "port", "evict", "drain_s", "dry_run")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    device: str
    node: str
    port: str
    evict: bool
    drain_s: float
    dry_run: bool
    def __init__(self, device: _Optional[str] = ..., node: _Optional[str] = ..., port: _Optional[str] = ..., evict: _Optional[bool] = ..., drain_s: _Optional[float] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class MoveStatus(_message.Message):
    __slots__ = ("id", "device", "from_node", "to_node", "chassis", "port", "state", "says", "step", "steps", "expected_s", "took_s", "by", "at", "error", "hint", "plan", "in_the_way", "path")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SAYS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IN_THE_WAY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    id: str
    device: str
    from_node: str
    to_node: str
    chassis: str
    port: str
    state: str
    says: str
    step: int
    steps: int
    expected_s: float
    took_s: float
    by: str
    at: float
    error: str
    hint: str
    plan: _containers.RepeatedScalarFieldContainer[str]
    in_the_way: _containers.RepeatedScalarFieldContainer[str]
    path: str
    def __init__(self, id: _Optional[str] = ..., device: _Optional[str] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ..., chassis: _Optional[str] = ..., port: _Optional[str] = ..., state: _Optional[str] = ..., says: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., expected_s: _Optional[float] = ..., took_s: _Optional[float] = ..., by: _Optional[str] = ..., at: _Optional[float] = ..., error: _Optional[str] = ..., hint: _Optional[str] = ..., plan: _Optional[_Iterable[str]] = ..., in_the_way: _Optional[_Iterable[str]] = ..., path: _Optional[str] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ("all",)
    ALL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    def __init__(self, all: _Optional[bool] = ...) -> None: ...

class ListMovesReply(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[MoveStatus]
    def __init__(self, moves: _Optional[_Iterable[_Union[MoveStatus, _Mapping]]] = ...) -> None: ...

class CancelMoveRequest(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: str
    def __init__(self, move: _Optional[str] = ...) -> None: ...

class VolumeRequest(_message.Message):
    __slots__ = ("name", "size_bytes", "stripe", "bandwidth_bytes_per_s", "node")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    stripe: int
    bandwidth_bytes_per_s: int
    node: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., stripe: _Optional[int] = ..., bandwidth_bytes_per_s: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class ResizeVolumeRequest(_message.Message):
    __slots__ = ("name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class VolumeName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("volume", "node", "use", "path", "file_system", "read_only")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FILE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    volume: str
    node: str
    use: str
    path: str
    file_system: str
    read_only: bool
    def __init__(self, volume: _Optional[str] = ..., node: _Optional[str] = ..., use: _Optional[str] = ..., path: _Optional[str] = ..., file_system: _Optional[str] = ..., read_only: _Optional[bool] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("volume", "user", "remove")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    volume: str
    user: str
    remove: bool
    def __init__(self, volume: _Optional[str] = ..., user: _Optional[str] = ..., remove: _Optional[bool] = ...) -> None: ...

class ListVolumesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVolumesReply(_message.Message):
    __slots__ = ("volumes",)
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeStatus]
    def __init__(self, volumes: _Optional[_Iterable[_Union[VolumeStatus, _Mapping]]] = ...) -> None: ...

class VolumeStatus(_message.Message):
    __slots__ = ("name", "user", "state", "size_bytes", "bandwidth_bytes_per_s", "parts", "nodes", "epoch", "attached_to", "job", "path", "use", "troubles", "at", "says", "error", "hint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_TO_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SAYS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    state: str
    size_bytes: int
    bandwidth_bytes_per_s: int
    parts: _containers.RepeatedCompositeFieldContainer[_types_pb2.VolumePart]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    attached_to: str
    job: str
    path: str
    use: str
    troubles: _containers.RepeatedScalarFieldContainer[str]
    at: float
    says: str
    error: str
    hint: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., size_bytes: _Optional[int] = ..., bandwidth_bytes_per_s: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[_types_pb2.VolumePart, _Mapping]]] = ..., nodes: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., attached_to: _Optional[str] = ..., job: _Optional[str] = ..., path: _Optional[str] = ..., use: _Optional[str] = ..., troubles: _Optional[_Iterable[str]] = ..., at: _Optional[float] = ..., says: _Optional[str] = ..., error: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class ListChassisRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChassisReply(_message.Message):
    __slots__ = ("chassis",)
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    chassis: _containers.RepeatedCompositeFieldContainer[ChassisStatus]
    def __init__(self, chassis: _Optional[_Iterable[_Union[ChassisStatus, _Mapping]]] = ...) -> None: ...

class ChassisStatus(_message.Message):
    __slots__ = ("name", "served_by", "term", "view", "trouble")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVED_BY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    served_by: str
    term: int
    view: bytes
    trouble: str
    def __init__(self, name: _Optional[str] = ..., served_by: _Optional[str] = ..., term: _Optional[int] = ..., view: _Optional[bytes] = ..., trouble: _Optional[str] = ...) -> None: ...

class ReadAuditRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: str
    def __init__(self, since: _Optional[str] = ...) -> None: ...

class AuditRecord(_message.Message):
    __slots__ = ("at", "who", "role", "node", "peer", "method", "target", "outcome", "error", "omitted")
    AT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    at: str
    who: str
    role: str
    node: str
    peer: str
    method: str
    target: str
    outcome: str
    error: str
    omitted: int
    def __init__(self, at: _Optional[str] = ..., who: _Optional[str] = ..., role: _Optional[str] = ..., node: _Optional[str] = ..., peer: _Optional[str] = ..., method: _Optional[str] = ..., target: _Optional[str] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., omitted: _Optional[int] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("job", "check_only")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    job: _types_pb2.Job
    check_only: bool
    def __init__(self, job: _Optional[_Union[_types_pb2.Job, _Mapping]] = ..., check_only: _Optional[bool] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job_id", "would_be")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WOULD_BE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    would_be: _types_pb2.JobStatus
    def __init__(self, job_id: _Optional[str] = ..., would_be: _Optional[_Union[_types_pb2.JobStatus, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("all",)
    ALL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    def __init__(self, all: _Optional[bool] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[_types_pb2.JobStatus, _Mapping]]] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id", "released", "exit_code")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    released: bool
    exit_code: int
    def __init__(self, job_id: _Optional[str] = ..., released: _Optional[bool] = ..., exit_code: _Optional[int] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("job_id", "task", "follow", "position", "tasks")
    class TasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    task: str
    follow: bool
    position: int
    tasks: _containers.ScalarMap[str, int]
    def __init__(self, job_id: _Optional[str] = ..., task: _Optional[str] = ..., follow: _Optional[bool] = ..., position: _Optional[int] = ..., tasks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("data", "stream", "position", "task")
    DATA_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    stream: int
    position: int
    task: str
    def __init__(self, data: _Optional[bytes] = ..., stream: _Optional[int] = ..., position: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[_types_pb2.NodeStatus]
    def __init__(self, nodes: _Optional[_Iterable[_Union[_types_pb2.NodeStatus, _Mapping]]] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDevicesReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_types_pb2.DeviceStatus]
    def __init__(self, devices: _Optional[_Iterable[_Union[_types_pb2.DeviceStatus, _Mapping]]] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("all",)
    ALL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    def __init__(self, all: _Optional[bool] = ...) -> None: ...

class ListLeasesReply(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[_types_pb2.LeaseStatus]
    def __init__(self, leases: _Optional[_Iterable[_Union[_types_pb2.LeaseStatus, _Mapping]]] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("status", "lines", "ahead", "opening")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    status: _types_pb2.JobStatus
    lines: _containers.RepeatedScalarFieldContainer[str]
    ahead: int
    opening: Opening
    def __init__(self, status: _Optional[_Union[_types_pb2.JobStatus, _Mapping]] = ..., lines: _Optional[_Iterable[str]] = ..., ahead: _Optional[int] = ..., opening: _Optional[_Union[Opening, _Mapping]] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("holders", "others", "expected_s", "placements")
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    others: int
    expected_s: float
    placements: _containers.RepeatedCompositeFieldContainer[_types_pb2.TaskPlacement]
    def __init__(self, holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., others: _Optional[int] = ..., expected_s: _Optional[float] = ..., placements: _Optional[_Iterable[_Union[_types_pb2.TaskPlacement, _Mapping]]] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("job", "user", "nodes", "devices", "leases", "ends_in_s", "basis")
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    job: str
    user: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    leases: _containers.RepeatedScalarFieldContainer[str]
    ends_in_s: float
    basis: str
    def __init__(self, job: _Optional[str] = ..., user: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., leases: _Optional[_Iterable[str]] = ..., ends_in_s: _Optional[float] = ..., basis: _Optional[str] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterInfo(_message.Message):
    __slots__ = ("scheduler_version", "term", "lease_ttl_s", "nodes", "jobs_queued", "jobs_running", "node", "agent_version", "scheduler_error")
    SCHEDULER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    JOBS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_ERROR_FIELD_NUMBER: _ClassVar[int]
    scheduler_version: str
    term: int
    lease_ttl_s: float
    nodes: int
    jobs_queued: int
    jobs_running: int
    node: str
    agent_version: str
    scheduler_error: str
    def __init__(self, scheduler_version: _Optional[str] = ..., term: _Optional[int] = ..., lease_ttl_s: _Optional[float] = ..., nodes: _Optional[int] = ..., jobs_queued: _Optional[int] = ..., jobs_running: _Optional[int] = ..., node: _Optional[str] = ..., agent_version: _Optional[str] = ..., scheduler_error: _Optional[str] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("name", "requests", "routes", "wait_limit_s", "job_id", "goal", "application")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: _types_pb2.Requests
    routes: _containers.RepeatedScalarFieldContainer[str]
    wait_limit_s: float
    job_id: str
    goal: _types_pb2.Goal
    application: str
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[_Union[_types_pb2.Requests, _Mapping]] = ..., routes: _Optional[_Iterable[str]] = ..., wait_limit_s: _Optional[float] = ..., job_id: _Optional[str] = ..., goal: _Optional[_Union[_types_pb2.Goal, _Mapping]] = ..., application: _Optional[str] = ...) -> None: ...

class HoldEvent(_message.Message):
    __slots__ = ("waiting", "ready", "lost")
    class Ready(_message.Message):
        __slots__ = ("status", "environment")
        class EnvironmentEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        STATUS_FIELD_NUMBER: _ClassVar[int]
        ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
        status: _types_pb2.JobStatus
        environment: _containers.ScalarMap[str, str]
        def __init__(self, status: _Optional[_Union[_types_pb2.JobStatus, _Mapping]] = ..., environment: _Optional[_Mapping[str, str]] = ...) -> None: ...
    WAITING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    waiting: _types_pb2.JobStatus
    ready: HoldEvent.Ready
    lost: str
    def __init__(self, waiting: _Optional[_Union[_types_pb2.JobStatus, _Mapping]] = ..., ready: _Optional[_Union[HoldEvent.Ready, _Mapping]] = ..., lost: _Optional[str] = ...) -> None: ...

class GetTelemetryRequest(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterTelemetry(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeTelemetry]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeTelemetry, _Mapping]]] = ...) -> None: ...

class NodeTelemetry(_message.Message):
    __slots__ = ("node", "state", "seen_s", "cpu_milli", "cpu_busy_fraction", "memory_bytes", "memory_used_bytes", "cpu_pressure", "memory_pressure", "io_pressure", "links", "gpus", "sessions", "stale")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_S_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    CPU_BUSY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    IO_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    node: str
    state: str
    seen_s: float
    cpu_milli: int
    cpu_busy_fraction: float
    memory_bytes: int
    memory_used_bytes: int
    cpu_pressure: float
    memory_pressure: float
    io_pressure: float
    links: _containers.RepeatedCompositeFieldContainer[LinkTelemetry]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuTelemetry]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionTelemetry]
    stale: _containers.RepeatedCompositeFieldContainer[_types_pb2.CollectorState]
    def __init__(self, node: _Optional[str] = ..., state: _Optional[str] = ..., seen_s: _Optional[float] = ..., cpu_milli: _Optional[int] = ..., cpu_busy_fraction: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., cpu_pressure: _Optional[float] = ..., memory_pressure: _Optional[float] = ..., io_pressure: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkTelemetry, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuTelemetry, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionTelemetry, _Mapping]]] = ..., stale: _Optional[_Iterable[_Union[_types_pb2.CollectorState, _Mapping]]] = ...) -> None: ...

class LinkTelemetry(_message.Message):
    __slots__ = ("name", "speed_bytes_per_s", "receive_bytes_per_s", "send_bytes_per_s", "age_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SEND_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    speed_bytes_per_s: float
    receive_bytes_per_s: float
    send_bytes_per_s: float
    age_s: float
    def __init__(self, name: _Optional[str] = ..., speed_bytes_per_s: _Optional[float] = ..., receive_bytes_per_s: _Optional[float] = ..., send_bytes_per_s: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class GpuTelemetry(_message.Message):
    __slots__ = ("device", "model", "software", "state", "memory_bytes", "busy_fraction", "memory_used_bytes", "power_watts", "temperature_celsius", "sm_clock_hz", "pcie_receive_bytes_per_s", "pcie_send_bytes_per_s", "ecc_uncorrected_errors", "last_xid", "processes", "lease", "job", "user", "client_node")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    PCIE_RECEIVE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PCIE_SEND_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_XID_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NODE_FIELD_NUMBER: _ClassVar[int]
    device: str
    model: str
    software: bool
    state: str
    memory_bytes: int
    busy_fraction: float
    memory_used_bytes: int
    power_watts: float
    temperature_celsius: float
    sm_clock_hz: float
    pcie_receive_bytes_per_s: float
    pcie_send_bytes_per_s: float
    ecc_uncorrected_errors: int
    last_xid: int
    processes: int
    lease: str
    job: str
    user: str
    client_node: str
    def __init__(self, device: _Optional[str] = ..., model: _Optional[str] = ..., software: _Optional[bool] = ..., state: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., busy_fraction: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., power_watts: _Optional[float] = ..., temperature_celsius: _Optional[float] = ..., sm_clock_hz: _Optional[float] = ..., pcie_receive_bytes_per_s: _Optional[float] = ..., pcie_send_bytes_per_s: _Optional[float] = ..., ecc_uncorrected_errors: _Optional[int] = ..., last_xid: _Optional[int] = ..., processes: _Optional[int] = ..., lease: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., client_node: _Optional[str] = ...) -> None: ...

class SessionTelemetry(_message.Message):
    __slots__ = ("lease", "job", "user", "client_node", "client_pid", "program", "calls_per_s", "receive_bytes_per_s", "send_bytes_per_s", "busy_fraction", "memory_bytes", "transport", "server_pid", "waiting_s", "stopped")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NODE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SEND_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SERVER_PID_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    lease: str
    job: str
    user: str
    client_node: str
    client_pid: int
    program: str
    calls_per_s: float
    receive_bytes_per_s: float
    send_bytes_per_s: float
    busy_fraction: float
    memory_bytes: int
    transport: str
    server_pid: int
    waiting_s: float
    stopped: bool
    def __init__(self, lease: _Optional[str] = ..., job: _Optional[str] = ..., user: _Optional[str] = ..., client_node: _Optional[str] = ..., client_pid: _Optional[int] = ..., program: _Optional[str] = ..., calls_per_s: _Optional[float] = ..., receive_bytes_per_s: _Optional[float] = ..., send_bytes_per_s: _Optional[float] = ..., busy_fraction: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., transport: _Optional[str] = ..., server_pid: _Optional[int] = ..., waiting_s: _Optional[float] = ..., stopped: _Optional[bool] = ...) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CordonReply(_message.Message):
    __slots__ = ("name", "kind", "changed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    changed: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., changed: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "evict", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    evict: bool
    reason: str
    def __init__(self, node: _Optional[str] = ..., evict: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainStatus(_message.Message):
    __slots__ = ("node", "jobs", "lost")
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    node: str
    jobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.JobStatus]
    lost: bool
    def __init__(self, node: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[_types_pb2.JobStatus, _Mapping]]] = ..., lost: _Optional[bool] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ("node", "leases", "devices", "jobs")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    node: str
    leases: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., leases: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaStatus]
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaStatus, _Mapping]]] = ...) -> None: ...

class QuotaStatus(_message.Message):
    __slots__ = ("user", "jobs", "jobs_limit", "devices", "devices_limit", "waiting", "volume_bytes", "volume_bytes_limit")
    USER_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    VOLUME_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOLUME_BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    user: str
    jobs: int
    jobs_limit: int
    devices: int
    devices_limit: int
    waiting: int
    volume_bytes: int
    volume_bytes_limit: int
    def __init__(self, user: _Optional[str] = ..., jobs: _Optional[int] = ..., jobs_limit: _Optional[int] = ..., devices: _Optional[int] = ..., devices_limit: _Optional[int] = ..., waiting: _Optional[int] = ..., volume_bytes: _Optional[int] = ..., volume_bytes_limit: _Optional[int] = ...) -> None: ...

class ListProfilesRequest(_message.Message):
    __slots__ = ("application",)
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    application: str
    def __init__(self, application: _Optional[str] = ...) -> None: ...

class ListProfilesReply(_message.Message):
    __slots__ = ("profiles",)
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[_profile_pb2.ApplicationProfile]
    def __init__(self, profiles: _Optional[_Iterable[_Union[_profile_pb2.ApplicationProfile, _Mapping]]] = ...) -> None: ...

class ForgetProfileRequest(_message.Message):
    __slots__ = ("application", "user")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    application: str
    user: str
    def __init__(self, application: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class ForgetProfileReply(_message.Message):
    __slots__ = ("profiles",)
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[_profile_pb2.ApplicationProfile]
    def __init__(self, profiles: _Optional[_Iterable[_Union[_profile_pb2.ApplicationProfile, _Mapping]]] = ...) -> None: ...

class DefragmentRequest(_message.Message):
    __slots__ = ("job_id", "dry_run")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dry_run: bool
    def __init__(self, job_id: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RoomPlan(_message.Message):
    __slots__ = ("job", "placements", "moved", "begun")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    job: str
    placements: _containers.RepeatedCompositeFieldContainer[_types_pb2.TaskPlacement]
    moved: _containers.RepeatedCompositeFieldContainer[MovedJob]
    begun: bool
    def __init__(self, job: _Optional[str] = ..., placements: _Optional[_Iterable[_Union[_types_pb2.TaskPlacement, _Mapping]]] = ..., moved: _Optional[_Iterable[_Union[MovedJob, _Mapping]]] = ..., begun: _Optional[bool] = ...) -> None: ...

class MovedJob(_message.Message):
    __slots__ = ("job", "user", "came_from", "goes_to")
    JOB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    GOES_TO_FIELD_NUMBER: _ClassVar[int]
    job: str
    user: str
    came_from: _containers.RepeatedCompositeFieldContainer[_types_pb2.TaskPlacement]
    goes_to: _containers.RepeatedCompositeFieldContainer[_types_pb2.TaskPlacement]
    def __init__(self, job: _Optional[str] = ..., user: _Optional[str] = ..., came_from: _Optional[_Iterable[_Union[_types_pb2.TaskPlacement, _Mapping]]] = ..., goes_to: _Optional[_Iterable[_Union[_types_pb2.TaskPlacement, _Mapping]]] = ...) -> None: ...
