/* The shim's only global. */
#include "../client.h"

struct client farbus_client = {
	.init = PTHREAD_MUTEX_INITIALIZER,
	.handles = HANDLE_TABLE_INITIALIZER,
	.sessions = { [0 ... CLIENT_SERVERS - 1] = { .transport = { .descriptor = -1 } } },
};
