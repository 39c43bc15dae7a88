/* Conditional nodes: what a program is told of their bodies.
 *
 * The array of a node's bodies is there as long as the node is, as CUDA has it; with it is known which graphs
 * are bodies.  Nodes go with their graphs, and bodies with their nodes. */
#include "../../generated/client_raw.h"
#include "../ground/message.h"
#include "conditional.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct conditional {
	struct conditional *next;
	CUgraphNode node;
	CUgraph graph;			/* that the node is in */
	unsigned size;
	CUgraph bodies[];
};

static struct {
	pthread_mutex_t lock;
	_Atomic(struct conditional *) first;	/* changed under the lock */
} conditionals = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool has_body(const struct conditional *conditional, CUgraph graph)
{
	for (unsigned i = 0; i < conditional->size; i++)
		if (conditional->bodies[i] == graph)
			return true;
	return false;
}

CUresult client_conditional_added(CUgraphNode node, CUgraph graph, CUDA_CONDITIONAL_NODE_PARAMS *params)
{
	struct conditional *conditional;

	conditional = malloc(sizeof(*conditional) + params->size * sizeof(*conditional->bodies));
	if (!params->phGraph_out || !conditional) {
		free(conditional);
		client_raw_cuGraphDestroyNode(node);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	conditional->node = node;
	conditional->graph = graph;
	conditional->size = params->size;
	memcpy(conditional->bodies, params->phGraph_out, params->size * sizeof(*conditional->bodies));
	pthread_mutex_lock(&conditionals.lock);
	conditional->next = conditionals.first;
	conditionals.first = conditional;
	pthread_mutex_unlock(&conditionals.lock);
	params->phGraph_out = conditional->bodies;
	return CUDA_SUCCESS;
}

void client_conditional_told(CUgraphNode node, CUDA_CONDITIONAL_NODE_PARAMS *params)
{
	struct conditional *conditional;

	pthread_mutex_lock(&conditionals.lock);
	for (conditional = conditionals.first; conditional; conditional = conditional->next)
		if (conditional->node == node) {
			params->size = conditional->size;
			params->phGraph_out = conditional->bodies;
		}
	pthread_mutex_unlock(&conditionals.lock);
}

bool client_conditional_any(void)
{
	return conditionals.first;
}

bool client_graph_is_body(CUgraph graph)
{
	const struct conditional *conditional;

	pthread_mutex_lock(&conditionals.lock);
	for (conditional = conditionals.first; conditional && !has_body(conditional, graph);)
		conditional = conditional->next;
	pthread_mutex_unlock(&conditionals.lock);
	return conditional;
}

CUresult client_body_refuse(void)
{
	client_message("a copy between the GPU and memory of this process in a body of a conditional node is not "
		       "supported over remoting: put it ahead of the node or behind it, or with pinned memory set "
		       "FARBUS_MAPPED_MEMORY=managed");
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* With the lock: take the nodes of that graph, or that node, out and put them ahead of `gone`. */
static struct conditional *take_out(CUgraph graph, CUgraphNode node, struct conditional *gone)
{
	struct conditional *kept = NULL, *conditional, *next;

	for (conditional = conditionals.first; conditional; conditional = next) {
		next = conditional->next;
		if ((graph && conditional->graph == graph) || (node && conditional->node == node)) {
			conditional->next = gone;
			gone = conditional;
		} else {
			conditional->next = kept;
			kept = conditional;
		}
	}
	conditionals.first = kept;
	return gone;
}

void client_conditionals_forget(CUgraph graph, CUgraphNode node)
{
	struct conditional *gone;

	if (!client_conditional_any())
		return;
	pthread_mutex_lock(&conditionals.lock);
	gone = take_out(graph, node, NULL);
	while (gone) {
		struct conditional *conditional = gone;

		gone = conditional->next;
		for (unsigned i = 0; i < conditional->size; i++)
			gone = take_out(conditional->bodies[i], NULL, gone);
		free(conditional);
	}
	pthread_mutex_unlock(&conditionals.lock);
}
