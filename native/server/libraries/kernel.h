/* kernel.h - kernels of libraries (kernel.c). */
#ifndef FARBUS_SERVER_KERNEL_H
#define FARBUS_SERVER_KERNEL_H

#include "library.h"

/* The device of the current context, or the first one: where kernels are described. */
CUdevice server_call_device(const struct server_call *call);
/* Append a kernel's description; false when it does not fit. */
bool server_kernel_describe(const struct server_call *call, const struct server_library *library, CUdevice device,
			    uint32_t index, const char *name, struct wire_writer *writer);
/* Describe kernels from `first` on, as many as fit. */
void server_kernels_describe(const struct server_call *call, const struct server_library *library, CUdevice device,
			     uint32_t first, struct wire_writer *writer);
/* Where a parameter lies; CUDA_ERROR_INVALID_VALUE behind the last one. */
CUresult server_kernel_parameter(const struct server_call *call, bool is_module, void *kernel, size_t index,
				 struct wire_parameter *parameter);
/* The client's name of a kernel that the driver shows, or 0. */
uint64_t server_function_name(struct server_call *call, CUfunction function);

#endif
