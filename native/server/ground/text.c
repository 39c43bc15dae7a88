/* What kernels print, and what a software GPU says.  The driver writes it to this process's
 * standard output and standard error; it belongs on the client's.  It is sent before the reply of
 * the call that a program waits with, so that it appears where it would with a local GPU.
 *
 * A line on standard error is heard as a line of the driver's log (cuLogsRegisterCallback), since
 * there this process has lines of its own; it stays there, too.  Who says it may be a thread that
 * others wait for with the lock of writing: so it goes through a pipe, as what kernels print does,
 * and where that is full it is in this process's standard error alone.
 */
#include "frames.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 65536
/* What a software GPU's lines begin with.  What NVIDIA's driver has to say is nothing that a program
 * of its own machine would have on standard error. */
#define SAID_PREFIX "softgpu: "

static __thread bool said_is_told;

/* Send what is in the pipe that stands for that descriptor of the program's; the lock is held. */
static void text_drain(struct server *server, int from, uint32_t descriptor)
{
	static char buffer[TEXT_BYTES];
	const struct wire_text text = { .descriptor = descriptor };

	for (;;) {
		ssize_t got = read(from, buffer, sizeof(buffer));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return;
		server_send(server, WIRE_EVENT_TEXT, 0, 0, 0, &text, sizeof(text), buffer,
			    (size_t)got);
	}
}

/* What is in the pipes, of which a descriptor of -1 is none. */
static int text_poll(const struct server *server, struct pollfd there[2], int timeout_ms)
{
	there[0] = (struct pollfd){ .fd = server->said_read, .events = POLLIN };
	there[1] = (struct pollfd){ .fd = server->text_read, .events = POLLIN };
	return poll(there, 2, timeout_ms);
}

/* Behind it all is sent that was there, also what another thread was about to send. */
static void text_send(struct server *server)
{
	struct pollfd there[2];

	pthread_mutex_lock(&server->text_lock);
	if (text_poll(server, there, 0) > 0) {
		if (there[0].revents)
			text_drain(server, there[0].fd, STDERR_FILENO);
		if (there[1].revents)
			text_drain(server, there[1].fd, STDOUT_FILENO);
	}
	pthread_mutex_unlock(&server->text_lock);
}

void server_text_flush(struct server *server)
{
	if (server->text_read < 0)
		return;
	fflush(stdout);
	text_send(server);
}

/* Keeps the pipes from filling up while nobody waits. */
static void *text_thread(void *opaque)
{
	struct server *server = opaque;
	struct pollfd there[2];

	while (!atomic_load(&server->ended)) {
		if (text_poll(server, there, -1) < 0 && errno != EINTR)
			break;
		text_send(server);
	}
	return NULL;
}

void server_text_told(bool told)
{
	said_is_told = told;
}

static void said_hear(void *opaque, CUlogLevel level, char *line, size_t bytes)
{
	struct server *server = opaque;

	(void)level;
	if (said_is_told || bytes < strlen(SAID_PREFIX) || memcmp(line, SAID_PREFIX, strlen(SAID_PREFIX)) != 0)
		return;
	(void)!write(server->said_write, line, bytes);
}

/* Without it, lines stay in this process's standard error. */
static void said_start(struct server *server)
{
	int ends[2];

	if (!server->driver.cuLogsRegisterCallback || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return;
	server->said_write = ends[1];
	if (server->driver.cuLogsRegisterCallback(said_hear, server, NULL) == CUDA_SUCCESS) {
		server->said_read = ends[0];
		return;
	}
	close(ends[0]);
	close(ends[1]);
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
	said_start(server);
	server->text_read = ends[0];
	pthread_mutex_init(&server->text_lock, NULL);
	if (pthread_create(&thread, NULL, text_thread, server))
		return -ENOMEM;
	pthread_detach(thread);
	return 0;
}
