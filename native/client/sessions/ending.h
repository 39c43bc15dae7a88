/* ending.h - what is known of a session's end (ending.c). */
#ifndef FARBUS_CLIENT_ENDING_H
#define FARBUS_CLIENT_ENDING_H

#include "../client.h"

/* Keep what a supervisor says of a session that has ended, for the message about its loss. */
void client_session_ended(struct client_session *session, const char *text, size_t length);
/* Ask the supervisor of this machine how a session over its socket has ended. */
void client_session_ask_end(struct client_session *session);

/* Who listens there, as the kernel knows it; (uid_t)-1: it does not say. */
uid_t client_peer_user(const struct transport *transport);
/* What a peer sends to be read by a person does nothing to his terminal. */
void client_printable(char *text);

#endif
