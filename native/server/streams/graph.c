/* Graphs: what their calls need beyond marshal.c. */
#include "../ground/named.h"
#include "../ground/resolve.h"
#include "graph.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- launches ----
 *
 * A graph repeats if no launch of it can be refused for what was launched, freed or destroyed meanwhile, but for kernels
 * whose code or context has gone, which the client knows.  Then the client posts all launches behind one that the driver
 * took.  Memory that is allocated and not freed refuses the next launch, an event that was destroyed any, and with a
 * host function in it the client paces what comes behind. */

/* Graphs lie in graphs as deep as a client likes: those that lie deeper do not repeat. */
#define REPEATS_DEPTH 16u

static bool graph_repeats(const struct server_driver *driver, CUgraph graph, unsigned depth);

static bool node_repeats(const struct server_driver *driver, CUgraphNode node, unsigned depth)
{
	CUgraphNodeType type;
	CUgraph child;

	if (driver->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return false;
	switch (type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
	case CU_GRAPH_NODE_TYPE_MEMCPY:
	case CU_GRAPH_NODE_TYPE_MEMSET:
	case CU_GRAPH_NODE_TYPE_EMPTY:
	/* In whose bodies a driver takes such nodes alone. */
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return true;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return depth < REPEATS_DEPTH && driver->cuGraphChildGraphNodeGetGraph &&
		       driver->cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS &&
		       graph_repeats(driver, child, depth + 1);
	default:
		return false;
	}
}

static bool graph_repeats(const struct server_driver *driver, CUgraph graph, unsigned depth)
{
	CUgraphNode *nodes;
	size_t count = 0;
	bool repeats;

	if (!driver->cuGraphGetNodes || !driver->cuGraphNodeGetType ||
	    driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS)
		return false;
	nodes = calloc(count + 1, sizeof(*nodes));
	repeats = nodes && driver->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS;
	for (size_t i = 0; i < count && repeats; i++)
		repeats = node_repeats(driver, nodes[i], depth);
	free(nodes);
	return repeats;
}

/* Kinds of nodes do not change in an executable, whatever is done to it; the graph may be gone when it is launched. */
void server_graph_instantiated(struct server_call *call, CUgraph graph, CUgraphExec executable,
			       uint64_t wire)
{
	const struct server_driver *driver = call->driver;
	cuuint64_t flags = 0;

	/* One that kernels launch, too, may be running when it is launched here. */
	if (driver->cuGraphExecGetFlags && driver->cuGraphExecGetFlags(executable, &flags) != CUDA_SUCCESS)
		return;
	if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) && graph_repeats(driver, graph, 0))
		server_named_set_repeats(call->server, wire);
}

CUresult serve_graph_launch(struct server_call *call)
{
	const struct wire_graph_launch *request = call->request;
	CUgraphExec executable = server_object(call, SERVER_CUgraphExec, request->executable);
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!executable)
		return CUDA_ERROR_INVALID_VALUE;
	if (!call->driver->cuGraphLaunch)
		return CUDA_ERROR_NOT_SUPPORTED;
	return call->driver->cuGraphLaunch(executable, stream);
}

CUresult serve_graph_launch_checked(struct server_call *call)
{
	const struct wire_graph_launch_checked *request = call->request;
	struct wire_graph_launch_checked_reply *reply = call->reply;
	CUresult result;

	_Static_assert(sizeof(struct wire_graph_launch) == sizeof(*request), "the two travel alike");
	result = serve_graph_launch(call);
	reply->repeats = result == CUDA_SUCCESS && server_named_repeats(call->server, request->executable);
	return result;
}

/* ---- graphs as text ---- */

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
