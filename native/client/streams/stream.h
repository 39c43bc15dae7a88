/* stream.h - streams: when they get somewhere, and what of a device is theirs (stream.c). */
#ifndef FARBUS_CLIENT_STREAM_H
#define FARBUS_CLIENT_STREAM_H

#include "../client.h"

/* Wait until this process may do what a stream would do next, with what that waits for of the legacy stream and others. */
CUresult client_stream_reach(uint64_t stream);
/* Has the stream, named as on the wire, but a part of the multiprocessors? */
bool client_stream_is_green(uint64_t stream);

#endif
