/* driver_event.h - recording events and waiting for them, for graphs. */
#ifndef FARBUS_SOFTGPU_DRIVER_EVENT_H
#define FARBUS_SOFTGPU_DRIVER_EVENT_H

#include "driver_stream.h"

/* The event is one that the caller has looked up. */
CUresult driver_event_submit_record(CUevent event, struct CUstream_st *stream);
CUresult driver_event_submit_wait(CUevent event, struct CUstream_st *stream);
bool driver_event_is_of(CUevent event, const struct CUctx_st *context);

#endif
