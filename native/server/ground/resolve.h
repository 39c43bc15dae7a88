/* resolve.h - what the client's handles stand for (resolve.c). */
#ifndef FARBUS_SERVER_RESOLVE_H
#define FARBUS_SERVER_RESOLVE_H

#include "../server_ops.h"

/* Make a context current on this thread. */
CUresult server_context_enter(struct server_thread *thread, struct server_context *context);
CUresult server_resolve_context(struct server_call *call, uint64_t handle, CUcontext *context);
CUresult server_resolve_stream(struct server_call *call, uint64_t handle, CUstream *stream);
CUresult server_resolve_event(struct server_call *call, uint64_t handle, CUevent *event);
/* What launches take: a function, or a library's kernel as it is. */
CUresult server_resolve_function(struct server_call *call, uint64_t handle, CUfunction *function);
/* The function in the current context, which is what graphs take. */
CUresult server_resolve_function_here(struct server_call *call, uint64_t handle, CUfunction *function);
/* Is it a library's kernel? */
bool server_is_kernel(struct server_call *call, uint64_t handle);
/* How `functions` keeps a library's kernel. */
void *server_kernel_marked(CUkernel kernel);
/* A stream that the legacy one waits for is there, or is no more. */
void server_blocking_add(struct server_context *context, CUstream stream);
void server_blocking_remove(struct server_context *context, CUstream stream);

#endif
