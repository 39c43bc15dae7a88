/* stream.h - streams and events (stream.c). */
#ifndef FARBUS_SERVER_STREAM_H
#define FARBUS_SERVER_STREAM_H

#include "../server_ops.h"

/* Name an event that the driver has just made or opened; it is destroyed where it can't be. */
CUresult server_place_event(struct server_call *call, uint64_t handle, CUevent event);

#endif
