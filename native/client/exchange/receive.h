/* receive.h - who reads, and answers (receive.c). */
#ifndef FARBUS_CLIENT_RECEIVE_H
#define FARBUS_CLIENT_RECEIVE_H

#include "../handles/route.h"

int client_session_start(struct client_session *session);
/* Until the answer has come to `wait`, which is registered and whose request has left. */
void client_wait_for(struct client_session *session, struct client_wait *wait);

#endif
