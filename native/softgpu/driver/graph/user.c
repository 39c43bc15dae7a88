/* User objects: things of the program's that graphs keep, told when nobody needs them. */
#include "user.h"

#include "../handle.h"
#include "graph.h"

#include <signal.h>
#include <stdlib.h>

struct CUuserObject_st {
	struct CUuserObject_st *next;	/* of those to be destroyed */
	void *object;
	CUhostFn destroy;
	uint64_t references;		/* under the graph lock */
};

/* References of a graph to one object. */
struct user_reference {
	struct user_reference *next;
	struct CUuserObject_st *object;
	uint64_t count;
};

/* ---- the thread that calls destructors ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;
	bool has_thread;
	struct CUuserObject_st *first, **last;
} reaper = { .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER,
	     .last = &reaper.first };

static bool reaper_start(void);

/* A destructor has ended the thread (pthread_exit).  Without resources for another one the next
 * object that is made starts it. */
static void reaper_left(void *object)
{
	free(object);
	pthread_mutex_lock(&reaper.lock);
	reaper.has_thread = reaper_start();
	pthread_mutex_unlock(&reaper.lock);
}

static void destroy(struct CUuserObject_st *object)
{
	pthread_cleanup_push(reaper_left, object);
	driver_in_host_function = true;
	object->destroy(object->object);
	driver_in_host_function = false;
	pthread_cleanup_pop(0);
	free(object);
}

static void *reap(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&reaper.lock);
	for (;;) {
		struct CUuserObject_st *object = reaper.first;

		if (!object) {
			pthread_cond_wait(&reaper.work, &reaper.lock);
			continue;
		}
		reaper.first = object->next;
		if (!reaper.first)
			reaper.last = &reaper.first;
		pthread_mutex_unlock(&reaper.lock);
		destroy(object);
		pthread_mutex_lock(&reaper.lock);
	}
	return NULL;
}

/* With the lock.  The program's signals are not for this thread. */
static bool reaper_start(void)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, reap, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_detach(thread);
	return !error;
}

/* With the graph lock, under which no destructor may run. */
static void release(struct CUuserObject_st *object, uint64_t count)
{
	object->references -= count;
	if (object->references)
		return;
	driver_handle_remove(object, DRIVER_KIND_USER_OBJECT);
	object->next = NULL;
	pthread_mutex_lock(&reaper.lock);
	*reaper.last = object;
	reaper.last = &object->next;
	pthread_cond_signal(&reaper.work);
	pthread_mutex_unlock(&reaper.lock);
}

/* ---- objects ---- */

CUresult driver_user_object_make(void *pointer, CUhostFn destructor, unsigned count, CUuserObject *out)
{
	struct CUuserObject_st *object;
	bool ready;

	pthread_mutex_lock(&reaper.lock);
	ready = reaper.has_thread = reaper.has_thread || reaper_start();
	pthread_mutex_unlock(&reaper.lock);
	object = calloc(1, sizeof *object);
	if (!ready || !object) {
		free(object);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	object->object = pointer;
	object->destroy = destructor;
	object->references = count;
	if (driver_handle_add(object, DRIVER_KIND_USER_OBJECT, NULL)) {
		free(object);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = object;
	return CUDA_SUCCESS;
}

void driver_user_object_hold(struct CUuserObject_st *object, uint64_t count)
{
	object->references += count;
}

bool driver_user_object_release(struct CUuserObject_st *object, uint64_t count)
{
	if (count > object->references)
		return false;
	release(object, count);
	return true;
}

/* ---- what graphs keep; with the graph lock ---- */

static struct user_reference **reference_of(struct CUgraph_st *graph,
					    const struct CUuserObject_st *object)
{
	struct user_reference **link = &graph->users;

	while (*link && (*link)->object != object)
		link = &(*link)->next;
	return link;
}

bool driver_graph_users_keep(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count)
{
	struct user_reference **link = reference_of(graph, object);

	if (!*link) {
		*link = calloc(1, sizeof **link);
		if (!*link)
			return false;
		(*link)->object = object;
	}
	(*link)->count += count;
	return true;
}

bool driver_graph_users_copy(struct CUgraph_st *to, const struct CUgraph_st *from)
{
	for (const struct user_reference *user = from->users; user; user = user->next) {
		if (!driver_graph_users_keep(to, user->object, user->count))
			return false;
		user->object->references += user->count;
	}
	return true;
}

void driver_graph_users_drop(struct user_reference **users)
{
	while (*users) {
		struct user_reference *user = *users;

		*users = user->next;
		release(user->object, user->count);
		free(user);
	}
}

void driver_graph_users_add(struct user_reference **users, struct user_reference *more)
{
	while (*users)
		users = &(*users)->next;
	*users = more;
}

bool driver_graph_users_replace(struct CUgraph_st *into, const struct CUgraph_st *from,
				struct user_reference **former)
{
	struct user_reference *own = into->users;

	into->users = NULL;
	if (!driver_graph_users_copy(into, from)) {
		driver_graph_users_drop(&into->users);
		into->users = own;
		return false;
	}
	driver_graph_users_add(former, own);
	return true;
}

bool driver_graph_users_release(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count)
{
	struct user_reference **link = reference_of(graph, object), *user = *link;

	if (!user || user->count < count)
		return false;
	user->count -= count;
	if (!user->count) {
		*link = user->next;
		free(user);
	}
	release(object, count);
	return true;
}
