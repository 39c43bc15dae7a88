from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resources(_message.Message):
    __slots__ = ("cpu_milli", "memory_bytes", "network_mbit_s")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MBIT_S_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_bytes: int
    network_mbit_s: int
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., network_mbit_s: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("id", "kind", "model", "memory_bytes", "software", "pci_address", "numa_node", "compute_capability", "attributes", "pool", "bandwidth_bytes_per_s", "resources", "services", "share_milli")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    SHARE_MILLI_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    model: str
    memory_bytes: int
    software: bool
    pci_address: str
    numa_node: int
    compute_capability: str
    attributes: _containers.ScalarMap[str, str]
    pool: str
    bandwidth_bytes_per_s: int
    resources: _containers.ScalarMap[str, int]
    services: _containers.RepeatedScalarFieldContainer[str]
    share_milli: int
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., software: _Optional[bool] = ..., pci_address: _Optional[str] = ..., numa_node: _Optional[int] = ..., compute_capability: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., pool: _Optional[str] = ..., bandwidth_bytes_per_s: _Optional[int] = ..., resources: _Optional[_Mapping[str, int]] = ..., services: _Optional[_Iterable[str]] = ..., share_milli: _Optional[int] = ...) -> None: ...

class PoolReach(_message.Message):
    __slots__ = ("pool", "attach_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    attach_s: float
    def __init__(self, pool: _Optional[str] = ..., attach_s: _Optional[float] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("device", "node", "state", "epoch", "lease", "job", "used_by", "cordon", "trouble", "chassis", "move", "kept_for")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    CORDON_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    CHASSIS_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FOR_FIELD_NUMBER: _ClassVar[int]
    device: Device
    node: str
    state: str
    epoch: int
    lease: str
    job: str
    used_by: str
    cordon: str
    trouble: str
    chassis: str
    move: str
    kept_for: str
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ..., node: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., lease: _Optional[str] = ..., job: _Optional[str] = ..., used_by: _Optional[str] = ..., cordon: _Optional[str] = ..., trouble: _Optional[str] = ..., chassis: _Optional[str] = ..., move: _Optional[str] = ..., kept_for: _Optional[str] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("name", "speed_mbit_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEED_MBIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    speed_mbit_s: int
    def __init__(self, name: _Optional[str] = ..., speed_mbit_s: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "address", "boot_id", "agent_version", "capacity", "labels", "devices", "links", "peer_endpoint", "trouble", "pools", "storage_attach_s", "remoting_tls")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PEER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ATTACH_S_FIELD_NUMBER: _ClassVar[int]
    REMOTING_TLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    boot_id: str
    agent_version: str
    capacity: Resources
    labels: _containers.ScalarMap[str, str]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    peer_endpoint: str
    trouble: str
    pools: _containers.RepeatedCompositeFieldContainer[PoolReach]
    storage_attach_s: float
    remoting_tls: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_version: _Optional[str] = ..., capacity: _Optional[_Union[Resources, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., peer_endpoint: _Optional[str] = ..., trouble: _Optional[str] = ..., pools: _Optional[_Iterable[_Union[PoolReach, _Mapping]]] = ..., storage_attach_s: _Optional[float] = ..., remoting_tls: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "state", "free", "seen_s", "cordon")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    SEEN_S_FIELD_NUMBER: _ClassVar[int]
    CORDON_FIELD_NUMBER: _ClassVar[int]
    node: Node
    state: str
    free: Resources
    seen_s: float
    cordon: str
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., state: _Optional[str] = ..., free: _Optional[_Union[Resources, _Mapping]] = ..., seen_s: _Optional[float] = ..., cordon: _Optional[str] = ...) -> None: ...

class Requests(_message.Message):
    __slots__ = ("cpu_milli", "memory_bytes", "gpus", "gpu_memory_bytes", "gpu_model", "gpu_share_milli", "network_mbit_s", "remote_network_mbit_s", "gpu_span")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPU_SHARE_MILLI_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MBIT_S_FIELD_NUMBER: _ClassVar[int]
    REMOTE_NETWORK_MBIT_S_FIELD_NUMBER: _ClassVar[int]
    GPU_SPAN_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_bytes: int
    gpus: int
    gpu_memory_bytes: int
    gpu_model: str
    gpu_share_milli: int
    network_mbit_s: int
    remote_network_mbit_s: int
    gpu_span: bool
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpus: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ..., gpu_model: _Optional[str] = ..., gpu_share_milli: _Optional[int] = ..., network_mbit_s: _Optional[int] = ..., remote_network_mbit_s: _Optional[int] = ..., gpu_span: _Optional[bool] = ...) -> None: ...

class TaskGroup(_message.Message):
    __slots__ = ("name", "command", "count", "requests", "node", "labels", "routes", "min_count", "storage", "flavour", "service")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    FLAVOUR_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: _containers.RepeatedScalarFieldContainer[str]
    count: int
    requests: Requests
    node: str
    labels: _containers.ScalarMap[str, str]
    routes: _containers.RepeatedScalarFieldContainer[str]
    min_count: int
    storage: _containers.RepeatedCompositeFieldContainer[StorageRequest]
    flavour: str
    service: ServiceRequest
    def __init__(self, name: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., requests: _Optional[_Union[Requests, _Mapping]] = ..., node: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., routes: _Optional[_Iterable[str]] = ..., min_count: _Optional[int] = ..., storage: _Optional[_Iterable[_Union[StorageRequest, _Mapping]]] = ..., flavour: _Optional[str] = ..., service: _Optional[_Union[ServiceRequest, _Mapping]] = ...) -> None: ...

class ServiceRequest(_message.Message):
    __slots__ = ("name", "own", "shared")
    class OwnEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SharedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    own: _containers.ScalarMap[str, int]
    shared: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., own: _Optional[_Mapping[str, int]] = ..., shared: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Composite(_message.Message):
    __slots__ = ("name", "template", "size", "command", "implementations", "own", "servers")
    class OwnEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATIONS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    template: str
    size: int
    command: _containers.RepeatedScalarFieldContainer[str]
    implementations: _containers.RepeatedScalarFieldContainer[str]
    own: _containers.ScalarMap[str, int]
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., template: _Optional[str] = ..., size: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., implementations: _Optional[_Iterable[str]] = ..., own: _Optional[_Mapping[str, int]] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...

class StorageRequest(_message.Message):
    __slots__ = ("name", "size_bytes", "bandwidth_bytes_per_s", "devices", "profile", "routes", "volume", "use", "file_system", "path", "read_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    FILE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    bandwidth_bytes_per_s: int
    devices: int
    profile: str
    routes: _containers.RepeatedScalarFieldContainer[str]
    volume: str
    use: str
    file_system: str
    path: str
    read_only: bool
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., bandwidth_bytes_per_s: _Optional[int] = ..., devices: _Optional[int] = ..., profile: _Optional[str] = ..., routes: _Optional[_Iterable[str]] = ..., volume: _Optional[str] = ..., use: _Optional[str] = ..., file_system: _Optional[str] = ..., path: _Optional[str] = ..., read_only: _Optional[bool] = ...) -> None: ...

class GroupVariant(_message.Message):
    __slots__ = ("name", "requests", "labels", "routes", "storage")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: Requests
    labels: _containers.ScalarMap[str, str]
    routes: _containers.RepeatedScalarFieldContainer[str]
    storage: _containers.RepeatedCompositeFieldContainer[StorageRequest]
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[_Union[Requests, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., routes: _Optional[_Iterable[str]] = ..., storage: _Optional[_Iterable[_Union[StorageRequest, _Mapping]]] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("name", "cost", "groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cost: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupVariant]
    def __init__(self, name: _Optional[str] = ..., cost: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupVariant, _Mapping]]] = ...) -> None: ...

class Goal(_message.Message):
    __slots__ = ("slo_s", "importance", "deadline_s", "deadline_at")
    SLO_S_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    slo_s: float
    importance: float
    deadline_s: float
    deadline_at: float
    def __init__(self, slo_s: _Optional[float] = ..., importance: _Optional[float] = ..., deadline_s: _Optional[float] = ..., deadline_at: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "name", "user", "groups", "cwd", "environment", "priority", "time_limit_s", "interactive", "submitted_at", "stage_in", "stage_out", "unreachable_limit_s", "moveable", "alternatives", "goal", "application", "composites", "beside", "attachment")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_IN_FIELD_NUMBER: _ClassVar[int]
    STAGE_OUT_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    MOVEABLE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    COMPOSITES_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    user: str
    groups: _containers.RepeatedCompositeFieldContainer[TaskGroup]
    cwd: str
    environment: _containers.ScalarMap[str, str]
    priority: int
    time_limit_s: float
    interactive: bool
    submitted_at: float
    stage_in: str
    stage_out: _containers.RepeatedScalarFieldContainer[str]
    unreachable_limit_s: float
    moveable: bool
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    goal: Goal
    application: str
    composites: _containers.RepeatedCompositeFieldContainer[Composite]
    beside: str
    attachment: bool
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[TaskGroup, _Mapping]]] = ..., cwd: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., time_limit_s: _Optional[float] = ..., interactive: _Optional[bool] = ..., submitted_at: _Optional[float] = ..., stage_in: _Optional[str] = ..., stage_out: _Optional[_Iterable[str]] = ..., unreachable_limit_s: _Optional[float] = ..., moveable: _Optional[bool] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., application: _Optional[str] = ..., composites: _Optional[_Iterable[_Union[Composite, _Mapping]]] = ..., beside: _Optional[str] = ..., attachment: _Optional[bool] = ...) -> None: ...

class DevicePlacement(_message.Message):
    __slots__ = ("device", "node", "route", "storage", "size_bytes", "bandwidth_bytes_per_s")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    device: str
    node: str
    route: str
    storage: str
    size_bytes: int
    bandwidth_bytes_per_s: int
    def __init__(self, device: _Optional[str] = ..., node: _Optional[str] = ..., route: _Optional[str] = ..., storage: _Optional[str] = ..., size_bytes: _Optional[int] = ..., bandwidth_bytes_per_s: _Optional[int] = ...) -> None: ...

class TaskPlacement(_message.Message):
    __slots__ = ("task", "node", "devices", "cost", "why")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    task: str
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[DevicePlacement]
    cost: int
    why: str
    def __init__(self, task: _Optional[str] = ..., node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DevicePlacement, _Mapping]]] = ..., cost: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "state", "node", "exit_code", "reason", "unstarted", "exit_unknown")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNSTARTED_FIELD_NUMBER: _ClassVar[int]
    EXIT_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    task: str
    state: str
    node: str
    exit_code: int
    reason: str
    unstarted: bool
    exit_unknown: bool
    def __init__(self, task: _Optional[str] = ..., state: _Optional[str] = ..., node: _Optional[str] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., unstarted: _Optional[bool] = ..., exit_unknown: _Optional[bool] = ...) -> None: ...

class Miss(_message.Message):
    __slots__ = ("phase", "resource", "message", "short_by", "permanent", "nodes", "nodes_short", "closest", "closest_short_by")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHORT_BY_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_SHORT_FIELD_NUMBER: _ClassVar[int]
    CLOSEST_FIELD_NUMBER: _ClassVar[int]
    CLOSEST_SHORT_BY_FIELD_NUMBER: _ClassVar[int]
    phase: str
    resource: str
    message: str
    short_by: int
    permanent: bool
    nodes: int
    nodes_short: int
    closest: str
    closest_short_by: int
    def __init__(self, phase: _Optional[str] = ..., resource: _Optional[str] = ..., message: _Optional[str] = ..., short_by: _Optional[int] = ..., permanent: _Optional[bool] = ..., nodes: _Optional[int] = ..., nodes_short: _Optional[int] = ..., closest: _Optional[str] = ..., closest_short_by: _Optional[int] = ...) -> None: ...

class FlavourCheck(_message.Message):
    __slots__ = ("alternative", "cpu_milli", "memory_bytes", "gpus", "placements", "misses", "network_mbit_s")
    ALTERNATIVE_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MBIT_S_FIELD_NUMBER: _ClassVar[int]
    alternative: str
    cpu_milli: int
    memory_bytes: int
    gpus: int
    placements: _containers.RepeatedCompositeFieldContainer[TaskPlacement]
    misses: _containers.RepeatedCompositeFieldContainer[Miss]
    network_mbit_s: int
    def __init__(self, alternative: _Optional[str] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpus: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[TaskPlacement, _Mapping]]] = ..., misses: _Optional[_Iterable[_Union[Miss, _Mapping]]] = ..., network_mbit_s: _Optional[int] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "state", "reason", "placements", "tasks", "misses", "rounds_waited", "started_at", "ended_at", "story", "alternative", "tasks_waiting", "flavours")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_WAITED_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVE_FIELD_NUMBER: _ClassVar[int]
    TASKS_WAITING_FIELD_NUMBER: _ClassVar[int]
    FLAVOURS_FIELD_NUMBER: _ClassVar[int]
    job: Job
    state: str
    reason: str
    placements: _containers.RepeatedCompositeFieldContainer[TaskPlacement]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    misses: _containers.RepeatedCompositeFieldContainer[Miss]
    rounds_waited: int
    started_at: float
    ended_at: float
    story: _containers.RepeatedScalarFieldContainer[str]
    alternative: str
    tasks_waiting: int
    flavours: _containers.RepeatedCompositeFieldContainer[FlavourCheck]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., placements: _Optional[_Iterable[_Union[TaskPlacement, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., misses: _Optional[_Iterable[_Union[Miss, _Mapping]]] = ..., rounds_waited: _Optional[int] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., story: _Optional[_Iterable[str]] = ..., alternative: _Optional[str] = ..., tasks_waiting: _Optional[int] = ..., flavours: _Optional[_Iterable[_Union[FlavourCheck, _Mapping]]] = ...) -> None: ...

class LeasedDevice(_message.Message):
    __slots__ = ("device", "epoch")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    device: str
    epoch: int
    def __init__(self, device: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "job", "task", "user", "client_node", "device_node", "route", "devices", "term", "secret", "storage")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NODE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    job: str
    task: str
    user: str
    client_node: str
    device_node: str
    route: str
    devices: _containers.RepeatedCompositeFieldContainer[LeasedDevice]
    term: int
    secret: str
    storage: StorageGrant
    def __init__(self, id: _Optional[str] = ..., job: _Optional[str] = ..., task: _Optional[str] = ..., user: _Optional[str] = ..., client_node: _Optional[str] = ..., device_node: _Optional[str] = ..., route: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[LeasedDevice, _Mapping]]] = ..., term: _Optional[int] = ..., secret: _Optional[str] = ..., storage: _Optional[_Union[StorageGrant, _Mapping]] = ...) -> None: ...

class StorageGrant(_message.Message):
    __slots__ = ("name", "volume", "size_bytes", "bandwidth_bytes_per_s", "part", "parts", "use", "file_system", "path", "read_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    FILE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    volume: str
    size_bytes: int
    bandwidth_bytes_per_s: int
    part: int
    parts: int
    use: str
    file_system: str
    path: str
    read_only: bool
    def __init__(self, name: _Optional[str] = ..., volume: _Optional[str] = ..., size_bytes: _Optional[int] = ..., bandwidth_bytes_per_s: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., use: _Optional[str] = ..., file_system: _Optional[str] = ..., path: _Optional[str] = ..., read_only: _Optional[bool] = ...) -> None: ...

class VolumePart(_message.Message):
    __slots__ = ("volume", "part", "parts", "size_bytes", "drives")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRIVES_FIELD_NUMBER: _ClassVar[int]
    volume: str
    part: int
    parts: int
    size_bytes: int
    drives: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, volume: _Optional[str] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., size_bytes: _Optional[int] = ..., drives: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseStatus(_message.Message):
    __slots__ = ("lease", "state", "expires_in_s", "endpoint", "trouble")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    state: str
    expires_in_s: float
    endpoint: str
    trouble: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., state: _Optional[str] = ..., expires_in_s: _Optional[float] = ..., endpoint: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class CollectorState(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
