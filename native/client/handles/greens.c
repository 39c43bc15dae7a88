/* Green contexts that there are.  A stream of one holds it beyond its end. */
#include "../ground/thread.h"
#include "greens.h"

#include <stdlib.h>

static pthread_mutex_t green_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client_green *greens;	/* that live */

void client_greens_lock(void)
{
	pthread_mutex_lock(&green_lock);
}

void client_greens_unlock(void)
{
	pthread_mutex_unlock(&green_lock);
}

struct client_green *client_green_find(CUgreenCtx handle)
{
	struct client_green *green = greens;

	while (green && green->handle != handle)
		green = green->next;
	return green;
}

static struct client_green *green_current(void)
{
	const struct client_thread *thread = client_thread();
	CUcontext context = thread->depth ? thread->contexts[thread->depth - 1] : NULL;
	struct client_green *green = context ? greens : NULL;

	while (green && green->context != context)
		green = green->next;
	return green;
}

/* With the lock. */
static void green_drop(struct client_green *green)
{
	if (!--green->references)
		free(green);
}

struct client_green *client_green_take(void)
{
	struct client_green *green;

	pthread_mutex_lock(&green_lock);
	green = green_current();
	if (green)
		green->references++;
	pthread_mutex_unlock(&green_lock);
	return green;
}

void client_green_release(struct client_green *green)
{
	if (!green)
		return;
	pthread_mutex_lock(&green_lock);
	green_drop(green);
	pthread_mutex_unlock(&green_lock);
}

void client_green_add(struct client_green *green)
{
	pthread_mutex_lock(&green_lock);
	green->next = greens;
	greens = green;
	pthread_mutex_unlock(&green_lock);
}

struct client_green *client_green_end(CUgreenCtx handle)
{
	struct client_green **link = &greens, *green;

	pthread_mutex_lock(&green_lock);
	while (*link && (*link)->handle != handle)
		link = &(*link)->next;
	green = *link;
	if (green) {
		*link = green->next;
		atomic_store(&green->ended, true);
	}
	pthread_mutex_unlock(&green_lock);
	return green;
}

CUgreenCtx client_green_handle(const struct client_green *green, CUcontext *context)
{
	CUgreenCtx handle = NULL;

	*context = NULL;
	pthread_mutex_lock(&green_lock);
	if (!green)
		green = green_current();
	if (green) {
		handle = green->handle;
		*context = green->context;
	}
	pthread_mutex_unlock(&green_lock);
	return handle;
}
