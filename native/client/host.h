/* host.h - host functions of streams and graphs, and copies whose bytes the server pulls (host.c). */
#ifndef FARBUS_CLIENT_HOST_H
#define FARBUS_CLIENT_HOST_H

#include "client.h"

/* On behalf of the server. */
void client_host_call(struct client_session *session, uint64_t token, CUresult status);
void client_host_pull(struct client_session *session, uint64_t token);
/* The driver refused the request of that sequence, if it is one of these: a callback is called with the error that ended
 * its context, as if it had come before that; a host function is over. */
void client_host_refused(struct client_session *session, uint64_t sequence, CUresult status);
/* Before a call that waits reports what ended the current context: callbacks behind it have been told. */
void client_host_settle(void);
/* The context has failed, or ended: host functions and copies of its streams will not come, and after its end no
 * callbacks either, so nothing waits for them any more. */
void client_host_uncount(const struct client_context *context, bool ended);
/* Have the server say which of the contexts that something is waited for in have failed. */
void client_host_ask(struct client_session *session);
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
/* May any graph call host functions or read memory of this process? */
bool client_host_kept(void);
/* May anything that is still to run write to this process's memory? */
bool client_host_busy(void);
/* Is there a host function that has not returned, of a graph or not? */
bool client_host_functions(void);

#endif
