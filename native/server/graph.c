/* Graphs: what their calls need beyond marshal.c. */
#include "server_ops.h"

#include <stdlib.h>
#include <unistd.h>

/* The driver writes a file: one without a name, where the process has its own descriptors. */
CUresult serve_graph_dot(struct server_call *call)
{
	const struct wire_graph_dot *request = call->request;
	char path[] = "/tmp/farbus-graph-XXXXXX";
	CUgraph graph = server_object(call, SERVER_CUgraph, request->graph);
	CUresult result;
	ssize_t got;
	int file;

	if (!call->driver->cuGraphDebugDotPrint)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	file = mkstemp(path);
	if (file < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = call->driver->cuGraphDebugDotPrint(graph, path, request->flags);
	unlink(path);
	if (result == CUDA_SUCCESS) {
		/* It may have made the file anew. */
		call->reply_tail = malloc(WIRE_BULK_BYTES);
		got = call->reply_tail ? pread(file, call->reply_tail, WIRE_BULK_BYTES, 0) : -1;
		if (got < 0)
			result = CUDA_ERROR_OPERATING_SYSTEM;
		else
			call->reply_tail_bytes = (size_t)got;
	}
	close(file);
	return result;
}
