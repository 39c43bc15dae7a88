/* pace.h - before more is posted (pace.c). */
#ifndef FARBUS_CLIENT_PACE_H
#define FARBUS_CLIENT_PACE_H

#include "../client.h"

/* Wait, if needed, before posting more work to a stream (named as on the wire), with
 * that many pieces of copies. */
void client_stream_pace(uint64_t stream, unsigned weight, size_t pieces);

#endif
