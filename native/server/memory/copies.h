/* copies.h - what the handlers of copies (copies.c) and the ways of their bytes (staging.c, in_place.c) share. */
#ifndef FARBUS_SERVER_COPIES_H
#define FARBUS_SERVER_COPIES_H

#include "../server_ops.h"

/* What is written in memory that the peer reads at the same time is copied by the device in pieces of this size, and twice as
 * large ones where there are many (docs/performance.md). */
#define SERVER_SHARED_BYTES (64u << 10)
#define SERVER_SHARED_MANY 8u
/* What a system call sends is copied by the device first: larger pieces cost fewer calls and headers, behind which the kernel's
 * copies are slower the more there are, and smaller ones stay in the processor's cache and leave the network something to do
 * meanwhile (docs/performance.md).  A copy that is one frame goes at once, and on AMD's processors each frame does. */
#define SERVER_CALL_BYTES (512u << 10)

/* ---- copies.c ---- */

/* Rows between this process's memory and the device; of one the pitches do not matter. */
CUDA_MEMCPY2D server_rows(bool to_device, void *host, size_t host_pitch, CUdeviceptr device, size_t pitch, size_t width,
			  size_t height);

/* ---- staging.c: through pinned memory of the server's ---- */

/* A buffer that nothing uses.  Waits for the oldest copy when there are as many
 * as may be. */
CUresult server_staging_take(struct server_call *call, struct server_staging **out);
/* The same for who has one already; *out may be NULL: then there is none more while he keeps it. */
CUresult server_staging_take_more(struct server_call *call, struct server_staging **out);
/* Nothing uses it any more. */
void server_staging_idle(struct server_context *context, struct server_staging *staging);
/* It is used by what `stream` holds now. */
CUresult server_staging_fence(struct server_call *call, struct server_staging *staging, CUstream stream);

/* ---- in_place.c: between the transport's memory and the device ----
 *
 * Where the transport's bytes lie in memory, the driver copies from there and to there, on
 * streams that nothing else is put in: such a copy ends whatever the program's streams wait
 * for, so it may be waited for by the thread that reads for all of them, and by one that
 * keeps others from writing.  It is only for streams that have come to the copy. */

/* The call's tail to the device.  *taken: whether it was; not where the transport's bytes lie nowhere, or the stream has
 * not come to it. */
CUresult server_receive_in_place(struct server_call *call, uint64_t device, CUstream stream, bool *taken);
/* `total` bytes of the device's, as events for the call.  *sent: likewise. */
CUresult server_send_in_place(struct server_call *call, uint64_t device, size_t total, CUstream stream, bool *sent);

#endif
