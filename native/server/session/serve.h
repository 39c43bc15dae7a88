/* serve.h - the session (serve.c). */
#ifndef FARBUS_SERVER_SERVE_H
#define FARBUS_SERVER_SERVE_H

#include "../server_ops.h"

/* Serve frames until the session has ended.  The caller never enters the driver, so that nothing in there can keep the
 * process from ending.  0, or -errno: it has not begun. */
int server_run(struct server *server);

#endif
