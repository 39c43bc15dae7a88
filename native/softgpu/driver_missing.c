#include "driver_device.h"

/* Functions of the driver API that this driver does not have yet.
 *
 * cuGetProcAddress answers "not found" for them, which is how the CUDA runtime
 * and its libraries learn what they can't use.  A program that was linked
 * against them by name still starts, and learns at the call. */
#define MISSING(name)				\
	DRIVER_EXPORT CUresult name(void);	\
	DRIVER_EXPORT CUresult name(void)	\
	{					\
		return driver_unsupported(#name);	\
	}

MISSING(cuDestroyExternalMemory)
MISSING(cuDestroyExternalSemaphore)
MISSING(cuDeviceRegisterAsyncNotification)
MISSING(cuDeviceUnregisterAsyncNotification)
MISSING(cuExternalMemoryGetMappedBuffer)
MISSING(cuExternalMemoryGetMappedMipmappedArray)
MISSING(cuFlushGPUDirectRDMAWrites)
MISSING(cuFuncGetParamCount)
MISSING(cuGraphAddExternalSemaphoresSignalNode)
MISSING(cuGraphAddExternalSemaphoresWaitNode)
MISSING(cuGraphExecExternalSemaphoresSignalNodeSetParams)
MISSING(cuGraphExecExternalSemaphoresWaitNodeSetParams)
MISSING(cuGraphExternalSemaphoresSignalNodeGetParams)
MISSING(cuGraphExternalSemaphoresSignalNodeSetParams)
MISSING(cuGraphExternalSemaphoresWaitNodeGetParams)
MISSING(cuGraphExternalSemaphoresWaitNodeSetParams)
MISSING(cuGraphicsMapResources)
MISSING(cuGraphicsResourceGetMappedEglFrame)
MISSING(cuGraphicsResourceGetMappedMipmappedArray)
MISSING(cuGraphicsResourceGetMappedPointer_v2)
MISSING(cuGraphicsResourceSetMapFlags_v2)
MISSING(cuGraphicsSubResourceGetMappedArray)
MISSING(cuGraphicsUnmapResources)
MISSING(cuGraphicsUnregisterResource)
MISSING(cuImportExternalMemory)
MISSING(cuImportExternalSemaphore)
MISSING(cuKernelGetParamCount)
MISSING(cuLaunchCooperativeKernelMultiDevice)
MISSING(cuMemDiscardAndPrefetchBatchAsync)
MISSING(cuMemDiscardBatchAsync)
MISSING(cuMemGetHandleForAddressRange)
MISSING(cuMemGetLocationInfo)
MISSING(cuMemPrefetchBatchAsync)
MISSING(cuMemcpy3DBatchAsync_v2)
MISSING(cuMemcpy3DPeer)
MISSING(cuMemcpy3DPeerAsync)
MISSING(cuMemcpy3DWithAttributesAsync)
MISSING(cuMemcpyBatchAsync_v2)
MISSING(cuMemcpyWithAttributesAsync)
MISSING(cuSignalExternalSemaphoresAsync)
MISSING(cuStreamBeginRecaptureToGraph)
MISSING(cuSubgridCreate)
MISSING(cuSubgridWorkerGridCreate)
MISSING(cuSubgridWorksetCreate)
MISSING(cuWaitExternalSemaphoresAsync)

