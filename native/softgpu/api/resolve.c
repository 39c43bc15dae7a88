#include "../driver/device.h"

#include <string.h>

/* One variant of a function: what cuGetProcAddress gives for requests of
 * `version` and later, up to the next variant.  A function whose default
 * stream can be the thread's has a second form for that, since
 * `thread_version`.  The numbers are those of cudaTypedefs.h (PFN_<name>_v<n>).
 */
#define PLAIN(name, version, symbol) \
	X(name, version, symbol, symbol, 0)
#define STREAM(name, version, symbol, thread_symbol, thread_version) \
	X(name, version, symbol, thread_symbol, thread_version)

#define VARIANTS \
	PLAIN(cuArray3DCreate, 3020, cuArray3DCreate_v2) \
	PLAIN(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2) \
	PLAIN(cuArrayCreate, 3020, cuArrayCreate_v2) \
	PLAIN(cuArrayDestroy, 2000, cuArrayDestroy) \
	PLAIN(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2) \
	PLAIN(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements) \
	PLAIN(cuArrayGetPlane, 11020, cuArrayGetPlane) \
	PLAIN(cuArrayGetSparseProperties, 11010, cuArrayGetSparseProperties) \
	PLAIN(cuCtxGetExecAffinity, 11040, cuCtxGetExecAffinity) \
	PLAIN(cuCtxRecordEvent, 12050, cuCtxRecordEvent) \
	PLAIN(cuCtxWaitEvent, 12050, cuCtxWaitEvent) \
	PLAIN(cuDeviceGetExecAffinitySupport, 11040, cuDeviceGetExecAffinitySupport) \
	PLAIN(cuDeviceGetHostAtomicCapabilities, 13000, cuDeviceGetHostAtomicCapabilities) \
	PLAIN(cuDeviceGetP2PAtomicCapabilities, 13000, cuDeviceGetP2PAtomicCapabilities) \
	PLAIN(cuDeviceGetTexture1DLinearMaxWidth, 11010, cuDeviceGetTexture1DLinearMaxWidth) \
	PLAIN(cuTensorMapEncodeIm2col, 12000, cuTensorMapEncodeIm2col) \
	PLAIN(cuTensorMapEncodeIm2colWide, 12080, cuTensorMapEncodeIm2colWide) \
	PLAIN(cuTensorMapEncodeTiled, 12000, cuTensorMapEncodeTiled) \
	PLAIN(cuTensorMapReplaceAddress, 12000, cuTensorMapReplaceAddress) \
	STREAM(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz, 8000) \
	STREAM(cuStreamBatchMemOp, 11070, cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz, 11070) \
	STREAM(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, 11000) \
	STREAM(cuStreamGetAttribute, 11000, cuStreamGetAttribute, cuStreamGetAttribute_ptsz, 11000) \
	STREAM(cuStreamSetAttribute, 11000, cuStreamSetAttribute, cuStreamSetAttribute_ptsz, 11000) \
	STREAM(cuStreamWaitValue32, 8000, cuStreamWaitValue32, cuStreamWaitValue32_ptsz, 8000) \
	STREAM(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz, 11070) \
	STREAM(cuStreamWaitValue64, 9000, cuStreamWaitValue64, cuStreamWaitValue64_ptsz, 9000) \
	STREAM(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz, 11070) \
	STREAM(cuStreamWriteValue32, 8000, cuStreamWriteValue32, cuStreamWriteValue32_ptsz, 8000) \
	STREAM(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, 11070) \
	STREAM(cuStreamWriteValue64, 9000, cuStreamWriteValue64, cuStreamWriteValue64_ptsz, 9000) \
	STREAM(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, 11070) \
	PLAIN(cuCtxAttach, 2000, cuCtxAttach) \
	PLAIN(cuCtxCreate, 3020, cuCtxCreate_v2) \
	PLAIN(cuCtxCreate, 11040, cuCtxCreate_v3) \
	PLAIN(cuCtxCreate, 12050, cuCtxCreate_v4) \
	PLAIN(cuCtxDestroy, 4000, cuCtxDestroy_v2) \
	PLAIN(cuCtxDetach, 2000, cuCtxDetach) \
	PLAIN(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) \
	PLAIN(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) \
	PLAIN(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion) \
	PLAIN(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig) \
	PLAIN(cuCtxGetCurrent, 4000, cuCtxGetCurrent) \
	PLAIN(cuCtxGetDevice, 2000, cuCtxGetDevice) \
	PLAIN(cuCtxGetDevice, 13000, cuCtxGetDevice_v2) \
	PLAIN(cuCtxGetFlags, 7000, cuCtxGetFlags) \
	PLAIN(cuCtxGetId, 12000, cuCtxGetId) \
	PLAIN(cuCtxGetLimit, 3010, cuCtxGetLimit) \
	PLAIN(cuCtxGetSharedMemConfig, 4020, cuCtxGetSharedMemConfig) \
	PLAIN(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange) \
	PLAIN(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2) \
	PLAIN(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2) \
	PLAIN(cuCtxResetPersistingL2Cache, 11000, cuCtxResetPersistingL2Cache) \
	PLAIN(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig) \
	PLAIN(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
	PLAIN(cuCtxSetFlags, 12010, cuCtxSetFlags) \
	PLAIN(cuCtxSetLimit, 3010, cuCtxSetLimit) \
	PLAIN(cuCtxSetSharedMemConfig, 4020, cuCtxSetSharedMemConfig) \
	PLAIN(cuCtxSynchronize, 2000, cuCtxSynchronize) \
	PLAIN(cuCtxSynchronize, 13000, cuCtxSynchronize_v2) \
	PLAIN(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) \
	PLAIN(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability) \
	PLAIN(cuDeviceGet, 2000, cuDeviceGet) \
	PLAIN(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) \
	PLAIN(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId) \
	PLAIN(cuDeviceGetCount, 2000, cuDeviceGetCount) \
	PLAIN(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
	PLAIN(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool) \
	PLAIN(cuDeviceGetName, 2000, cuDeviceGetName) \
	PLAIN(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute) \
	PLAIN(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId) \
	PLAIN(cuDeviceGetProperties, 2000, cuDeviceGetProperties) \
	PLAIN(cuDeviceGetUuid, 9020, cuDeviceGetUuid) \
	PLAIN(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2) \
	PLAIN(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
	PLAIN(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2) \
	PLAIN(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2) \
	PLAIN(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2) \
	PLAIN(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2) \
	PLAIN(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
	PLAIN(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags_v2) \
	PLAIN(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2) \
	PLAIN(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool) \
	PLAIN(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute) \
	PLAIN(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim) \
	PLAIN(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute) \
	PLAIN(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) \
	PLAIN(cuDriverGetVersion, 2020, cuDriverGetVersion) \
	PLAIN(cuEventCreate, 2000, cuEventCreate) \
	PLAIN(cuEventDestroy, 4000, cuEventDestroy_v2) \
	PLAIN(cuEventElapsedTime, 2000, cuEventElapsedTime) \
	PLAIN(cuEventElapsedTime, 12080, cuEventElapsedTime_v2) \
	PLAIN(cuEventQuery, 2000, cuEventQuery) \
	STREAM(cuEventRecord, 2000, cuEventRecord, cuEventRecord_ptsz, 7000) \
	STREAM(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, 11010) \
	PLAIN(cuEventSynchronize, 2000, cuEventSynchronize) \
	PLAIN(cuFuncGetAttribute, 2020, cuFuncGetAttribute) \
	PLAIN(cuFuncGetModule, 11000, cuFuncGetModule) \
	PLAIN(cuFuncGetName, 12030, cuFuncGetName) \
	PLAIN(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo) \
	PLAIN(cuFuncIsLoaded, 12040, cuFuncIsLoaded) \
	PLAIN(cuFuncLoad, 12040, cuFuncLoad) \
	PLAIN(cuFuncSetAttribute, 9000, cuFuncSetAttribute) \
	PLAIN(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig) \
	PLAIN(cuFuncSetSharedMemConfig, 4020, cuFuncSetSharedMemConfig) \
	PLAIN(cuGetErrorName, 6000, cuGetErrorName) \
	PLAIN(cuGetErrorString, 6000, cuGetErrorString) \
	PLAIN(cuGetExportTable, 3000, cuGetExportTable) \
	PLAIN(cuGetProcAddress, 11030, cuGetProcAddress) \
	PLAIN(cuGetProcAddress, 12000, cuGetProcAddress_v2) \
	PLAIN(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode) \
	PLAIN(cuGraphAddDependencies, 10000, cuGraphAddDependencies) \
	PLAIN(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2) \
	PLAIN(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode) \
	PLAIN(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode) \
	PLAIN(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode) \
	PLAIN(cuGraphAddHostNode, 10000, cuGraphAddHostNode) \
	PLAIN(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode) \
	PLAIN(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2) \
	PLAIN(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode) \
	PLAIN(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode) \
	PLAIN(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode) \
	PLAIN(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode) \
	PLAIN(cuGraphAddNode, 12020, cuGraphAddNode) \
	PLAIN(cuGraphAddNode, 12030, cuGraphAddNode_v2) \
	PLAIN(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph) \
	PLAIN(cuGraphClone, 10000, cuGraphClone) \
	PLAIN(cuGraphConditionalHandleCreate, 12030, cuGraphConditionalHandleCreate) \
	PLAIN(cuGraphCreate, 10000, cuGraphCreate) \
	PLAIN(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint) \
	PLAIN(cuGraphDestroy, 10000, cuGraphDestroy) \
	PLAIN(cuGraphDestroyNode, 10000, cuGraphDestroyNode) \
	PLAIN(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent) \
	PLAIN(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent) \
	PLAIN(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent) \
	PLAIN(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent) \
	PLAIN(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams) \
	PLAIN(cuGraphExecDestroy, 10000, cuGraphExecDestroy) \
	PLAIN(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent) \
	PLAIN(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent) \
	PLAIN(cuGraphExecGetId, 13010, cuGraphExecGetId) \
	PLAIN(cuGraphGetId, 13010, cuGraphGetId) \
	PLAIN(cuGraphNodeGetContainingGraph, 13010, cuGraphNodeGetContainingGraph) \
	PLAIN(cuGraphNodeGetLocalId, 13010, cuGraphNodeGetLocalId) \
	PLAIN(cuGraphNodeGetToolsId, 13010, cuGraphNodeGetToolsId) \
	PLAIN(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags) \
	PLAIN(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams) \
	PLAIN(cuGraphExecKernelNodeSetParams, 10010, cuGraphExecKernelNodeSetParams) \
	PLAIN(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2) \
	PLAIN(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams) \
	PLAIN(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams) \
	PLAIN(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams) \
	PLAIN(cuGraphExecUpdate, 10020, cuGraphExecUpdate) \
	PLAIN(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2) \
	PLAIN(cuGraphGetEdges, 10000, cuGraphGetEdges) \
	PLAIN(cuGraphGetEdges, 12030, cuGraphGetEdges_v2) \
	PLAIN(cuGraphGetNodes, 10000, cuGraphGetNodes) \
	PLAIN(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes) \
	PLAIN(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams) \
	PLAIN(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams) \
	PLAIN(cuGraphInstantiate, 10000, cuGraphInstantiate) \
	PLAIN(cuGraphInstantiate, 11000, cuGraphInstantiate_v2) \
	PLAIN(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags) \
	STREAM(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, 12000) \
	PLAIN(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes) \
	PLAIN(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute) \
	PLAIN(cuGraphKernelNodeGetParams, 10000, cuGraphKernelNodeGetParams) \
	PLAIN(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2) \
	PLAIN(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute) \
	PLAIN(cuGraphKernelNodeSetParams, 10000, cuGraphKernelNodeSetParams) \
	PLAIN(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2) \
	STREAM(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz, 10000) \
	PLAIN(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams) \
	PLAIN(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams) \
	PLAIN(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams) \
	PLAIN(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams) \
	PLAIN(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams) \
	PLAIN(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams) \
	PLAIN(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone) \
	PLAIN(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies) \
	PLAIN(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2) \
	PLAIN(cuGraphNodeGetDependentNodes, 10000, cuGraphNodeGetDependentNodes) \
	PLAIN(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2) \
	PLAIN(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled) \
	PLAIN(cuGraphNodeGetType, 10000, cuGraphNodeGetType) \
	PLAIN(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled) \
	PLAIN(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams) \
	PLAIN(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject) \
	PLAIN(cuGraphRemoveDependencies, 10000, cuGraphRemoveDependencies) \
	PLAIN(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2) \
	PLAIN(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject) \
	STREAM(cuGraphUpload, 11010, cuGraphUpload, cuGraphUpload_ptsz, 11010) \
	PLAIN(cuInit, 2000, cuInit) \
	PLAIN(cuKernelGetAttribute, 12000, cuKernelGetAttribute) \
	PLAIN(cuKernelGetFunction, 12000, cuKernelGetFunction) \
	PLAIN(cuKernelGetLibrary, 12050, cuKernelGetLibrary) \
	PLAIN(cuKernelGetName, 12030, cuKernelGetName) \
	PLAIN(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo) \
	PLAIN(cuKernelSetAttribute, 12000, cuKernelSetAttribute) \
	PLAIN(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig) \
	STREAM(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, 9000) \
	STREAM(cuLaunchHostFunc, 10000, cuLaunchHostFunc, cuLaunchHostFunc_ptsz, 10000) \
	STREAM(cuLaunchKernel, 4000, cuLaunchKernel, cuLaunchKernel_ptsz, 7000) \
	STREAM(cuLaunchKernelEx, 11060, cuLaunchKernelEx, cuLaunchKernelEx_ptsz, 11060) \
	PLAIN(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels) \
	PLAIN(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal) \
	PLAIN(cuLibraryGetKernel, 12000, cuLibraryGetKernel) \
	PLAIN(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount) \
	PLAIN(cuLibraryGetManaged, 12000, cuLibraryGetManaged) \
	PLAIN(cuLibraryGetModule, 12000, cuLibraryGetModule) \
	PLAIN(cuLibraryLoadData, 12000, cuLibraryLoadData) \
	PLAIN(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile) \
	PLAIN(cuLibraryUnload, 12000, cuLibraryUnload) \
	PLAIN(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle) \
	PLAIN(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle) \
	PLAIN(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle) \
	PLAIN(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle) \
	PLAIN(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2) \
	PLAIN(cuLinkAddData, 6050, cuLinkAddData_v2) \
	PLAIN(cuLinkAddFile, 6050, cuLinkAddFile_v2) \
	PLAIN(cuLinkComplete, 5050, cuLinkComplete) \
	PLAIN(cuLinkCreate, 6050, cuLinkCreate_v2) \
	PLAIN(cuLinkDestroy, 5050, cuLinkDestroy) \
	PLAIN(cuMemAddressFree, 10020, cuMemAddressFree) \
	PLAIN(cuMemAddressReserve, 10020, cuMemAddressReserve) \
	PLAIN(cuMemCreate, 10020, cuMemCreate) \
	PLAIN(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle) \
	PLAIN(cuMemGetAccess, 10020, cuMemGetAccess) \
	PLAIN(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity) \
	PLAIN(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
	PLAIN(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle) \
	PLAIN(cuMemMap, 10020, cuMemMap) \
	PLAIN(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute) \
	PLAIN(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes) \
	PLAIN(cuMemRelease, 10020, cuMemRelease) \
	PLAIN(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle) \
	PLAIN(cuMemSetAccess, 10020, cuMemSetAccess) \
	PLAIN(cuMemUnmap, 10020, cuMemUnmap) \
	PLAIN(cuLogsCurrent, 12090, cuLogsCurrent) \
	PLAIN(cuLogsDumpToFile, 12090, cuLogsDumpToFile) \
	PLAIN(cuLogsDumpToMemory, 12090, cuLogsDumpToMemory) \
	PLAIN(cuLogsRegisterCallback, 12090, cuLogsRegisterCallback) \
	PLAIN(cuLogsUnregisterCallback, 12090, cuLogsUnregisterCallback) \
	PLAIN(cuMemAdvise, 8000, cuMemAdvise) \
	PLAIN(cuMemAdvise, 12020, cuMemAdvise_v2) \
	PLAIN(cuMemAlloc, 3020, cuMemAlloc_v2) \
	STREAM(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz, 11020) \
	STREAM(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, 11020) \
	PLAIN(cuMemAllocHost, 3020, cuMemAllocHost_v2) \
	PLAIN(cuMemAllocManaged, 6000, cuMemAllocManaged) \
	PLAIN(cuMemAllocPitch, 3020, cuMemAllocPitch_v2) \
	PLAIN(cuMemFree, 3020, cuMemFree_v2) \
	STREAM(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz, 11020) \
	PLAIN(cuMemFreeHost, 2000, cuMemFreeHost) \
	PLAIN(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2) \
	PLAIN(cuMemGetInfo, 3020, cuMemGetInfo_v2) \
	PLAIN(cuMemHostAlloc, 2020, cuMemHostAlloc) \
	PLAIN(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) \
	PLAIN(cuMemHostGetFlags, 2030, cuMemHostGetFlags) \
	PLAIN(cuMemHostRegister, 6050, cuMemHostRegister_v2) \
	PLAIN(cuMemHostUnregister, 4000, cuMemHostUnregister) \
	PLAIN(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool) \
	PLAIN(cuMemGetMemPool, 13000, cuMemGetMemPool) \
	PLAIN(cuMemPoolCreate, 11020, cuMemPoolCreate) \
	PLAIN(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer) \
	PLAIN(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle) \
	PLAIN(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle) \
	PLAIN(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer) \
	PLAIN(cuMemSetMemPool, 13000, cuMemSetMemPool) \
	PLAIN(cuMemPoolDestroy, 11020, cuMemPoolDestroy) \
	PLAIN(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess) \
	PLAIN(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) \
	PLAIN(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
	PLAIN(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) \
	PLAIN(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) \
	STREAM(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz, 8000) \
	STREAM(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, 12020) \
	STREAM(cuMemcpy, 4000, cuMemcpy, cuMemcpy_ptds, 7000) \
	STREAM(cuMemcpy2D, 3020, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, 7000) \
	STREAM(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, 7000) \
	STREAM(cuMemcpy3D, 3020, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, 7000) \
	STREAM(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, 12080) \
	STREAM(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, 13000) \
	STREAM(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, 7000) \
	STREAM(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, 7000) \
	STREAM(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz, 12080) \
	STREAM(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, 13000) \
	STREAM(cuMemcpyAtoA, 3020, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, 7000) \
	STREAM(cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, 7000) \
	STREAM(cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, 7000) \
	STREAM(cuMemcpyAtoHAsync, 3020, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, 7000) \
	STREAM(cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, 7000) \
	STREAM(cuMemcpyHtoAAsync, 3020, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpyAsync, 4000, cuMemcpyAsync, cuMemcpyAsync_ptsz, 7000) \
	STREAM(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, 7000) \
	STREAM(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, 7000) \
	STREAM(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, 7000) \
	STREAM(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, 7000) \
	STREAM(cuMemcpyPeer, 4000, cuMemcpyPeer, cuMemcpyPeer_ptds, 7000) \
	STREAM(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, 7000) \
	STREAM(cuMemsetD16, 3020, cuMemsetD16_v2, cuMemsetD16_v2_ptds, 7000) \
	STREAM(cuMemsetD16Async, 3020, cuMemsetD16Async, cuMemsetD16Async_ptsz, 7000) \
	STREAM(cuMemsetD2D16, 3020, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, 7000) \
	STREAM(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, 7000) \
	STREAM(cuMemsetD2D32, 3020, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, 7000) \
	STREAM(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, 7000) \
	STREAM(cuMemsetD2D8, 3020, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, 7000) \
	STREAM(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, 7000) \
	STREAM(cuMemsetD32, 3020, cuMemsetD32_v2, cuMemsetD32_v2_ptds, 7000) \
	STREAM(cuMemsetD32Async, 3020, cuMemsetD32Async, cuMemsetD32Async_ptsz, 7000) \
	STREAM(cuMemsetD8, 3020, cuMemsetD8_v2, cuMemsetD8_v2_ptds, 7000) \
	STREAM(cuMemsetD8Async, 3020, cuMemsetD8Async, cuMemsetD8Async_ptsz, 7000) \
	PLAIN(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate) \
	PLAIN(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy) \
	PLAIN(cuMipmappedArrayGetLevel, 5000, cuMipmappedArrayGetLevel) \
	PLAIN(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements) \
	PLAIN(cuMipmappedArrayGetSparseProperties, 11010, cuMipmappedArrayGetSparseProperties) \
	PLAIN(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions) \
	PLAIN(cuModuleGetFunction, 2000, cuModuleGetFunction) \
	PLAIN(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount) \
	PLAIN(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2) \
	PLAIN(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode) \
	PLAIN(cuModuleLoad, 2000, cuModuleLoad) \
	PLAIN(cuModuleLoadData, 2000, cuModuleLoadData) \
	PLAIN(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx) \
	PLAIN(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary) \
	PLAIN(cuModuleUnload, 2000, cuModuleUnload) \
	PLAIN(cuMulticastAddDevice, 12010, cuMulticastAddDevice) \
	PLAIN(cuMulticastBindAddr, 12010, cuMulticastBindAddr) \
	PLAIN(cuMulticastBindMem, 12010, cuMulticastBindMem) \
	PLAIN(cuMulticastCreate, 12010, cuMulticastCreate) \
	PLAIN(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity) \
	PLAIN(cuMulticastUnbind, 12010, cuMulticastUnbind) \
	PLAIN(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock) \
	PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
	PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
	PLAIN(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters) \
	PLAIN(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize) \
	PLAIN(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags) \
	PLAIN(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize) \
	PLAIN(cuPointerGetAttribute, 4000, cuPointerGetAttribute) \
	PLAIN(cuPointerGetAttributes, 7000, cuPointerGetAttributes) \
	PLAIN(cuPointerSetAttribute, 6000, cuPointerSetAttribute) \
	PLAIN(cuProfilerInitialize, 4000, cuProfilerInitialize) \
	PLAIN(cuProfilerStart, 4000, cuProfilerStart) \
	PLAIN(cuProfilerStop, 4000, cuProfilerStop) \
	STREAM(cuStreamAddCallback, 5000, cuStreamAddCallback, cuStreamAddCallback_ptsz, 7000) \
	STREAM(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz, 7000) \
	STREAM(cuStreamBeginCapture, 10000, cuStreamBeginCapture, cuStreamBeginCapture_ptsz, 10000) \
	STREAM(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, 10010) \
	STREAM(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, 12030) \
	STREAM(cuStreamEndCapture, 10000, cuStreamEndCapture, cuStreamEndCapture_ptsz, 10000) \
	STREAM(cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz, 11030) \
	STREAM(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz, 12030) \
	PLAIN(cuStreamCreate, 2000, cuStreamCreate) \
	PLAIN(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority) \
	PLAIN(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
	STREAM(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz, 10010) \
	STREAM(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, 11030) \
	STREAM(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, 12030) \
	STREAM(cuStreamGetCtx, 9020, cuStreamGetCtx, cuStreamGetCtx_ptsz, 9020) \
	STREAM(cuStreamGetCtx, 12050, cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz, 12050) \
	STREAM(cuStreamGetDevice, 12080, cuStreamGetDevice, cuStreamGetDevice_ptsz, 12080) \
	STREAM(cuStreamGetFlags, 5050, cuStreamGetFlags, cuStreamGetFlags_ptsz, 7000) \
	STREAM(cuStreamGetId, 12000, cuStreamGetId, cuStreamGetId_ptsz, 12000) \
	STREAM(cuStreamGetPriority, 5050, cuStreamGetPriority, cuStreamGetPriority_ptsz, 7000) \
	STREAM(cuStreamIsCapturing, 10000, cuStreamIsCapturing, cuStreamIsCapturing_ptsz, 10000) \
	STREAM(cuStreamQuery, 2000, cuStreamQuery, cuStreamQuery_ptsz, 7000) \
	STREAM(cuStreamSynchronize, 2000, cuStreamSynchronize, cuStreamSynchronize_ptsz, 7000) \
	STREAM(cuStreamWaitEvent, 3020, cuStreamWaitEvent, cuStreamWaitEvent_ptsz, 7000) \
	PLAIN(cuSurfObjectCreate, 5000, cuSurfObjectCreate) \
	PLAIN(cuSurfObjectDestroy, 5000, cuSurfObjectDestroy) \
	PLAIN(cuSurfObjectGetResourceDesc, 5000, cuSurfObjectGetResourceDesc) \
	PLAIN(cuTexObjectCreate, 5000, cuTexObjectCreate) \
	PLAIN(cuTexObjectDestroy, 5000, cuTexObjectDestroy) \
	PLAIN(cuTexObjectGetResourceDesc, 5000, cuTexObjectGetResourceDesc) \
	PLAIN(cuTexObjectGetResourceViewDesc, 5000, cuTexObjectGetResourceViewDesc) \
	PLAIN(cuGraphAddBatchMemOpNode, 11070, cuGraphAddBatchMemOpNode) \
	PLAIN(cuGraphBatchMemOpNodeGetParams, 11070, cuGraphBatchMemOpNodeGetParams) \
	PLAIN(cuGraphBatchMemOpNodeSetParams, 11070, cuGraphBatchMemOpNodeSetParams) \
	PLAIN(cuGraphExecBatchMemOpNodeSetParams, 11070, cuGraphExecBatchMemOpNodeSetParams) \
	PLAIN(cuGraphNodeGetParams, 13020, cuGraphNodeGetParams) \
	PLAIN(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx) \
	PLAIN(cuCtxGetDevResource, 12040, cuCtxGetDevResource) \
	PLAIN(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc) \
	PLAIN(cuDevSmResourceSplit, 13010, cuDevSmResourceSplit) \
	PLAIN(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount) \
	PLAIN(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource) \
	PLAIN(cuGreenCtxCreate, 12040, cuGreenCtxCreate) \
	PLAIN(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy) \
	PLAIN(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource) \
	PLAIN(cuGreenCtxGetId, 12090, cuGreenCtxGetId) \
	PLAIN(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent) \
	PLAIN(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate) \
	PLAIN(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent) \
	STREAM(cuStreamGetDevResource, 13010, cuStreamGetDevResource, cuStreamGetDevResource_ptsz, 13010) \
	PLAIN(cuTexObjectGetTextureDesc, 5000, cuTexObjectGetTextureDesc) \
	PLAIN(cuModuleGetSurfRef, 3000, cuModuleGetSurfRef) \
	PLAIN(cuModuleGetTexRef, 2000, cuModuleGetTexRef) \
	PLAIN(cuFuncSetBlockShape, 2000, cuFuncSetBlockShape) \
	PLAIN(cuFuncSetSharedSize, 2000, cuFuncSetSharedSize) \
	PLAIN(cuLaunch, 2000, cuLaunch) \
	PLAIN(cuLaunchGrid, 2000, cuLaunchGrid) \
	PLAIN(cuLaunchGridAsync, 2000, cuLaunchGridAsync) \
	PLAIN(cuParamSetSize, 2000, cuParamSetSize) \
	PLAIN(cuParamSetTexRef, 2000, cuParamSetTexRef) \
	PLAIN(cuParamSetf, 2000, cuParamSetf) \
	PLAIN(cuParamSeti, 2000, cuParamSeti) \
	PLAIN(cuParamSetv, 2000, cuParamSetv) \
	PLAIN(cuSurfRefGetArray, 3000, cuSurfRefGetArray) \
	PLAIN(cuSurfRefSetArray, 3000, cuSurfRefSetArray) \
	PLAIN(cuTexRefCreate, 2000, cuTexRefCreate) \
	PLAIN(cuTexRefDestroy, 2000, cuTexRefDestroy) \
	PLAIN(cuTexRefGetAddress, 3020, cuTexRefGetAddress_v2) \
	PLAIN(cuTexRefGetAddressMode, 2000, cuTexRefGetAddressMode) \
	PLAIN(cuTexRefGetArray, 2000, cuTexRefGetArray) \
	PLAIN(cuTexRefGetBorderColor, 8000, cuTexRefGetBorderColor) \
	PLAIN(cuTexRefGetFilterMode, 2000, cuTexRefGetFilterMode) \
	PLAIN(cuTexRefGetFlags, 2000, cuTexRefGetFlags) \
	PLAIN(cuTexRefGetFormat, 2000, cuTexRefGetFormat) \
	PLAIN(cuTexRefGetMaxAnisotropy, 5000, cuTexRefGetMaxAnisotropy) \
	PLAIN(cuTexRefGetMipmapFilterMode, 5000, cuTexRefGetMipmapFilterMode) \
	PLAIN(cuTexRefGetMipmapLevelBias, 5000, cuTexRefGetMipmapLevelBias) \
	PLAIN(cuTexRefGetMipmapLevelClamp, 5000, cuTexRefGetMipmapLevelClamp) \
	PLAIN(cuTexRefGetMipmappedArray, 5000, cuTexRefGetMipmappedArray) \
	PLAIN(cuTexRefSetAddress, 3020, cuTexRefSetAddress_v2) \
	PLAIN(cuTexRefSetAddress2D, 3020, cuTexRefSetAddress2D_v2) \
	PLAIN(cuTexRefSetAddress2D, 4010, cuTexRefSetAddress2D_v3) \
	PLAIN(cuTexRefSetAddressMode, 2000, cuTexRefSetAddressMode) \
	PLAIN(cuTexRefSetArray, 2000, cuTexRefSetArray) \
	PLAIN(cuTexRefSetBorderColor, 8000, cuTexRefSetBorderColor) \
	PLAIN(cuTexRefSetFilterMode, 2000, cuTexRefSetFilterMode) \
	PLAIN(cuTexRefSetFlags, 2000, cuTexRefSetFlags) \
	PLAIN(cuTexRefSetFormat, 2000, cuTexRefSetFormat) \
	PLAIN(cuTexRefSetMaxAnisotropy, 5000, cuTexRefSetMaxAnisotropy) \
	PLAIN(cuTexRefSetMipmapFilterMode, 5000, cuTexRefSetMipmapFilterMode) \
	PLAIN(cuTexRefSetMipmapLevelBias, 5000, cuTexRefSetMipmapLevelBias) \
	PLAIN(cuTexRefSetMipmapLevelClamp, 5000, cuTexRefSetMipmapLevelClamp) \
	PLAIN(cuTexRefSetMipmappedArray, 5000, cuTexRefSetMipmappedArray) \
	PLAIN(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
	PLAIN(cuUserObjectCreate, 11030, cuUserObjectCreate) \
	PLAIN(cuUserObjectRelease, 11030, cuUserObjectRelease) \
	PLAIN(cuUserObjectRetain, 11030, cuUserObjectRetain)

/* Addresses without prototypes: an assembler name each.  A symbol that has
 * several variants is declared as often, always the same. */
#define X(name, version, symbol, thread_symbol, thread_version)			\
	extern char entry_##symbol[] __asm__(#symbol);				\
	extern char entry_##thread_symbol[] __asm__(#thread_symbol);
VARIANTS
#undef X

static const struct {
	const char *name;
	int version;
	void *entry;
	void *thread_entry;
	int thread_version;	/* 0: there is no form of its own */
} variants[] = {
#define X(name, version, symbol, thread_symbol, thread_version) \
	{ #name, version, entry_##symbol, entry_##thread_symbol, thread_version },
VARIANTS
#undef X
};

#define FLAGS_KNOWN (CU_GET_PROC_ADDRESS_LEGACY_STREAM | \
		     CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* The newest variant that is not newer than asked for. */
static CUresult resolve(const char *name, int version, cuuint64_t flags, void **entry,
			CUdriverProcAddressQueryResult *status)
{
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	int best = -1;
	bool known = false;

	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
		int needed = variants[i].version;

		if (strcmp(variants[i].name, name))
			continue;
		known = true;
		if (per_thread && variants[i].thread_version > needed)
			needed = variants[i].thread_version;
		if (needed <= version && (best < 0 || variants[i].version > variants[best].version))
			best = (int)i;
	}
	*status = best >= 0 ? CU_GET_PROC_ADDRESS_SUCCESS :
		  known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT :
			  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	*entry = best < 0 ? NULL :
		 per_thread ? variants[best].thread_entry : variants[best].entry;
	return best < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **entry, int version,
					   cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	DRIVER_CALL;
	CUdriverProcAddressQueryResult found;
	CUresult result;

	if (!name || !entry || flags & ~(cuuint64_t)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	result = resolve(name, version, flags, entry, &found);
	if (status)
		*status = found;
	return result;
}

DRIVER_EXPORT CUresult cuGetProcAddress(const char *name, void **entry, int version,
					cuuint64_t flags)
{
	DRIVER_CALL;
	CUdriverProcAddressQueryResult status;

	if (!name || !entry || flags & ~(cuuint64_t)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	return resolve(name, version, flags, entry, &status);
}

/* ---- there is no profiler to switch ---- */

DRIVER_EXPORT CUresult cuProfilerInitialize(const char *config, const char *output, int mode)
{
	DRIVER_CALL;
	(void)config, (void)output, (void)mode;
	return CUDA_ERROR_PROFILER_DISABLED;
}

DRIVER_EXPORT CUresult cuProfilerStart(void)
{
	DRIVER_CALL;
	return driver_ready();
}

DRIVER_EXPORT CUresult cuProfilerStop(void)
{
	DRIVER_CALL;
	return driver_ready();
}
