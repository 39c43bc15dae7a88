/* The lock of all graphs, nodes, executables and captures (driver_graph.h). */
#include "driver_graph.h"

static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;

void driver_graph_lock(void)
{
	pthread_mutex_lock(&graph_lock);
}

void driver_graph_unlock(void)
{
	pthread_mutex_unlock(&graph_lock);
}
