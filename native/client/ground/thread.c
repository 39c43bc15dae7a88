/* Threads of the program: their lanes and their stacks of contexts. */
#include "thread.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long a thread that calls is not told that the program ends by another. */
#define END_AWAIT_S 2

static __thread struct client_thread thread_state;

/* Lane 0 is shared by all threads that found no other free. */
static uint16_t lane_take(void)
{
	for (uint32_t word = 0; word < WIRE_LANES / 32; word++) {
		uint32_t used = atomic_load(&farbus_client.lanes_used[word]);

		while (~used) {
			uint32_t bit = (uint32_t)__builtin_ctz(~used);

			if (word * 32 + bit == 0 || word * 32 + bit == WIRE_LANE_OWN) {
				/* never given to one thread alone */
				used |= atomic_fetch_or(&farbus_client.lanes_used[word], 1u << bit) | 1u << bit;
				continue;
			}
			if (atomic_compare_exchange_weak(&farbus_client.lanes_used[word], &used,
							 used | 1u << bit))
				return (uint16_t)(word * 32 + bit);
		}
	}
	return 0;
}

static void lane_give(uint16_t lane)
{
	if (lane)
		atomic_fetch_and(&farbus_client.lanes_used[lane / 32], ~(1u << lane % 32));
}

void client_thread_leave(struct client_thread *thread)
{
	lane_give(thread->lane);
	thread->registered = false;
}

struct client_thread *client_thread(void)
{
	struct client_thread *thread = &thread_state;

	if (!thread->registered && atomic_load(&farbus_client.state) == CLIENT_READY) {
		thread->registered = true;
		thread->lane = lane_take();
		pthread_setspecific(farbus_client.thread_key, thread);
	}
	return thread;
}

void client_guard_begin(void)
{
	sigset_t all, before;

	if (thread_state.guards) {
		thread_state.guards++;
		return;
	}
	if (!atomic_load_explicit(&farbus_client.paging, memory_order_relaxed))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	thread_state.signals = before;
	thread_state.guards = 1;
}

void client_guard_end(void)
{
	/* What began before there were such pages was not counted. */
	if (thread_state.guards && !--thread_state.guards) {
		const sigset_t before = thread_state.signals;

		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
}

int client_threads_init(void (*ends)(void *thread))
{
	return -pthread_key_create(&farbus_client.thread_key, ends);
}

void client_per_thread_begin(void)
{
	thread_state.per_thread++;
}

void client_per_thread_end(void)
{
	thread_state.per_thread--;
}

struct client_context *client_context_get(CUcontext handle)
{
	return handle_get(&farbus_client.handles, HANDLE_CONTEXT, (uint64_t)(uintptr_t)handle);
}

struct client_context *client_context_current(void)
{
	const struct client_thread *thread = client_thread();

	return thread->depth ? client_context_get(thread->contexts[thread->depth - 1]) : NULL;
}

void client_end_await(void)
{
	int ending = atomic_load(&farbus_client.ending_thread);
	struct timespec until;

	if (!ending || ending == (int)syscall(SYS_gettid))
		return;
	until.tv_sec = (time_t)(farbus_client.ends_ns / 1000000000u) + END_AWAIT_S;
	until.tv_nsec = (long)(farbus_client.ends_ns % 1000000000u);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

/* May this thread call CUDA at all? */
static inline CUresult enter(void)
{
	const struct client *client = &farbus_client;

	switch (atomic_load(&client->state)) {
	case CLIENT_READY:
		break;
	case CLIENT_FAILED:
		client_end_await();
		return client->failure;
	default:
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	return thread_state.host_function ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

/* Is there no server left? */
static bool all_lost(void)
{
	return atomic_load_explicit(&farbus_client.lost, memory_order_relaxed) ==
	       farbus_client.session_count;
}

CUresult client_enter_any(void)
{
	CUresult result = enter();

	if (result == CUDA_SUCCESS && all_lost())
		result = CUDA_ERROR_DEVICE_UNAVAILABLE;
	return result;
}

CUresult client_enter_context(struct client_context **current)
{
	CUresult result = enter();
	const struct client_thread *thread;
	struct client_context *context;

	if (result != CUDA_SUCCESS)
		return result;
	thread = client_thread();
	if (!thread->depth || !thread->contexts[thread->depth - 1])
		return all_lost() ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_INVALID_CONTEXT;
	context = client_context_get(thread->contexts[thread->depth - 1]);
	if (!context)
		return all_lost() ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (atomic_load_explicit(&context->session->dead, memory_order_relaxed)) {
		client_end_await();
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	if (!context->active)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*current = context;
	return atomic_load(&context->sticky);
}

CUresult client_enter(void)
{
	struct client_context *current;

	return client_enter_context(&current);
}
