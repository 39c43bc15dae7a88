/* What kernels print.  The driver writes it to this process's standard output;
 * it belongs on the client's.  It is sent before the reply of the call that a
 * program waits with, so that it appears where it would with a local GPU. */
#include "server_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define TEXT_BYTES 65536

/* Send what is in the pipe; the lock is held. */
static void text_drain(struct server *server)
{
	static char buffer[TEXT_BYTES];
	const struct wire_text text = { .descriptor = STDOUT_FILENO };

	for (;;) {
		ssize_t got = read(server->text_read, buffer, sizeof(buffer));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return;
		server_send(server, WIRE_EVENT_TEXT, 0, 0, 0, &text, sizeof(text), buffer,
			    (size_t)got);
	}
}

void server_text_flush(struct server *server)
{
	struct pollfd there = { .fd = server->text_read, .events = POLLIN };

	if (server->text_read < 0)
		return;
	fflush(stdout);
	pthread_mutex_lock(&server->text_lock);
	if (poll(&there, 1, 0) > 0)
		text_drain(server);
	pthread_mutex_unlock(&server->text_lock);
}

/* Keeps the pipe from filling up while nobody waits. */
static void *text_thread(void *opaque)
{
	struct server *server = opaque;
	struct pollfd there = { .fd = server->text_read, .events = POLLIN };

	while (!atomic_load(&server->ended)) {
		if (poll(&there, 1, -1) < 0 && errno != EINTR)
			break;
		pthread_mutex_lock(&server->text_lock);
		text_drain(server);
		pthread_mutex_unlock(&server->text_lock);
	}
	return NULL;
}

int server_text_start(struct server *server)
{
	int ends[2];
	pthread_t thread;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	if (fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 || dup2(ends[1], STDOUT_FILENO) < 0) {
		int rc = -errno;

		close(ends[0]);
		close(ends[1]);
		return rc;
	}
	close(ends[1]);
	setvbuf(stdout, NULL, _IONBF, 0);
	server->text_read = ends[0];
	pthread_mutex_init(&server->text_lock, NULL);
	if (pthread_create(&thread, NULL, text_thread, server))
		return -ENOMEM;
	pthread_detach(thread);
	return 0;
}
