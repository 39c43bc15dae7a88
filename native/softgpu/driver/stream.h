/* stream.h - which stream a handle means, and whether it captures. */
#ifndef FARBUS_SOFTGPU_DRIVER_STREAM_H
#define FARBUS_SOFTGPU_DRIVER_STREAM_H

#include "queue.h"

#define DRIVER_PRIORITY_LEAST 0
#define DRIVER_PRIORITY_GREATEST (-5)

/* The stream that a handle means in the current context: NULL and
 * CU_STREAM_LEGACY the legacy one, CU_STREAM_PER_THREAD the thread's own.
 * Enters the context of the stream: its sticky error is returned.  *stream is
 * valid until the program destroys it. */
CUresult driver_stream_enter(CUstream handle, struct CUstream_st **stream);
/* The same for calls that can be captured: driver_stream_enter refuses streams
 * that capture. */
CUresult driver_stream_enter_or_capture(CUstream handle, struct CUstream_st **stream,
					bool *capturing);
/* The same without the sticky error. */
CUresult driver_stream_of(CUstream handle, struct CUstream_st **stream);

/* A priority within the range, to which others are brought. */
int driver_stream_priority(int wanted);

#endif
