/* older_server SECRET-FILE LIBCUDA [PATH] - the server's engine with another table of operations.
 *
 * Listens on a port, or on a Unix socket of that path, and prints the port, or 0 then; serves each connection in a
 * process of its own.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server.h"

static int listener_make(const char *path, unsigned *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_un here = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(address);
	int listener = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM, 0);

	if (path) {
		snprintf(here.sun_path, sizeof(here.sun_path), "%s", path);
		if (bind(listener, (struct sockaddr *)&here, sizeof(here)) < 0)
			return -1;
	} else if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		   getsockname(listener, (struct sockaddr *)&address, &size) < 0) {
		return -1;
	}
	*port = ntohs(address.sin_port);
	return listen(listener, 8) < 0 ? -1 : listener;
}

int main(int argc, char **argv)
{
	unsigned port;
	int listener = argc > 2 ? listener_make(argc > 3 ? argv[3] : NULL, &port) : -1;
	FILE *file = argc > 2 ? fopen(argv[1], "r") : NULL;
	unsigned char secret[32];

	if (!file || fread(secret, 1, sizeof(secret), file) != sizeof(secret) || listener < 0)
		return 1;
	signal(SIGCHLD, SIG_IGN);
	printf("%u\n", port);
	fflush(stdout);
	for (;;) {
		const struct server_options options = {
			.descriptor = accept(listener, NULL, NULL),
			.libcuda = argv[2],
			.secret = secret,
		};
		char why[256] = "";

		if (options.descriptor < 0)
			return 1;
		if (fork() == 0) {
			int rc = server_serve(&options, why, sizeof(why));

			if (rc)
				fprintf(stderr, "older server: %s\n", why);
			_exit(rc != 0);
		}
		close(options.descriptor);
	}
}
