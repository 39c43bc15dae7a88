/* details.h - what the line of a call says of it beside its result (details.c), and the words in which
 * remoting/spec/details.py tells the entries that are generated from it: `traced` is the call, which has returned, and what
 * they name are its parameters.
 */
#ifndef FARBUS_CLIENT_DETAILS_H
#define FARBUS_CLIENT_DETAILS_H

#include "../ground/trace.h"

/* ---- between client_trace_returned and client_trace_end ---- */

/* An array, which has no address. */
#define CLIENT_TRACE_ARRAY UINT64_MAX
#define CLIENT_TRACE_PLACE(at) \
	_Generic((at), CUarray: CLIENT_TRACE_ARRAY, default: (uint64_t)(uintptr_t)(at))

/* A box, in bytes: nothing where they are too many. */
void client_trace_bytes(struct client_trace_call *call, uint64_t width, uint64_t height, uint64_t depth);
void client_trace_copy(struct client_trace_call *call, uint64_t to, uint64_t from);
void client_trace_batch(struct client_trace_call *call, const CUdeviceptr *to, const CUdeviceptr *from,
			const size_t *sizes, size_t count);
/* A copy that the thread's call has made, among others; and all of them, which the call has then been. */
void client_trace_part(uint64_t to, uint64_t from, uint64_t width, uint64_t height, uint64_t depth);
void client_trace_parts(struct client_trace_call *call);
/* What an array of so many levels takes, without what lies between its rows: nothing where its texels have no bytes of
 * their own, or its memory comes otherwise. */
void client_trace_array(struct client_trace_call *call, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels);
void client_trace_kernel(struct client_trace_call *call, CUfunction function);
/* Its grid and its block. */
void client_trace_shape(struct client_trace_call *call, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z);
void client_trace_image(struct client_trace_call *call, const void *loaded);

/* ---- the words ---- */

/* Behind pointers there is something for sure where the call has found it. */
#define WHEN_DONE(says) (traced.result == CUDA_SUCCESS ? says : (void)0)

#define AREA(width, height, element) client_trace_bytes(&traced, width, height, element)
#define BYTES(count) AREA(count, 1, 1)

#define COPY(to, from, count)                                                               \
	(client_trace_copy(&traced, CLIENT_TRACE_PLACE(to), CLIENT_TRACE_PLACE(from)), BYTES(count))
#define BATCH(to, from, sizes, count) WHEN_DONE(client_trace_batch(&traced, to, from, sizes, count))

#define PARTS() WHEN_DONE(client_trace_parts(&traced))

/* From any of the structures that describe an array. */
#define FLAT(array)                                                                         \
	WHEN_DONE(client_trace_array(&traced, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = array->Width, \
		  .Height = array->Height, .Format = array->Format, .NumChannels = array->NumChannels }, 1))
#define DEEP(array, levels)                                                                 \
	WHEN_DONE(client_trace_array(&traced, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = array->Width, \
		  .Height = array->Height, .Depth = array->Depth, .Format = array->Format,  \
		  .NumChannels = array->NumChannels, .Flags = array->Flags }, levels))

/* One side of a CUDA_MEMCPY2D or CUDA_MEMCPY3D. */
#define SIDE(box, side)                                                                     \
	(box->side##MemoryType == CU_MEMORYTYPE_ARRAY ? CLIENT_TRACE_ARRAY                  \
	 : box->side##MemoryType == CU_MEMORYTYPE_HOST ? CLIENT_TRACE_PLACE(box->side##Host) \
						       : CLIENT_TRACE_PLACE(box->side##Device))
#define BOX(box, depth)                                                                     \
	WHEN_DONE((client_trace_copy(&traced, SIDE(box, dst), SIDE(box, src)),              \
		   AREA(box->WidthInBytes, box->Height, depth)))

#define KERNEL(function) client_trace_kernel(&traced, function)
#define LAUNCH(function, ...) (KERNEL(function), client_trace_shape(&traced, __VA_ARGS__))
#define CONFIGURED(function, config)                                                        \
	(KERNEL(function),                                                                  \
	 WHEN_DONE(client_trace_shape(&traced, config->gridDimX, config->gridDimY, config->gridDimZ, \
				      config->blockDimX, config->blockDimY, config->blockDimZ)))

#define IMAGE(place) WHEN_DONE(client_trace_image(&traced, *place))

#endif
