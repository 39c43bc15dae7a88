/* host.h - host functions of streams and graphs, and copies whose bytes the server pulls (host.c). */
#ifndef FARBUS_CLIENT_HOST_H
#define FARBUS_CLIENT_HOST_H

#include "../exchange/jobs.h"

/* What a job of these kinds is run by. */
void client_host_run(struct host_job *job, bool again);
/* Post its request; where that goes, the request's first field says. */
CUresult client_host_post(struct host_job *job, enum wire_op op, const void *fixed, size_t fixed_bytes,
			  struct client_route *route);
/* Have it leave; of one that a capture forbids, which ends by itself, say so.  One that could not be posted is gone. */
CUresult client_host_posting(const struct client_route *route, uint64_t token, CUresult result);

CUresult client_host_copy(uint64_t device, size_t device_pitch, const void *host, size_t host_pitch,
			  size_t width, size_t height, uint64_t stream_wire);
CUresult client_host_copy_captured(uint64_t device, size_t device_pitch, const void *host,
				   size_t host_pitch, size_t width, size_t height,
				   uint64_t stream_wire);
/* Name a host function that graphs call, until the server says that none does any more;
 * one that is called once, and no stream waits for; and one that was never used. */
CUresult client_host_keep(CUhostFn function, void *argument, uint64_t *token);
CUresult client_host_once(CUhostFn function, void *argument, uint64_t *token);
void client_host_drop(uint64_t token);
/* A gate in a stream: when that comes there, `reached` is called on a thread of this library's,
 * which may call CUDA.  One that waits stops the stream until it is opened, and what is
 * posted behind it is paced; nothing is to come behind another, which is to be opened, too: that ends it.  `gate` may be NULL. */
struct host_job;
CUresult client_gate_close(uint64_t stream, bool waits,
			   void (*reached)(struct host_job *gate, void *opaque), void *opaque,
			   struct host_job **gate);
void client_gate_open(struct host_job *gate);

#endif
