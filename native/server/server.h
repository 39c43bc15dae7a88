/* server.h - the remoting server's engine: serves one client process.
 *
 * One process per client process.  The engine opens a libcuda.so.1, NVIDIA's or
 * the software GPU's, by path; it needs nothing of Python, which only starts it.
 */
#ifndef FARBUS_SERVER_SERVER_H
#define FARBUS_SERVER_SERVER_H

#include <stdint.h>

struct server_options {
	int descriptor;			/* the connected socket; taken over */
	const char *libcuda;		/* path of the driver to open */
	const uint8_t *secret;		/* WIRE_SECRET_BYTES of the lease */
};

/* Serve until the client has gone.  0: it came and went; -errno: it never got as
 * far as a session, and `why` (bytes long) says why in one line.
 *
 * Threads may still be inside the driver when this returns (a kernel that never
 * ends): the caller must end the process with _exit. */
int server_serve(const struct server_options *options, char *why, int bytes);

#endif
