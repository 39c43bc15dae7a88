/* library.h - what libraries (library.c), their kernels (kernel.c) and launches (launch.c) share. */
#ifndef FARBUS_SERVER_LIBRARY_H
#define FARBUS_SERVER_LIBRARY_H

#include "../server_ops.h"

#include "../../wire/cursor.h"
#include "../../wire/image.h"
#include "../../wire/kernel.h"

/* A loaded image.  Kernels are named by handles in server.functions. */
struct server_library {
	struct server_context *context;
	bool is_module;
	union {
		CUlibrary library;
		CUmodule module;
	};
	void *packed;			/* the driver may keep pointers into it */
	struct image_unpacked image;
	void **kernels;			/* CUkernel or CUfunction */
	uint64_t *handles;
	uint32_t count;
	bool enumerated;
	struct server_library *next;	/* of those that ended with their context */
};

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

#endif
