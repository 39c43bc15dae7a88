"""Types of the CUDA driver API: scalars, handles, aliases, structures.

Facts of NVIDIA's interface, as of the CUDA 13.0 driver API (cuda.h,
CUDA_VERSION 13000); ``tests/remoting/test_abi.py`` compares sizes and field
offsets with an installed header.

The text form: a line ``struct NAME`` or ``union NAME`` (optionally ``align N``,
bytes) opens a type, indented lines are its members in C, ``struct {`` ... ``} name``
nests, and an empty line ends it.
"""

from __future__ import annotations

from typing import Final

#: Constants that C programs know as macros.
MACROS: Final[dict[str, str]] = {
    "CUDA_VERSION": "13000",
    "CU_IPC_HANDLE_SIZE": "64",
    "CU_STREAM_LEGACY": "((CUstream)0x1)",
    "CU_STREAM_PER_THREAD": "((CUstream)0x2)",
    "CU_MEMHOSTALLOC_PORTABLE": "0x01",
    "CU_MEMHOSTALLOC_DEVICEMAP": "0x02",
    "CU_MEMHOSTALLOC_WRITECOMBINED": "0x04",
    "CU_MEMHOSTREGISTER_PORTABLE": "0x01",
    "CU_MEMHOSTREGISTER_DEVICEMAP": "0x02",
    "CU_MEMHOSTREGISTER_IOMEMORY": "0x04",
    "CU_MEMHOSTREGISTER_READ_ONLY": "0x08",
    "CUDA_ARRAY3D_LAYERED": "0x01",
    "CUDA_ARRAY3D_SURFACE_LDST": "0x02",
    "CUDA_ARRAY3D_CUBEMAP": "0x04",
    "CUDA_ARRAY3D_TEXTURE_GATHER": "0x08",
    "CUDA_ARRAY3D_DEPTH_TEXTURE": "0x10",
    "CUDA_ARRAY3D_COLOR_ATTACHMENT": "0x20",
    "CUDA_ARRAY3D_SPARSE": "0x40",
    "CUDA_ARRAY3D_DEFERRED_MAPPING": "0x80",
    "CU_GRAPH_COND_ASSIGN_DEFAULT": "0x1",
    "CU_TRSF_READ_AS_INTEGER": "0x01",
    "CU_TRSF_NORMALIZED_COORDINATES": "0x02",
    "CU_TRSF_SRGB": "0x10",
    "CU_TENSOR_MAP_NUM_QWORDS": "16",
    "CU_LAUNCH_KERNEL_REQUIRED_BLOCK_DIM": "1",
    "CU_LAUNCH_PARAM_END": "((void *)0x00)",
    "CU_LAUNCH_PARAM_BUFFER_POINTER": "((void *)0x01)",
    "CU_LAUNCH_PARAM_BUFFER_SIZE": "((void *)0x02)",
    "CU_PARAM_TR_DEFAULT": "(-1)",
    "CU_DEVICE_CPU": "((CUdevice)-1)",
    "CU_DEVICE_INVALID": "((CUdevice)-2)",
    "CU_COMPUTE_ACCELERATED_TARGET_BASE": "0x10000",
    "CU_COMPUTE_FAMILY_TARGET_BASE": "0x20000",
}

#: Opaque handles: type name -> tag of the structure it points to.
HANDLES: Final[dict[str, str]] = {
    "CUcontext": "CUctx_st",
    "CUmodule": "CUmod_st",
    "CUfunction": "CUfunc_st",
    "CUlibrary": "CUlib_st",
    "CUkernel": "CUkern_st",
    "CUarray": "CUarray_st",
    "CUmipmappedArray": "CUmipmappedArray_st",
    "CUtexref": "CUtexref_st",
    "CUsurfref": "CUsurfref_st",
    "CUevent": "CUevent_st",
    "CUstream": "CUstream_st",
    "CUgraphicsResource": "CUgraphicsResource_st",
    "CUexternalMemory": "CUextMemory_st",
    "CUexternalSemaphore": "CUextSemaphore_st",
    "CUgraph": "CUgraph_st",
    "CUgraphNode": "CUgraphNode_st",
    "CUgraphExec": "CUgraphExec_st",
    "CUmemoryPool": "CUmemPoolHandle_st",
    "CUuserObject": "CUuserObject_st",
    "CUgraphDeviceNode": "CUgraphDeviceUpdatableNode_st",
    "CUasyncCallbackHandle": "CUasyncCallbackEntry_st",
    "CUgreenCtx": "CUgreenCtx_st",
    "CUlinkState": "CUlinkState_st",
    "CUdevResourceDesc": "CUdevResourceDesc_st",
    "CUlogsCallbackHandle": "CUlogsCallbackEntry_st",
}

#: Plain typedefs, in dependency order: "underlying name".
SCALARS: Final = (
    "uint32_t cuuint32_t",
    "uint64_t cuuint64_t",
    "unsigned long long CUdeviceptr_v2",
    "CUdeviceptr_v2 CUdeviceptr",
    "int CUdevice_v1",
    "CUdevice_v1 CUdevice",
    "unsigned long long CUtexObject_v1",
    "CUtexObject_v1 CUtexObject",
    "unsigned long long CUsurfObject_v1",
    "CUsurfObject_v1 CUsurfObject",
    "cuuint64_t CUgraphConditionalHandle",
    "unsigned long long CUmemGenericAllocationHandle_v1",
    "CUmemGenericAllocationHandle_v1 CUmemGenericAllocationHandle",
    "unsigned int CUlogIterator",
    "unsigned int CUdeviceptr_v1",
)

#: Structures that came after CUDA 13.0.
NEWER_STRUCTURES: Final = frozenset({"CU_DEV_SM_RESOURCE_GROUP_PARAMS"})

#: Typedefs of structures and enumerations ("underlying name"), each emitted as
#: soon as what it names is there.
ALIASES: Final = (
    "CUmemFabricHandle_v1 CUmemFabricHandle",
    "CUipcEventHandle_v1 CUipcEventHandle",
    "CUipcMemHandle_v1 CUipcMemHandle",
    "CUstreamBatchMemOpParams_v1 CUstreamBatchMemOpParams",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 CUDA_BATCH_MEM_OP_NODE_PARAMS",
    "CUdevprop_v1 CUdevprop",
    "CUaccessPolicyWindow_v1 CUaccessPolicyWindow",
    "CUDA_KERNEL_NODE_PARAMS_v2 CUDA_KERNEL_NODE_PARAMS",
    "CUDA_MEMSET_NODE_PARAMS_v1 CUDA_MEMSET_NODE_PARAMS",
    "CUDA_HOST_NODE_PARAMS_v1 CUDA_HOST_NODE_PARAMS",
    "CUlaunchAttributeID CUkernelNodeAttrID",
    "CUlaunchAttributeValue CUkernelNodeAttrValue_v1",
    "CUkernelNodeAttrValue_v1 CUkernelNodeAttrValue",
    "CUlaunchAttributeID CUstreamAttrID",
    "CUlaunchAttributeValue CUstreamAttrValue_v1",
    "CUstreamAttrValue_v1 CUstreamAttrValue",
    "CUexecAffinitySmCount_v1 CUexecAffinitySmCount",
    "CUexecAffinityParam_v1 CUexecAffinityParam",
    "CUDA_MEMCPY2D_v2 CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D_v2 CUDA_MEMCPY3D",
    "CUDA_MEMCPY3D_PEER_v1 CUDA_MEMCPY3D_PEER",
    "CUDA_ARRAY_DESCRIPTOR_v2 CUDA_ARRAY_DESCRIPTOR",
    "CUDA_ARRAY3D_DESCRIPTOR_v2 CUDA_ARRAY3D_DESCRIPTOR",
    "CUDA_ARRAY_SPARSE_PROPERTIES_v1 CUDA_ARRAY_SPARSE_PROPERTIES",
    "CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 CUDA_ARRAY_MEMORY_REQUIREMENTS",
    "CUDA_RESOURCE_DESC_v1 CUDA_RESOURCE_DESC",
    "CUDA_TEXTURE_DESC_v1 CUDA_TEXTURE_DESC",
    "CUDA_RESOURCE_VIEW_DESC_v1 CUDA_RESOURCE_VIEW_DESC",
    "CUDA_POINTER_ATTRIBUTE_P2P_TOKENS_v1 CUDA_POINTER_ATTRIBUTE_P2P_TOKENS",
    "CUDA_LAUNCH_PARAMS_v1 CUDA_LAUNCH_PARAMS",
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 CUDA_EXTERNAL_MEMORY_HANDLE_DESC",
    "CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1 CUDA_EXTERNAL_MEMORY_BUFFER_DESC",
    "CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1 CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC",
    "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_v1 CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC",
    "CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_v1 CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS",
    "CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_v1 CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS",
    "CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v1 CUDA_EXT_SEM_SIGNAL_NODE_PARAMS",
    "CUDA_EXT_SEM_WAIT_NODE_PARAMS_v1 CUDA_EXT_SEM_WAIT_NODE_PARAMS",
    "CUarrayMapInfo_v1 CUarrayMapInfo",
    "CUmemLocation_v1 CUmemLocation",
    "CUmemAllocationProp_v1 CUmemAllocationProp",
    "CUmulticastObjectProp_v1 CUmulticastObjectProp",
    "CUmemAccessDesc_v1 CUmemAccessDesc",
    "CUgraphExecUpdateResultInfo_v1 CUgraphExecUpdateResultInfo",
    "CUmemPoolProps_v1 CUmemPoolProps",
    "CUmemPoolPtrExportData_v1 CUmemPoolPtrExportData",
    "CUmemcpyAttributes_v1 CUmemcpyAttributes",
    "CUoffset3D_v1 CUoffset3D",
    "CUextent3D_v1 CUextent3D",
    "CUmemcpy3DOperand_v1 CUmemcpy3DOperand",
    "CUDA_MEMCPY3D_BATCH_OP_v1 CUDA_MEMCPY3D_BATCH_OP",
    "CUDA_MEM_ALLOC_NODE_PARAMS_v1 CUDA_MEM_ALLOC_NODE_PARAMS",
    "CUdevResource_v1 CUdevResource",
)

CALLBACKS: Final = (
    "void (*CUasyncCallback)(CUasyncNotificationInfo *info, void *userData, CUasyncCallbackHandle callback)",
    "void (*CUhostFn)(void *userData)",
    "void (*CUstreamCallback)(CUstream hStream, CUresult status, void *userData)",
    "size_t (*CUoccupancyB2DSize)(int blockSize)",
    "void (*CUlogsCallback)(void *data, CUlogLevel logLevel, char *message, size_t length)",
)

STRUCTURES: Final = """
struct CUuuid
  char bytes[16]

struct CUmemFabricHandle_v1
  unsigned char data[64]

struct CUipcEventHandle_v1
  char reserved[64]

struct CUipcMemHandle_v1
  char reserved[64]

union CUstreamBatchMemOpParams_v1
  CUstreamBatchMemOpType operation
  struct {
    CUstreamBatchMemOpType operation
    CUdeviceptr address
    union {
      cuuint32_t value
      cuuint64_t value64
    }
    unsigned int flags
    CUdeviceptr alias
  } waitValue
  struct {
    CUstreamBatchMemOpType operation
    CUdeviceptr address
    union {
      cuuint32_t value
      cuuint64_t value64
    }
    unsigned int flags
    CUdeviceptr alias
  } writeValue
  struct {
    CUstreamBatchMemOpType operation
    unsigned int flags
  } flushRemoteWrites
  struct {
    CUstreamBatchMemOpType operation
    unsigned int flags
  } memoryBarrier
  cuuint64_t pad[6]

struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1
  CUcontext ctx
  unsigned int count
  CUstreamBatchMemOpParams *paramArray
  unsigned int flags

struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v2
  CUcontext ctx
  unsigned int count
  CUstreamBatchMemOpParams *paramArray
  unsigned int flags

struct CUasyncNotificationInfo
  CUasyncNotificationType type
  union {
    struct {
      unsigned long long bytesOverBudget
    } overBudget
  } info

struct CUdevprop_v1
  int maxThreadsPerBlock
  int maxThreadsDim[3]
  int maxGridSize[3]
  int sharedMemPerBlock
  int totalConstantMemory
  int SIMDWidth
  int memPitch
  int regsPerBlock
  int clockRate
  int textureAlign

struct CUaccessPolicyWindow_v1
  void *base_ptr
  size_t num_bytes
  float hitRatio
  CUaccessProperty hitProp
  CUaccessProperty missProp

struct CUDA_KERNEL_NODE_PARAMS_v1
  CUfunction func
  unsigned int gridDimX
  unsigned int gridDimY
  unsigned int gridDimZ
  unsigned int blockDimX
  unsigned int blockDimY
  unsigned int blockDimZ
  unsigned int sharedMemBytes
  void **kernelParams
  void **extra

struct CUDA_KERNEL_NODE_PARAMS_v2
  CUfunction func
  unsigned int gridDimX
  unsigned int gridDimY
  unsigned int gridDimZ
  unsigned int blockDimX
  unsigned int blockDimY
  unsigned int blockDimZ
  unsigned int sharedMemBytes
  void **kernelParams
  void **extra
  CUkernel kern
  CUcontext ctx

struct CUDA_KERNEL_NODE_PARAMS_v3
  CUfunction func
  unsigned int gridDimX
  unsigned int gridDimY
  unsigned int gridDimZ
  unsigned int blockDimX
  unsigned int blockDimY
  unsigned int blockDimZ
  unsigned int sharedMemBytes
  void **kernelParams
  void **extra
  CUkernel kern
  CUcontext ctx

struct CUDA_MEMSET_NODE_PARAMS_v1
  CUdeviceptr dst
  size_t pitch
  unsigned int value
  unsigned int elementSize
  size_t width
  size_t height

struct CUDA_MEMSET_NODE_PARAMS_v2
  CUdeviceptr dst
  size_t pitch
  unsigned int value
  unsigned int elementSize
  size_t width
  size_t height
  CUcontext ctx

struct CUDA_HOST_NODE_PARAMS_v1
  CUhostFn fn
  void *userData

struct CUDA_HOST_NODE_PARAMS_v2
  CUhostFn fn
  void *userData

struct CUDA_CONDITIONAL_NODE_PARAMS
  CUgraphConditionalHandle handle
  CUgraphConditionalNodeType type
  unsigned int size
  CUgraph *phGraph_out
  CUcontext ctx

struct CUgraphEdgeData
  unsigned char from_port
  unsigned char to_port
  unsigned char type
  unsigned char reserved[5]

struct CUDA_GRAPH_INSTANTIATE_PARAMS
  cuuint64_t flags
  CUstream hUploadStream
  CUgraphNode hErrNode_out
  CUgraphInstantiateResult result_out

struct CUlaunchMemSyncDomainMap
  unsigned char default_
  unsigned char remote

union CUlaunchAttributeValue
  char pad[64]
  CUaccessPolicyWindow accessPolicyWindow
  int cooperative
  CUsynchronizationPolicy syncPolicy
  struct {
    unsigned int x
    unsigned int y
    unsigned int z
  } clusterDim
  CUclusterSchedulingPolicy clusterSchedulingPolicyPreference
  int programmaticStreamSerializationAllowed
  struct {
    CUevent event
    int flags
    int triggerAtBlockStart
  } programmaticEvent
  struct {
    CUevent event
    int flags
  } launchCompletionEvent
  int priority
  CUlaunchMemSyncDomainMap memSyncDomainMap
  CUlaunchMemSyncDomain memSyncDomain
  struct {
    unsigned int x
    unsigned int y
    unsigned int z
  } preferredClusterDim
  struct {
    int deviceUpdatable
    CUgraphDeviceNode devNode
  } deviceUpdatableKernelNode
  unsigned int sharedMemCarveout
  unsigned int nvlinkUtilCentricScheduling

struct CUlaunchAttribute
  CUlaunchAttributeID id
  char pad[4]
  CUlaunchAttributeValue value

struct CUlaunchConfig
  unsigned int gridDimX
  unsigned int gridDimY
  unsigned int gridDimZ
  unsigned int blockDimX
  unsigned int blockDimY
  unsigned int blockDimZ
  unsigned int sharedMemBytes
  CUstream hStream
  CUlaunchAttribute *attrs
  unsigned int numAttrs

struct CUexecAffinitySmCount_v1
  unsigned int val

struct CUexecAffinityParam_v1
  CUexecAffinityType type
  union {
    CUexecAffinitySmCount smCount
  } param

struct CUctxCigParam
  CUcigDataType sharedDataType
  void *sharedData

struct CUctxCreateParams
  CUexecAffinityParam *execAffinityParams
  int numExecAffinityParams
  CUctxCigParam *cigParams

struct CUlibraryHostUniversalFunctionAndDataTable
  void *functionTable
  size_t functionWindowSize
  void *dataTable
  size_t dataWindowSize

struct CUDA_MEMCPY2D_v1
  unsigned int srcXInBytes
  unsigned int srcY
  CUmemorytype srcMemoryType
  const void *srcHost
  CUdeviceptr_v1 srcDevice
  CUarray srcArray
  unsigned int srcPitch
  unsigned int dstXInBytes
  unsigned int dstY
  CUmemorytype dstMemoryType
  void *dstHost
  CUdeviceptr_v1 dstDevice
  CUarray dstArray
  unsigned int dstPitch
  unsigned int WidthInBytes
  unsigned int Height

struct CUDA_MEMCPY3D_v1
  unsigned int srcXInBytes
  unsigned int srcY
  unsigned int srcZ
  unsigned int srcLOD
  CUmemorytype srcMemoryType
  const void *srcHost
  CUdeviceptr_v1 srcDevice
  CUarray srcArray
  void *reserved0
  unsigned int srcPitch
  unsigned int srcHeight
  unsigned int dstXInBytes
  unsigned int dstY
  unsigned int dstZ
  unsigned int dstLOD
  CUmemorytype dstMemoryType
  void *dstHost
  CUdeviceptr_v1 dstDevice
  CUarray dstArray
  void *reserved1
  unsigned int dstPitch
  unsigned int dstHeight
  unsigned int WidthInBytes
  unsigned int Height
  unsigned int Depth

struct CUDA_MEMCPY2D_v2
  size_t srcXInBytes
  size_t srcY
  CUmemorytype srcMemoryType
  const void *srcHost
  CUdeviceptr srcDevice
  CUarray srcArray
  size_t srcPitch
  size_t dstXInBytes
  size_t dstY
  CUmemorytype dstMemoryType
  void *dstHost
  CUdeviceptr dstDevice
  CUarray dstArray
  size_t dstPitch
  size_t WidthInBytes
  size_t Height

struct CUDA_MEMCPY3D_v2
  size_t srcXInBytes
  size_t srcY
  size_t srcZ
  size_t srcLOD
  CUmemorytype srcMemoryType
  const void *srcHost
  CUdeviceptr srcDevice
  CUarray srcArray
  void *reserved0
  size_t srcPitch
  size_t srcHeight
  size_t dstXInBytes
  size_t dstY
  size_t dstZ
  size_t dstLOD
  CUmemorytype dstMemoryType
  void *dstHost
  CUdeviceptr dstDevice
  CUarray dstArray
  void *reserved1
  size_t dstPitch
  size_t dstHeight
  size_t WidthInBytes
  size_t Height
  size_t Depth

struct CUDA_MEMCPY3D_PEER_v1
  size_t srcXInBytes
  size_t srcY
  size_t srcZ
  size_t srcLOD
  CUmemorytype srcMemoryType
  const void *srcHost
  CUdeviceptr srcDevice
  CUarray srcArray
  CUcontext srcContext
  size_t srcPitch
  size_t srcHeight
  size_t dstXInBytes
  size_t dstY
  size_t dstZ
  size_t dstLOD
  CUmemorytype dstMemoryType
  void *dstHost
  CUdeviceptr dstDevice
  CUarray dstArray
  CUcontext dstContext
  size_t dstPitch
  size_t dstHeight
  size_t WidthInBytes
  size_t Height
  size_t Depth

struct CUDA_MEMCPY_NODE_PARAMS
  int flags
  int reserved
  CUcontext copyCtx
  CUDA_MEMCPY3D copyParams

struct CUDA_ARRAY_DESCRIPTOR_v1
  unsigned int Width
  unsigned int Height
  CUarray_format Format
  unsigned int NumChannels

struct CUDA_ARRAY3D_DESCRIPTOR_v1
  unsigned int Width
  unsigned int Height
  unsigned int Depth
  CUarray_format Format
  unsigned int NumChannels
  unsigned int Flags

struct CUDA_ARRAY_DESCRIPTOR_v2
  size_t Width
  size_t Height
  CUarray_format Format
  unsigned int NumChannels

struct CUDA_ARRAY3D_DESCRIPTOR_v2
  size_t Width
  size_t Height
  size_t Depth
  CUarray_format Format
  unsigned int NumChannels
  unsigned int Flags

struct CUDA_ARRAY_SPARSE_PROPERTIES_v1
  struct {
    unsigned int width
    unsigned int height
    unsigned int depth
  } tileExtent
  unsigned int miptailFirstLevel
  unsigned long long miptailSize
  unsigned int flags
  unsigned int reserved[4]

struct CUDA_ARRAY_MEMORY_REQUIREMENTS_v1
  size_t size
  size_t alignment
  unsigned int reserved[4]

struct CUDA_RESOURCE_DESC_v1
  CUresourcetype resType
  union {
    struct {
      CUarray hArray
    } array
    struct {
      CUmipmappedArray hMipmappedArray
    } mipmap
    struct {
      CUdeviceptr devPtr
      CUarray_format format
      unsigned int numChannels
      size_t sizeInBytes
    } linear
    struct {
      CUdeviceptr devPtr
      CUarray_format format
      unsigned int numChannels
      size_t width
      size_t height
      size_t pitchInBytes
    } pitch2D
    struct {
      int reserved[32]
    } reserved
  } res
  unsigned int flags

struct CUDA_TEXTURE_DESC_v1
  CUaddress_mode addressMode[3]
  CUfilter_mode filterMode
  unsigned int flags
  unsigned int maxAnisotropy
  CUfilter_mode mipmapFilterMode
  float mipmapLevelBias
  float minMipmapLevelClamp
  float maxMipmapLevelClamp
  float borderColor[4]
  int reserved[12]

struct CUDA_RESOURCE_VIEW_DESC_v1
  CUresourceViewFormat format
  size_t width
  size_t height
  size_t depth
  unsigned int firstMipmapLevel
  unsigned int lastMipmapLevel
  unsigned int firstLayer
  unsigned int lastLayer
  unsigned int reserved[16]

struct CUtensorMap align 128
  cuuint64_t opaque[16]

struct CUDA_POINTER_ATTRIBUTE_P2P_TOKENS_v1
  unsigned long long p2pToken
  unsigned int vaSpaceToken

struct CUDA_LAUNCH_PARAMS_v1
  CUfunction function
  unsigned int gridDimX
  unsigned int gridDimY
  unsigned int gridDimZ
  unsigned int blockDimX
  unsigned int blockDimY
  unsigned int blockDimZ
  unsigned int sharedMemBytes
  CUstream hStream
  void **kernelParams

struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1
  CUexternalMemoryHandleType type
  union {
    int fd
    struct {
      void *handle
      const void *name
    } win32
    const void *nvSciBufObject
  } handle
  unsigned long long size
  unsigned int flags
  unsigned int reserved[16]

struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1
  unsigned long long offset
  unsigned long long size
  unsigned int flags
  unsigned int reserved[16]

struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1
  unsigned long long offset
  CUDA_ARRAY3D_DESCRIPTOR arrayDesc
  unsigned int numLevels
  unsigned int reserved[16]

struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_v1
  CUexternalSemaphoreHandleType type
  union {
    int fd
    struct {
      void *handle
      const void *name
    } win32
    const void *nvSciSyncObj
  } handle
  unsigned int flags
  unsigned int reserved[16]

struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_v1
  struct {
    struct {
      unsigned long long value
    } fence
    union {
      void *fence
      unsigned long long reserved
    } nvSciSync
    struct {
      unsigned long long key
    } keyedMutex
    unsigned int reserved[12]
  } params
  unsigned int flags
  unsigned int reserved[16]

struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_v1
  struct {
    struct {
      unsigned long long value
    } fence
    union {
      void *fence
      unsigned long long reserved
    } nvSciSync
    struct {
      unsigned long long key
      unsigned int timeoutMs
    } keyedMutex
    unsigned int reserved[10]
  } params
  unsigned int flags
  unsigned int reserved[16]

struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v1
  CUexternalSemaphore *extSemArray
  const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray
  unsigned int numExtSems

struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2
  CUexternalSemaphore *extSemArray
  const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray
  unsigned int numExtSems

struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_v1
  CUexternalSemaphore *extSemArray
  const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray
  unsigned int numExtSems

struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2
  CUexternalSemaphore *extSemArray
  const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray
  unsigned int numExtSems

struct CUarrayMapInfo_v1
  CUresourcetype resourceType
  union {
    CUmipmappedArray mipmap
    CUarray array
  } resource
  CUarraySparseSubresourceType subresourceType
  union {
    struct {
      unsigned int level
      unsigned int layer
      unsigned int offsetX
      unsigned int offsetY
      unsigned int offsetZ
      unsigned int extentWidth
      unsigned int extentHeight
      unsigned int extentDepth
    } sparseLevel
    struct {
      unsigned int layer
      unsigned long long offset
      unsigned long long size
    } miptail
  } subresource
  CUmemOperationType memOperationType
  CUmemHandleType memHandleType
  union {
    CUmemGenericAllocationHandle memHandle
  } memHandle
  unsigned long long offset
  unsigned int deviceBitMask
  unsigned int flags
  unsigned int reserved[2]

struct CUmemLocation_v1
  CUmemLocationType type
  int id

struct CUmemAllocationProp_v1
  CUmemAllocationType type
  CUmemAllocationHandleType requestedHandleTypes
  CUmemLocation location
  void *win32HandleMetaData
  struct {
    unsigned char compressionType
    unsigned char gpuDirectRDMACapable
    unsigned short usage
    unsigned char reserved[4]
  } allocFlags

struct CUmulticastObjectProp_v1
  unsigned int numDevices
  size_t size
  unsigned long long handleTypes
  unsigned long long flags

struct CUmemAccessDesc_v1
  CUmemLocation location
  CUmemAccess_flags flags

struct CUgraphExecUpdateResultInfo_v1
  CUgraphExecUpdateResult result
  CUgraphNode errorNode
  CUgraphNode errorFromNode

struct CUmemPoolProps_v1
  CUmemAllocationType allocType
  CUmemAllocationHandleType handleTypes
  CUmemLocation location
  void *win32SecurityAttributes
  size_t maxSize
  unsigned short usage
  unsigned char reserved[54]

struct CUmemPoolPtrExportData_v1
  unsigned char reserved[64]

struct CUmemcpyAttributes_v1
  CUmemcpySrcAccessOrder srcAccessOrder
  CUmemLocation srcLocHint
  CUmemLocation dstLocHint
  unsigned int flags

struct CUoffset3D_v1
  size_t x
  size_t y
  size_t z

struct CUextent3D_v1
  size_t width
  size_t height
  size_t depth

struct CUmemcpy3DOperand_v1
  CUmemcpy3DOperandType type
  union {
    struct {
      CUdeviceptr ptr
      size_t rowLength
      size_t layerHeight
      CUmemLocation locHint
    } ptr
    struct {
      CUarray array
      CUoffset3D offset
    } array
  } op

struct CUDA_MEMCPY3D_BATCH_OP_v1
  CUmemcpy3DOperand src
  CUmemcpy3DOperand dst
  CUextent3D extent
  CUmemcpySrcAccessOrder srcAccessOrder
  unsigned int flags

struct CUDA_MEM_ALLOC_NODE_PARAMS_v1
  CUmemPoolProps poolProps
  const CUmemAccessDesc *accessDescs
  size_t accessDescCount
  size_t bytesize
  CUdeviceptr dptr

struct CUDA_MEM_ALLOC_NODE_PARAMS_v2
  CUmemPoolProps poolProps
  const CUmemAccessDesc *accessDescs
  size_t accessDescCount
  size_t bytesize
  CUdeviceptr dptr

struct CUDA_MEM_FREE_NODE_PARAMS
  CUdeviceptr dptr

struct CUDA_CHILD_GRAPH_NODE_PARAMS
  CUgraph graph
  CUgraphChildGraphNodeOwnership ownership

struct CUDA_EVENT_RECORD_NODE_PARAMS
  CUevent event

struct CUDA_EVENT_WAIT_NODE_PARAMS
  CUevent event

struct CUgraphNodeParams
  CUgraphNodeType type
  int reserved0[3]
  union {
    long long reserved1[29]
    CUDA_KERNEL_NODE_PARAMS_v3 kernel
    CUDA_MEMCPY_NODE_PARAMS memcpy
    CUDA_MEMSET_NODE_PARAMS_v2 memset
    CUDA_HOST_NODE_PARAMS_v2 host
    CUDA_CHILD_GRAPH_NODE_PARAMS graph
    CUDA_EVENT_WAIT_NODE_PARAMS eventWait
    CUDA_EVENT_RECORD_NODE_PARAMS eventRecord
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 extSemSignal
    CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 extSemWait
    CUDA_MEM_ALLOC_NODE_PARAMS_v2 alloc
    CUDA_MEM_FREE_NODE_PARAMS free
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 memOp
    CUDA_CONDITIONAL_NODE_PARAMS conditional
  }
  long long reserved2

struct CUcheckpointLockArgs
  unsigned int timeoutMs
  unsigned int reserved0
  cuuint64_t reserved1[7]

struct CUcheckpointCheckpointArgs
  cuuint64_t reserved[8]

struct CUcheckpointGpuPair
  CUuuid oldUuid
  CUuuid newUuid

struct CUcheckpointRestoreArgs
  CUcheckpointGpuPair *gpuPairs
  unsigned int gpuPairsCount
  char reserved[44]
  cuuint64_t reserved1

struct CUcheckpointUnlockArgs
  cuuint64_t reserved[8]

struct CUmemDecompressParams
  size_t srcNumBytes
  size_t dstNumBytes
  cuuint32_t *dstActBytes
  const void *src
  void *dst
  CUmemDecompressAlgorithm algo
  unsigned char padding[20]

struct CUdevSmResource
  unsigned int smCount
  unsigned int minSmPartitionSize
  unsigned int smCoscheduledAlignment

struct CUdevResource_v1
  CUdevResourceType type
  unsigned char _internal_padding[92]
  union {
    CUdevSmResource sm
    unsigned char _oversize[48]
  }

struct CU_DEV_SM_RESOURCE_GROUP_PARAMS
  unsigned int smCount
  unsigned int coscheduledSmCount
  unsigned int preferredCoscheduledSmCount
  unsigned int flags
  unsigned int reserved[12]
"""
