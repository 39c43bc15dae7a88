/* details.h - the words in which remoting/spec/details.py says what a call was about, for the entries that are
 * generated from it: `traced` is the call, which has returned, and what they name are its parameters.
 */
#ifndef FARBUS_CLIENT_DETAILS_H
#define FARBUS_CLIENT_DETAILS_H

#include "../ground/trace.h"

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
