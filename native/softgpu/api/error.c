#include "../driver/abi.h"

#include <stddef.h>

/* Names and texts of the driver API's results, as programs print them. */
#define ERROR(name, text) { CUDA_ERROR_##name, "CUDA_ERROR_" #name, text }

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
	{ CUDA_SUCCESS, "CUDA_SUCCESS", "no error" },
	ERROR(INVALID_VALUE, "invalid argument"),
	ERROR(OUT_OF_MEMORY, "out of memory"),
	ERROR(NOT_INITIALIZED, "initialization error"),
	ERROR(DEINITIALIZED, "driver shutting down"),
	ERROR(PROFILER_DISABLED, "profiler disabled while using external profiling tool"),
	ERROR(PROFILER_NOT_INITIALIZED, "profiler not initialized: call cudaProfilerInitialize()"),
	ERROR(PROFILER_ALREADY_STARTED, "profiler already started"),
	ERROR(PROFILER_ALREADY_STOPPED, "profiler already stopped"),
	ERROR(STUB_LIBRARY, "CUDA driver is a stub library"),
	ERROR(DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
	ERROR(NO_DEVICE, "no CUDA-capable device is detected"),
	ERROR(INVALID_DEVICE, "invalid device ordinal"),
	ERROR(DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
	ERROR(INVALID_IMAGE, "device kernel image is invalid"),
	ERROR(INVALID_CONTEXT, "invalid device context"),
	ERROR(CONTEXT_ALREADY_CURRENT, "context already current"),
	ERROR(MAP_FAILED, "mapping of buffer object failed"),
	ERROR(UNMAP_FAILED, "unmapping of buffer object failed"),
	ERROR(ARRAY_IS_MAPPED, "array is mapped"),
	ERROR(ALREADY_MAPPED, "resource already mapped"),
	ERROR(NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
	ERROR(ALREADY_ACQUIRED, "resource already acquired"),
	ERROR(NOT_MAPPED, "resource not mapped"),
	ERROR(NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
	ERROR(NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
	ERROR(ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
	ERROR(UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
	ERROR(CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
	ERROR(PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
	ERROR(INVALID_PTX, "a PTX JIT compilation failed"),
	ERROR(INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
	ERROR(NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
	ERROR(JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
	ERROR(UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
	ERROR(JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
	ERROR(UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
	ERROR(UNSUPPORTED_DEVSIDE_SYNC, "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
	ERROR(INVALID_SOURCE, "device kernel image is invalid"),
	ERROR(FILE_NOT_FOUND, "file not found"),
	ERROR(SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
	ERROR(SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
	ERROR(OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
	ERROR(INVALID_HANDLE, "invalid resource handle"),
	ERROR(ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	ERROR(NOT_FOUND, "named symbol not found"),
	ERROR(NOT_READY, "device not ready"),
	ERROR(ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	ERROR(LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
	ERROR(LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
	ERROR(LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
	ERROR(PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	ERROR(PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
	ERROR(PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
	ERROR(CONTEXT_IS_DESTROYED, "context is destroyed"),
	ERROR(ASSERT, "device-side assert triggered"),
	ERROR(TOO_MANY_PEERS, "peer mapping resources exhausted"),
	ERROR(HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	ERROR(HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	ERROR(HARDWARE_STACK_ERROR, "hardware stack error"),
	ERROR(ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
	ERROR(MISALIGNED_ADDRESS, "misaligned address"),
	ERROR(INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
	ERROR(INVALID_PC, "invalid program counter"),
	ERROR(LAUNCH_FAILED, "unspecified launch failure"),
	ERROR(COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
	ERROR(NOT_PERMITTED, "operation not permitted"),
	ERROR(NOT_SUPPORTED, "operation not supported"),
	ERROR(SYSTEM_NOT_READY, "system not yet initialized"),
	ERROR(SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
	ERROR(COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW"),
	ERROR(STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	ERROR(STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
	ERROR(STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
	ERROR(STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
	ERROR(STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
	ERROR(STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
	ERROR(STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
	ERROR(CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
	ERROR(STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
	ERROR(TIMEOUT, "wait operation timed out"),
	ERROR(GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
	ERROR(EXTERNAL_DEVICE, "an async error has occured in external entity outside of CUDA"),
	ERROR(INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration"),
	ERROR(FUNCTION_NOT_LOADED, "the function handle is not loaded when calling the requested API"),
	ERROR(INVALID_RESOURCE_TYPE, "the resource type is not valid for the requested operation"),
	ERROR(INVALID_RESOURCE_CONFIGURATION, "the resource configuration is not valid"),
	ERROR(UNKNOWN, "unknown error"),
};

static const char *find(CUresult result, int want_name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].result == result)
			return want_name ? errors[i].name : errors[i].text;
	}
	return NULL;
}

DRIVER_EXPORT CUresult cuGetErrorName(CUresult result, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = find(result, 1);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuGetErrorString(CUresult result, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = find(result, 0);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
