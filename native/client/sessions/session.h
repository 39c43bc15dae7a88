/* session.h - the sessions are opened (session.c). */
#ifndef FARBUS_CLIENT_SESSION_H
#define FARBUS_CLIENT_SESSION_H

#include "../client.h"

/* Open a session with every server of the session file, and number the devices. */
CUresult client_sessions_open(struct client *client);

#endif
