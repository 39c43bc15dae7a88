/* cudart.h - what a libcuda look-alike needs so that NVIDIA's CUDA runtime
 * accepts it: the private export tables that cudart asks cuGetExportTable for.
 *
 * Used by the shim and by the software GPU.  Knows neither: it asks its host
 * through the callbacks below.  The integrity handshake is a build option
 * (CUDART_HANDSHAKE); without it static cudart before 12 and programs that use
 * the driver API directly still work.
 */
#ifndef FARBUS_CUDART_CUDART_H
#define FARBUS_CUDART_CUDART_H

#include "../generated/cuda_abi.h"

/* What the tables need to know of the driver around them.  All of it must agree
 * with what the driver API answers: cudart checks. */
struct cudart_host {
	int (*driver_version)(void);
	int (*device_count)(void);
	/* Version-1 UUID and PCI address of a device. */
	CUresult (*device_identity)(int ordinal, CUuuid *uuid, int pci[3]);
	/* The handle of a device's primary context, without activating it. */
	CUresult (*primary_context)(CUdevice device, CUcontext *context);
	CUresult (*current_context)(CUcontext *context);
	CUresult (*context_device)(CUcontext context, CUdevice *device);
	/* What no two streams of the process share. */
	CUresult (*stream_number)(CUstream stream, unsigned long long *number);
	/* Load a fatbin wrapper as a module (cudart 11). */
	CUresult (*module_load)(CUmodule *module, const void *wrapper);
	/* Call visit for every kernel of a module and return their count, or -1. */
	int (*module_functions)(CUmodule module, void (*visit)(void *opaque, CUfunction function),
				void *opaque);
	/* Where the current context's device has its multiprocessors: for each pair of them (TPC) a byte
	 * for its GPC, and one for its number there.  Both arrays are malloc'ed, and become the program's. */
	CUresult (*device_layout)(uint8_t **gpcs, uint8_t **numbers);
};

/* Once, before the first table is asked for. */
void cudart_init(const struct cudart_host *host);

/* The table with this UUID, or NULL: refuse it with CUDA_ERROR_INVALID_VALUE. */
const void *cudart_export_table(const CUuuid *uuid);

/* A context is gone: run the destructors of what cudart kept with it. */
void cudart_context_destroyed(CUcontext context);

/* handshake.c, only with CUDART_HANDSHAKE. */
struct cudart_integrity {
	const void *cudart_table;
	const void *integrity_table;
	const void *integrity_function;
	const struct cudart_host *host;
};
CUresult cudart_integrity_answer(const struct cudart_integrity *integrity, uint32_t version,
				 uint64_t seconds, uint64_t answer[2]);

#endif
