/* outstanding.h - what is still to come (outstanding.c). */
#ifndef FARBUS_CLIENT_OUTSTANDING_H
#define FARBUS_CLIENT_OUTSTANDING_H

#include "../client.h"

void client_outstanding(struct client_session *session, int change);
/* Gates that nothing is paced behind. */
void client_awaited(struct client_session *session, int change);
/* Does the server owe bytes of an asynchronous copy whose first byte lies in [at, at + bytes)? */
bool client_target_owed(struct client_session *session, const uint8_t *at, size_t bytes);
/* Is anything of the range still to be written by this process, with bytes that come?  The
 * server's own copies would not wait for that. */
bool client_target_pending(struct client_session *session, uint64_t base, size_t span);
/* The server will send something by itself; with the wait lock. */
void client_receiver_expects(struct client_session *session);
/* Free what is finished of asynchronous copies; by a thread that posts. */
void client_targets_free(struct client_session *session);

#endif
