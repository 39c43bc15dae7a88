/* in_place.h - bytes between the transport's memory and the device (in_place.c).
 *
 * Where the transport's bytes lie in memory, the driver copies from there and to there, on
 * streams that nothing else is put in: such a copy ends whatever the program's streams wait
 * for, so it may be waited for by the thread that reads for all of them, and by one that
 * keeps others from writing.  It is only for streams that have come to the copy.
 */
#ifndef FARBUS_SERVER_IN_PLACE_H
#define FARBUS_SERVER_IN_PLACE_H

#include "../server_ops.h"

/* The call's tail to the device.  *taken: whether it was; not where the transport's bytes lie nowhere, or the stream has
 * not come to it. */
CUresult server_receive_in_place(struct server_call *call, uint64_t device, CUstream stream, bool *taken);
/* `total` bytes of the device's, as events for the call.  *sent: likewise. */
CUresult server_send_in_place(struct server_call *call, uint64_t device, size_t total, CUstream stream, bool *sent);
/* Has a stream come to its end, and so has what it would wait for?  Also false where that
 * can't be asked. */
bool server_stream_is_idle(struct server_call *call, CUstream stream);

#endif
