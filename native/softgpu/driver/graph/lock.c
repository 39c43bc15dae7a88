#include "lock.h"

#include <pthread.h>

static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;

void driver_graph_lock(void)
{
	pthread_mutex_lock(&graph_lock);
}

void driver_graph_unlock(void)
{
	pthread_mutex_unlock(&graph_lock);
}
