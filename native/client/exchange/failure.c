/* What has failed: contexts that an error has ended, and sessions that are lost. */
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../sessions/ending.h"
#include "failure.h"
#include "jobs.h"
#include "mapping.h"
#include "waits.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../transport/ground/thread.h"

/* Longer than a supervisor is waited for that is asked how a session has ended. */
#define FAIL_PATIENCE_NS 5000000000u

bool client_result_is_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
		return true;
	default:
		return false;
	}
}

CUresult client_context_note(CUcontext handle, CUresult result)
{
	struct client_context *context = client_context_get(handle);

	if (!context)
		return result;
	if (result == CUDA_ERROR_ILLEGAL_ADDRESS)
		client_pinned_after_illegal_address();
	if (client_result_is_sticky(result) && atomic_exchange(&context->sticky, result) == CUDA_SUCCESS)
		client_jobs_uncount(context, false);
	return result;
}

CUresult client_context_late(CUcontext handle)
{
	struct client_context *context = client_context_get(handle);

	return context && atomic_load(&context->late) ? atomic_exchange(&context->late, CUDA_SUCCESS)
						      : CUDA_SUCCESS;
}

void client_session_abandon(struct client_session *session)
{
	struct client_target *target;
	struct client_wait *wait;

	while ((wait = session->waits)) {
		session->waits = wait->next;
		wait->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
		wait_set(session, wait, WAIT_DONE);
	}
	while ((target = session->targets)) {
		session->targets = target->next;
		if (target->owned)
			free(target);
	}
}

/* Let one thread say it at a time.  false: one has been at it for too long. */
static bool fail_say_begin(struct client_session *session)
{
	uint64_t end = transport_now_ns() + FAIL_PATIENCE_NS;
	uint32_t nobody = 0;

	while (!atomic_compare_exchange_strong(&session->telling, &nobody, 1)) {
		uint64_t now = transport_now_ns();
		struct timespec left;

		if (now >= end)
			return false;
		/* Of the monotonic clock, as futex(2) takes what is not absolute. */
		left = (struct timespec){ .tv_sec = (time_t)((end - now) / 1000000000u), .tv_nsec = (long)((end - now) % 1000000000u) };
		syscall(SYS_futex, &session->telling, FUTEX_WAIT_PRIVATE, 1, &left, NULL, 0);
		nobody = 0;
	}
	return true;
}

static void fail_say_end(struct client_session *session)
{
	atomic_store(&session->telling, 0);
	syscall(SYS_futex, &session->telling, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The message comes before the first error, since a program may end with that; but who can't have it said by now, as
 * a thread that is interrupted by its own signal handler, or one whose stderr nobody reads, keeps no other from its errors. */
static void session_fail_say(struct client_session *session, int error)
{
	const bool gone = error == -EPIPE || error == -ECONNRESET;
	struct client_line line = { .length = 0 };

	if (atomic_load(&session->dead) || !fail_say_begin(session))
		return;
	if (!atomic_load(&session->dead)) {
		if (gone && !*session->ending)
			client_session_ask_end(session);
		client_line_write(&line,
				  "the connection to the GPU at %s is lost (%s); every CUDA call %snow "
				  "fails with CUDA_ERROR_DEVICE_UNAVAILABLE%s",
				  session->peer, gone ? *session->ending ? session->ending
									 : "the server or its lease has ended"
				  : error == -ETIMEDOUT ? "it was cut and did not come back in time"
							 : strerror(-error),
				  farbus_client.session_count > 1 ? "that needs it " : "",
				  farbus_client.session_count > 1 ? "" : "; start the program again");
		atomic_store(&session->dead, true);
		atomic_fetch_add(&farbus_client.lost, 1);
	}
	fail_say_end(session);
	/* A program's callback may call CUDA. */
	if (line.length)
		client_line_log(&line);
}

void client_session_fail(struct client_session *session, int error)
{
	client_guard_begin();
	session_fail_say(session, error);
	/* A leader reads to the end of the stream, and abandons what waits by itself. */
	session->transport.ops->shutdown(&session->transport);
	wait_lock(session);
	if (!session->leader)
		client_session_abandon(session);
	pthread_cond_broadcast(&session->settled);
	pthread_cond_signal(&session->receiver_wake);
	wait_unlock(session);
	client_guard_end();
	if (farbus_client.session_lost)
		farbus_client.session_lost(session);
}
