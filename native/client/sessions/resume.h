/* resume.h - a session goes on after a cut (resume.c). */
#ifndef FARBUS_CLIENT_RESUME_H
#define FARBUS_CLIENT_RESUME_H

#include "../client.h"

/* How long a session of this process may be cut, in milliseconds; 0: it ends at once. */
uint32_t client_resume_grace_ms(void);
/* Is what FARBUS_GRACE_S says such a time?  If not, it has been said. */
bool client_resume_grace_check(void);
/* The server has granted it: read how, and go on over a transport that outlives its connection. */
int client_resume_begin(struct client_session *session, const char *address, const char *port,
			const uint8_t secret[WIRE_SECRET_BYTES],
			const struct wire_hello_reply *reply, struct rdma **rdma);
/* How many connections a session is to have whose first one is this, where nobody has said it; *late: when something large
 * passes. */
unsigned client_connections(const struct transport *transport, bool *late);
/* All sessions are open: connect the further ones, on a thread, if it is time. */
void client_resume_connect(struct client_session *session);
/* A session of the parent's, seen in the child of a fork, behind clofork_child: there is nothing of it. */
void client_session_let_go(struct client_session *session);
/* Behind the transport's release; nothing where there was no grant. */
void client_resume_drop(struct client_session *session);

#endif
