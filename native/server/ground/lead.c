/* Which thread reads.
 *
 * All threads are alike.  One of them leads: it reads frames in the session's
 * order and executes what does not wait for the device at once.  Before a call
 * that may wait, it lets go of the lead, so that such a call holds nobody else;
 * no later frame of the same lane can be there, because the lane's thread waits
 * for the reply.
 */
#include "aside.h"
#include "hold.h"
#include "lead.h"

int server_thread_start(struct server *server, void *(*run)(void *))
{
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	atomic_fetch_add(&server->threads, 1);
	rc = pthread_create(&thread, &detached, run, server);
	if (rc)
		atomic_fetch_sub(&server->threads, 1);
	pthread_attr_destroy(&detached);
	return -rc;
}

void server_lead_pass(struct server *server)
{
	if (!atomic_load(&server->waiting) && atomic_load(&server->threads) < SERVER_THREADS)
		(void)server_thread_start(server, server->reads);
	pthread_mutex_unlock(&server->leader);
}

/* Without another thread, the frames wait until this call is over. */
void server_pass(struct server_call *call)
{
	struct server *server = call->server;

	if (call->beside) {
		call->beside = false;
		server_lead_pass(server);
	}
	if (call->passed)
		return;
	/* Whoever leads next may end it. */
	if (call->context && (server_hold(call, call->context) != CUDA_SUCCESS ||
			      server_hold(call, call->context->base) != CUDA_SUCCESS))
		return;
	if (call->lent && !aside_pass(&server->aside) &&
	    (atomic_load(&server->threads) >= SERVER_THREADS || server_thread_start(server, server->serves)))
		return;
	call->passed = true;
	if (!call->lent)
		server_lead_pass(server);
}

void server_await_users(struct server_call *call, const void *object)
{
	if (!call->passed && server_others_hold(call, object))
		server_pass(call);
	server_await_others(call, object);
}

/* Nothing is put into a stream meanwhile: whoever does that leads, or has led and is not yet
 * back, and there is no such thread. */
bool server_is_alone(const struct server *server)
{
	return atomic_load(&server->threads) - atomic_load(&server->waiting) == 1;
}
