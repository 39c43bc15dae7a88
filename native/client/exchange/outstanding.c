/* What a server still owes this process without being waited for: bytes of asynchronous copies, host functions, pulled
 * copies, gates.  While there is any, somebody reads. */
#include "outstanding.h"
#include "waits.h"

#include <stdlib.h>
#include <string.h>

void client_outstanding(struct client_session *session, int change)
{
	wait_lock(session);
	session->outstanding = (unsigned)((int)session->outstanding + change);
	if (!session->outstanding) {
		memset(session->behind, 0, sizeof(session->behind));
		session->behind_pieces = 0;
		pthread_cond_broadcast(&session->settled);
	} else {
		client_receiver_expects(session);
	}
	wait_unlock(session);
}

bool client_target_owed(struct client_session *session, const uint8_t *at, size_t bytes)
{
	const struct client_target *target;

	wait_lock(session);
	for (target = session->targets; target; target = target->next)
		if (target->host >= at && target->host < at + bytes)
			break;
	wait_unlock(session);
	return target;
}

void client_targets_free(struct client_session *session)
{
	struct client_target *target;

	wait_lock(session);
	target = session->finished;
	session->finished = NULL;
	wait_unlock(session);
	while (target) {
		struct client_target *next = target->next;

		free(target);
		target = next;
	}
}

void client_receiver_expects(struct client_session *session)
{
	if (!session->receiver_dozes)
		return;
	session->receiver_dozes = false;
	pthread_cond_signal(&session->receiver_wake);
}

void client_awaited(struct client_session *session, int change)
{
	wait_lock(session);
	session->awaited = (unsigned)((int)session->awaited + change);
	if (session->awaited)
		client_receiver_expects(session);
	wait_unlock(session);
}

bool client_target_pending(struct client_session *session, uint64_t base, size_t span)
{
	bool pending = false;

	wait_lock(session);
	for (const struct client_target *target = session->targets; target && !pending;
	     target = target->next) {
		uint64_t low = (uint64_t)(uintptr_t)target->host;
		uint64_t high = low + (target->height - 1) * target->pitch + target->width;

		pending = low < base + span && base < high;
	}
	wait_unlock(session);
	return pending;
}
