"""What random calls know of the driver API beside the specification."""

from __future__ import annotations

from typing import Final

#: What results' places are filled with beforehand.
FILL: Final = 0xA5
#: Bytes of each.
ROOM: Final = 8192
#: Bytes of a buffer of this process.
HOST: Final = 1 << 20

PTX: Final = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .global .texref image;
.visible .entry store(.param .u64 pa, .param .u32 pv)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [pa];
	ld.param.u32 %r1, [pv];
	st.global.u32 [%rd1], %r1;
	ret;
}
.visible .entry mix(.param .u64 pa, .param .u64 pb, .param .u32 pv)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [pa];
	ld.param.u64 %rd2, [pb];
	ld.param.u32 %r1, [pv];
	ld.global.u32 %r2, [%rd1];
	ld.global.u32 %r3, [%rd2];
	mad.lo.u32 %r2, %r2, 3, %r3;
	add.u32 %r2, %r2, %r1;
	st.global.u32 [%rd1], %r2;
	ret;
}
.visible .entry nothing()
{
	ret;
}
"""
#: A kernel's name -> its parameters: a for an address, w for a word.
KERNELS: Final = {"store": "aw", "mix": "aaw", "nothing": ""}

#: What can't be called at random: it waits for what nobody does, ends the process, or gives functions of the process.
NEVER: Final = {
    "cuInit",
    "cuGetExportTable",
    "cuGetErrorName",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuStreamWaitValue32",
    "cuStreamWaitValue64",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64_v2",
    "cuCheckpointProcessLock",
    "cuMulticastBindAddr",
    "cuMulticastBindMem",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuGraphConditionalHandleCreate",
    "cuDeviceRegisterAsyncNotification",
    "cuDeviceUnregisterAsyncNotification",
    "cuLogsRegisterCallback",
    "cuLogsUnregisterCallback",
    "cuLogsCurrent",
    "cuLogsDumpToFile",
    "cuLogsDumpToMemory",
    "cuModuleLoadFatBinary",
    "cuMemImportFromShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolImportPointer",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcOpenEventHandle",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemMap",
    # Managed memory is a software GPU's own affair.
    "cuStreamAttachMemAsync",
    # A software GPU takes any context.
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
}

#: What a software GPU says is not there.
LACKING: Final = {
    "cuMemPrefetchBatchAsync",
    "cuMemDiscardBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpyWithAttributesAsync",
    "cuMemcpy3DWithAttributesAsync",
    "cuFuncGetParamCount",
    "cuKernelGetParamCount",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeerAsync",
    "cuCtxCreate_v4",
    "cuGetErrorString",
}

#: Which output says nothing of the two drivers' being alike.
UNCOMPARED: Final = {
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuMemGetInfo",
    "cuMemGetInfo_v2",
    "cuCtxGetId",
    "cuStreamGetId",
    "cuDeviceGetName",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeIm2colWide",
    "cuTensorMapReplaceAddress",
    "cuIpcGetMemHandle",
    "cuIpcGetEventHandle",
    "cuMemPoolExportPointer",
    "cuMemExportToShareableHandle",
    "cuMemPoolExportToShareableHandle",
    "cuLinkComplete",
    "cuGraphGetId",
    "cuGraphExecGetId",
    "cuGraphNodeGetLocalId",
    "cuGraphNodeGetToolsId",
    "cuMemHostGetFlags",
}

#: What a capture forbids, and the shim lets pass (docs/open-points.md).
LENIENT: Final = {
    "cuMemHostAlloc",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemFreeAsync",
    "cuLaunchHostFunc",
    "cuStreamAddCallback",
    "cuMemcpyDtoD_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy3D_v2",
    "cuMemcpy",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyAtoA_v2",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyDtoA_v2",
    "cuMemcpyHtoA_v2",
}

#: What a handle's type is called where several types are one kind.
KINDS: Final = {"CUgraphDeviceNode": "CUgraphNode"}
