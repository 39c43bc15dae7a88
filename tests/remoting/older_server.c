/* older_server SECRET-FILE LIBCUDA - the server's engine with another table of operations.
 *
 * Prints the port that it listens on; serves each connection in a process of its own.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	FILE *file = argc == 3 ? fopen(argv[1], "r") : NULL;
	unsigned char secret[32];

	if (!file || fread(secret, 1, sizeof(secret), file) != sizeof(secret) ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 8) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0)
		return 1;
	signal(SIGCHLD, SIG_IGN);
	printf("%d\n", ntohs(address.sin_port));
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
