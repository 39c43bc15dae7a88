"""NVML as data: which of its functions a program gets, and how each is answered.

Names and parameters are those of nvml.h (CUDA 13.0) as the package nvidia-ml-py and the program
nvidia-smi (535) use them; nothing of the header is copied.  One operation carries all that needs the
server: a *query* names a function by a number that never changes, the server calls its NVML's function
of that name, and passes on what it answers.  A server that does not know a number says so by
NVML_ERROR_FUNCTION_NOT_FOUND.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from farbus.remoting.spec.model import Answer, Field, Operation, Scalar

#: Most bytes that a query's answer carries: text, a structure, a list.
TAIL_BYTES: Final = 4096

OPERATIONS: Final = (
    Operation(
        opcode=0x00F0,
        name="management",
        answer=Answer.CALLED,
        request=(Field("query", Scalar.U32), Field("device", Scalar.U32), Field("arguments", Scalar.U32, 3)),
        reply=(Field("status", Scalar.I32), Field("reserved", Scalar.U32), Field("values", Scalar.U64, 4)),
        driver="",
        blocking=True,
        context=False,
        request_tail=TAIL_BYTES,
        reply_tail=TAIL_BYTES,
        doc="Ask NVML of the server's node; the tail is a structure to fill in, or its answer: text, a list.",
    ),
)


class Shape(enum.Enum):
    """The parameters that follow the device in C; ``a b c`` are unsigned int and go to the server.

    native/client_nvml/called.c and native/server/calls/management.c have a macro or a case for each.
    """

    NUMBER = "unsigned *"
    NUMBER_A = "a, unsigned *"
    NUMBER_AB = "a, b, unsigned *"
    NUMBERS_2 = "unsigned *, unsigned *"
    NUMBERS_4 = "unsigned *, unsigned *, unsigned *, unsigned *"
    WIDE = "unsigned long long *"
    WIDE_AB = "a, b, unsigned long long *"
    WIDE_ABC = "a, b, c, unsigned long long *"
    TEXT = "char *, unsigned length"
    TEXT_A = "a, char *, unsigned length"
    BYTES = "a structure of `size` bytes"
    BYTES_A = "a, a structure of `size` bytes"
    VERSIONED = "a structure that begins with its version, whose low 24 bits are its size"
    LIST = "unsigned *count, unsigned *"
    LIST_A = "a, unsigned *count, unsigned *"
    PEER = "another device, unsigned *"
    PEER_A = "another device, a, unsigned *"
    #: Written by hand on both sides.
    OWN = ""


@dataclass(frozen=True, kw_only=True)
class Query:
    """A function that the server is asked for."""

    number: int
    name: str
    shape: Shape
    size: int = 0  # bytes of the structure of BYTES and BYTES_A


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _queries(first: int, shape: Shape, names: str, *, size: int = 0) -> tuple[Query, ...]:
    """Number ``names`` from ``first`` on: append only, never insert."""
    return tuple(
        Query(number=number, name=f"nvmlDeviceGet{name}", shape=shape, size=size)
        for number, name in enumerate(names.split(), first)
    )


QUERIES: Final = (
    Query(number=1, name="nvmlSystemGetDriverVersion", shape=Shape.OWN),
    Query(number=2, name="nvmlSystemGetNVMLVersion", shape=Shape.OWN),
    Query(number=3, name="nvmlDeviceGetPciInfo_v3", shape=Shape.OWN),
    Query(number=4, name="nvmlDeviceGetMemoryInfo_v2", shape=Shape.OWN),
    Query(number=5, name="nvmlDeviceGetComputeRunningProcesses_v3", shape=Shape.OWN),
    Query(number=6, name="nvmlDeviceGetFieldValues", shape=Shape.OWN),
    *_queries(
        20,
        Shape.NUMBER,
        "PowerUsage PowerManagementLimit PowerManagementDefaultLimit EnforcedPowerLimit PowerManagementMode"
        " PowerState PerformanceState FanSpeed NumFans PersistenceMode ComputeMode DisplayMode DisplayActive"
        " CurrPcieLinkGeneration CurrPcieLinkWidth MaxPcieLinkGeneration MaxPcieLinkWidth GpuMaxPcieLinkGeneration"
        " PcieSpeed PcieLinkMaxSpeed PcieReplayCounter RetiredPagesPendingStatus MemoryBusWidth NumGpuCores"
        " Architecture Brand BusType BoardId MultiGpuBoard ModuleId InforomConfigurationChecksum"
        " AdaptiveClockInfoStatus PowerSource DefaultEccMode",
    ),
    *_queries(
        100,
        Shape.NUMBER_A,
        "Temperature TemperatureThreshold ClockInfo MaxClockInfo ApplicationsClock DefaultApplicationsClock"
        " MaxCustomerBoostClock PcieThroughput FanSpeed_v2 TargetFanSpeed FanControlPolicy_v2",
    ),
    *_queries(130, Shape.NUMBER_AB, "Clock"),
    *_queries(
        140,
        Shape.NUMBERS_2,
        "EccMode PowerManagementLimitConstraints EncoderUtilization DecoderUtilization JpgUtilization OfaUtilization"
        " GpuOperationMode AutoBoostedClocksEnabled MinMaxFanSpeed GspFirmwareMode",
    ),
    *_queries(170, Shape.NUMBERS_4, "RemappedRows"),
    *_queries(
        180,
        Shape.WIDE,
        "TotalEnergyConsumption SupportedClocksThrottleReasons CurrentClocksThrottleReasons"
        " SupportedClocksEventReasons CurrentClocksEventReasons",
    ),
    *_queries(200, Shape.WIDE_AB, "TotalEccErrors"),
    *_queries(201, Shape.WIDE_ABC, "MemoryErrorCounter"),
    *_queries(210, Shape.TEXT, "Serial VbiosVersion BoardPartNumber InforomImageVersion"),
    *_queries(230, Shape.TEXT_A, "InforomVersion"),
    *_queries(240, Shape.BYTES, "UtilizationRates", size=8),
    *_queries(241, Shape.BYTES, "BAR1MemoryInfo", size=24),
    *_queries(242, Shape.BYTES, "RowRemapperHistogram", size=20),
    *_queries(250, Shape.BYTES_A, "ViolationStatus", size=16),
    *_queries(
        260,
        Shape.VERSIONED,
        "TemperatureV MarginTemperature FanSpeedRPM CoolerInfo PerformanceModes CurrentClockFreqs ClockOffsets"
        " SramEccErrorStatus Capabilities",
    ),
    *_queries(290, Shape.LIST, "SupportedMemoryClocks"),
    *_queries(291, Shape.LIST_A, "SupportedGraphicsClocks"),
    *_queries(300, Shape.PEER, "TopologyCommonAncestor"),
    *_queries(301, Shape.PEER_A, "P2PStatus"),
)

#: Answered from the snapshot that came with the hello, or with what is always so here: (name, how).
#: What the server is asked for when NVML starts stands here too.
LOCAL: Final[dict[str, str]] = {
    "nvmlInit": "connects, and takes the snapshot",
    "nvmlInit_v2": "connects, and takes the snapshot",
    "nvmlInitWithFlags": "the flags change nothing",
    "nvmlShutdown": "",
    "nvmlErrorString": "",
    "nvmlSystemGetDriverVersion": "the server's",
    "nvmlSystemGetNVMLVersion": "the server's",
    "nvmlSystemGetCudaDriverVersion": "as cuDriverGetVersion",
    "nvmlSystemGetCudaDriverVersion_v2": "as cuDriverGetVersion",
    "nvmlSystemGetProcessName": "of this machine's processes",
    "nvmlSystemGetHicVersion": "none",
    "nvmlUnitGetCount": "none",
    "nvmlGetExcludedDeviceCount": "none",
    "nvmlEventSetCreate": "a set that stays empty",
    "nvmlEventSetFree": "",
    "nvmlEventSetWait": "waits for the time-out",
    "nvmlEventSetWait_v2": "waits for the time-out",
    "nvmlDeviceGetSupportedEventTypes": "none",
    "nvmlInternalGetExportTable": "nvidia-smi asks for it; nothing in it is supported",
    "nvmlDeviceGetCount": "the lease's devices",
    "nvmlDeviceGetCount_v2": "the lease's devices",
    "nvmlDeviceGetHandleByIndex": "in the order of PCI addresses; CUDA_VISIBLE_DEVICES changes nothing",
    "nvmlDeviceGetHandleByIndex_v2": "in the order of PCI addresses; CUDA_VISIBLE_DEVICES changes nothing",
    "nvmlDeviceGetHandleByUUID": "",
    "nvmlDeviceGetHandleByUUIDV": "",
    "nvmlDeviceGetHandleByPciBusId": "",
    "nvmlDeviceGetHandleByPciBusId_v2": "",
    "nvmlDeviceGetHandleBySerial": "compares what the server says of each",
    "nvmlDeviceGetName": "",
    "nvmlDeviceGetUUID": "",
    "nvmlDeviceGetIndex": "",
    "nvmlDeviceGetPciInfo": "the server's address",
    "nvmlDeviceGetPciInfo_v2": "the server's address",
    "nvmlDeviceGetPciInfo_v3": "the server's address",
    "nvmlDeviceGetPciInfoExt": "the server's address; the class is that of a 3D controller",
    "nvmlDeviceGetCudaComputeCapability": "",
    "nvmlDeviceGetGpuFabricInfo": "none: not supported is its state",
    "nvmlDeviceGetGpuFabricInfoV": "none: not supported is its state",
    "nvmlDeviceOnSameBoard": "a device with itself only",
    "nvmlDeviceGetTopologyNearestGpus": "those of the lease",
    "nvmlDeviceIsMigDeviceHandle": "never",
    "nvmlDeviceGetMaxMigDeviceCount": "0",
    "nvmlDeviceGetVirtualizationMode": "none",
    "nvmlDeviceGetGraphicsRunningProcesses": "none",
    "nvmlDeviceGetGraphicsRunningProcesses_v2": "none",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "none",
    "nvmlDeviceGetMPSComputeRunningProcesses": "none",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": "none",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "none",
}

#: Other forms of what queries answer: (name, number of the query).
FORMS: Final[dict[str, int]] = {
    "nvmlDeviceGetMemoryInfo": 4,
    "nvmlDeviceGetMemoryInfo_v2": 4,
    "nvmlDeviceGetComputeRunningProcesses": 5,
    "nvmlDeviceGetComputeRunningProcesses_v2": 5,
    "nvmlDeviceGetComputeRunningProcesses_v3": 5,
    "nvmlDeviceGetFieldValues": 6,
}

#: What changes a device or the node, which belong to their operator: NVML_ERROR_NO_PERMISSION, as for a
#: user who is not root.
REFUSED: Final = _names(
    """
    nvmlDeviceClearAccountingPids nvmlDeviceClearEccErrorCounts nvmlDeviceClearFieldValues
    nvmlDeviceCreateGpuInstance nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceDiscoverGpus
    nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceModifyDrainState
    nvmlDevicePowerSmoothingActivatePresetProfile nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceReadWritePRM_v1 nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetAdaptiveTgpMode_v1
    nvmlDeviceSetApplicationsClocks nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetClockOffsets
    nvmlDeviceSetComputeMode nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2 nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetDriverModel nvmlDeviceSetEccMode nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpcClkVfOffset nvmlDeviceSetGpuLockedClocks nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetHostname_v1 nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLimits_v1
    nvmlDeviceSetMemoryLockedClocks nvmlDeviceSetMigMode nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvLinkUtilizationControl nvmlDeviceSetNvlinkBwMode nvmlDeviceSetNvlinkBwModeAsync_v1
    nvmlDeviceSetPersistenceMode nvmlDeviceSetPowerManagementLimit nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetPowerMizerMode_v1 nvmlDeviceSetRusdSettings_v1 nvmlDeviceSetTemperatureThreshold
    nvmlDeviceSetVgpuCapabilities nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVgpuSchedulerState_v2 nvmlDeviceSetVirtualizationMode nvmlDeviceVgpuForceGspUnload
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 nvmlGpmSetStreamingEnabled
    nvmlGpuInstanceCreateComputeInstance nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceDestroy nvmlGpuInstanceSetVgpuHeterogeneousMode nvmlGpuInstanceSetVgpuSchedulerState
    nvmlGpuInstanceSetVgpuSchedulerState_v2 nvmlComputeInstanceDestroy nvmlSetVgpuVersion
    nvmlSystemSetConfComputeGpusReadyState nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceSetEncoderCapacity
    """
)

#: NVML_ERROR_NOT_SUPPORTED: (why, names).
UNSUPPORTED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = tuple(
    (why, _names(names))
    for why, names in (
        (
            "the links between GPUs are the server's; which of them reach each other nvmlDeviceGetP2PStatus says",
            """
            nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkInfo
            nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2
            nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkTelemetrySamples_v1 nvmlDeviceGetNvLinkUtilizationControl
            nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvlinkBwMode
            nvmlDeviceGetNvlinkSupportedBwModes nvmlSystemGetNvlinkBwMode
            nvmlDeviceGetGpuFabricInfo_v4 nvmlDeviceGetC2cModeInfoV
            nvmlDeviceGetBridgeChipInfo nvmlDeviceGetPlatformInfo
            """,
        ),
        (
            "of the server's machine: its processors, memory, files and interrupts are not the program's",
            """
            nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceSetCpuAffinity
            nvmlDeviceClearCpuAffinity nvmlDeviceGetMemoryAffinity nvmlDeviceGetNumaNodeId nvmlDeviceGetMinorNumber
            nvmlDeviceGetIrqNum nvmlDeviceGetHostname_v1 nvmlSystemGetTopologyGpuSet nvmlSystemGetCPER_v1
            nvmlDeviceGetAddressingMode nvmlSystemGetDriverBranch nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
            nvmlDeviceGetPdi nvmlGetExcludedDeviceInfoByIndex nvmlDeviceQueryDrainState nvmlDeviceValidateInforom
            nvmlDeviceGetPgpuMetadataString
            """,
        ),
        (
            "events and samples of the server's driver are not passed on",
            """
            nvmlEventSetWait_v3 nvmlEventSetGetContextCount_v1 nvmlEventSetGetContextData_v1
            nvmlEventSetGetContextInfo_v1
            nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1 nvmlEventSetRegisterGpuOperationalEvents_v1
            nvmlDeviceRegisterEvents nvmlSystemEventSetCreate
            nvmlSystemEventSetFree nvmlSystemEventSetWait nvmlSystemRegisterEvents nvmlDeviceGetSamples
            nvmlDevicePerfMetricsGetSamples_v1 nvmlGpmMetricsGet nvmlGpmMigSampleGet nvmlGpmQueryDeviceSupport
            nvmlGpmQueryIfStreamingEnabled nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet
            nvmlDeviceReadPRMCounters_v1
            """,
        ),
        (
            "accounts of processes other than their memory are not kept for a lease",
            """
            nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingPids
            nvmlDeviceGetAccountingStats nvmlDeviceGetAccountingStats_v2 nvmlDeviceGetProcessUtilization
            nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetRunningProcessDetailList nvmlDeviceGetEncoderSessions
            nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderCapacity nvmlDeviceGetFBCSessions nvmlDeviceGetFBCStats
            """,
        ),
        (
            "parts of a GPU (MIG) are not leased",
            """
            nvmlDeviceGetMigMode nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetDeviceHandleFromMigDeviceHandle
            nvmlDeviceGetAttributes nvmlDeviceGetAttributes_v2 nvmlDeviceGetGpuInstanceId
            nvmlDeviceGetComputeInstanceId nvmlDeviceGetGpuInstanceById nvmlDeviceGetGpuInstances
            nvmlDeviceGetGpuInstancePossiblePlacements_v2 nvmlDeviceGetGpuInstanceProfileInfo
            nvmlDeviceGetGpuInstanceProfileInfoByIdV nvmlDeviceGetGpuInstanceProfileInfoV
            nvmlDeviceGetGpuInstanceRemainingCapacity nvmlGpuInstanceGetActiveVgpus
            nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceGetComputeInstancePossiblePlacements
            nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstanceProfileInfoV
            nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetComputeInstances
            nvmlGpuInstanceGetCreatableVgpus nvmlGpuInstanceGetInfo nvmlGpuInstanceGetVgpuHeterogeneousMode
            nvmlGpuInstanceGetVgpuSchedulerLog nvmlGpuInstanceGetVgpuSchedulerLog_v2
            nvmlGpuInstanceGetVgpuSchedulerState nvmlGpuInstanceGetVgpuSchedulerState_v2
            nvmlGpuInstanceGetVgpuTypeCreatablePlacements nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2
            """,
        ),
        (
            "virtual GPUs are not leased",
            """
            nvmlDeviceGetHostVgpuMode nvmlDeviceGetActiveVgpus nvmlDeviceGetCreatableVgpus nvmlDeviceGetSupportedVgpus
            nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuHeterogeneousMode
            nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata nvmlDeviceGetVgpuProcessUtilization
            nvmlDeviceGetVgpuProcessesUtilizationInfo nvmlDeviceGetVgpuSchedulerCapabilities
            nvmlDeviceGetVgpuSchedulerLog nvmlDeviceGetVgpuSchedulerLog_v2 nvmlDeviceGetVgpuSchedulerState
            nvmlDeviceGetVgpuSchedulerState_v2 nvmlDeviceGetVgpuTypeCreatablePlacements
            nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization nvmlGetVgpuCompatibility
            nvmlGetVgpuDriverCapabilities nvmlGetVgpuVersion
            nvmlVgpuInstanceGetAccountingMode nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats
            nvmlVgpuInstanceGetEccMode nvmlVgpuInstanceGetEncoderCapacity nvmlVgpuInstanceGetEncoderSessions
            nvmlVgpuInstanceGetEncoderStats nvmlVgpuInstanceGetFBCSessions nvmlVgpuInstanceGetFBCStats
            nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetFrameRateLimit nvmlVgpuInstanceGetGpuInstanceId
            nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo_v2 nvmlVgpuInstanceGetLicenseStatus
            nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata nvmlVgpuInstanceGetPlacementId
            nvmlVgpuInstanceGetRuntimeStateSize nvmlVgpuInstanceGetType nvmlVgpuInstanceGetUUID
            nvmlVgpuInstanceGetVmDriverVersion nvmlVgpuInstanceGetVmID nvmlVgpuTypeGetBAR1Info
            nvmlVgpuTypeGetCapabilities nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation
            nvmlVgpuTypeGetFrameRateLimit nvmlVgpuTypeGetFramebufferSize nvmlVgpuTypeGetGpuInstanceProfileId
            nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense nvmlVgpuTypeGetMaxInstances
            nvmlVgpuTypeGetMaxInstancesPerGpuInstance nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetName
            nvmlVgpuTypeGetNumDisplayHeads nvmlVgpuTypeGetResolution
            """,
        ),
        (
            "confidential computing would have to include the connection",
            """
            nvmlDeviceGetConfComputeGpuAttestationReport nvmlDeviceGetConfComputeGpuCertificate
            nvmlDeviceGetConfComputeMemSizeInfo nvmlDeviceGetConfComputeProtectedMemoryUsage
            nvmlSystemGetConfComputeCapabilities nvmlSystemGetConfComputeGpusReadyState
            nvmlSystemGetConfComputeKeyRotationThresholdInfo nvmlSystemGetConfComputeSettings
            nvmlSystemGetConfComputeState nvmlDeviceGetDramEncryptionMode
            """,
        ),
        (
            "there are no units (S-class systems)",
            """
            nvmlUnitGetDevices nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex nvmlUnitGetLedState
            nvmlUnitGetPsuInfo nvmlUnitGetTemperature nvmlUnitGetUnitInfo
            """,
        ),
        (
            "nothing that was looked at needs it yet",
            """
            nvmlDeviceGetAPIRestriction nvmlDeviceGetAdaptiveTgpModeInfo_v1 nvmlDeviceGetBBXTimeData_v1
            nvmlDeviceGetBankRemapperStatus_v1 nvmlDeviceGetClkMonStatus nvmlDeviceGetDetailedEccErrors
            nvmlDeviceGetDynamicPstatesInfo nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset
            nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetLastBBXFlushTime nvmlDeviceGetMemClkMinMaxVfOffset
            nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryLimits_v1 nvmlDeviceGetMinMaxClockOfPState
            nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetRemappedRows_v2 nvmlDeviceGetRepairStatus
            nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
            nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetThermalSettings
            nvmlDeviceGetUnrepairableMemoryFlag_v1 nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
            nvmlDeviceWorkloadPowerProfileGetProfilesInfo
            """,
        ),
    )
)
