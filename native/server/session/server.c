/* See server.h: a server's life, from its driver to the end of its session. */
#include "../ground/aside.h"
#include "../ground/named.h"
#include "../ground/text.h"
#include "driver.h"
#include "hello.h"
#include "serve.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../transport/sockets/socket.h"

static struct server *server_make(void)
{
	struct server *server = calloc(1, sizeof(*server));

	if (!server)
		return NULL;
	server->names = server_names_make();
	if (!server->names) {
		free(server);
		return NULL;
	}
	return server;
}

struct server *server_prepare(const struct server_options *options)
{
	struct server *server = server_make();
	char why[WIRE_HELLO_TEXT_BYTES];
	CUresult result;

	/* Not freed: the driver is open, and the process ends. */
	if (!server || server_driver_start(server, options, why, sizeof(why), &result) ||
	    result != CUDA_SUCCESS)
		return NULL;
	return server;
}

static void server_init(struct server *server, const struct server_options *options)
{
	server->text_read = server->said_read = -1;
	server->status = options->status ? options->status : &server->unseen;
	server->libcuda = options->libcuda;
	server->sessions = options->sessions;
	server->exchange = options->exchange;
	server->session_count = options->sessions ? options->session_count : 0;
	server->meter.received_bytes = &server->status->received_bytes;
	server->meter.busy_ns = &server->status->busy_ns;
	server->meter.reading_since_ns = &server->status->reading_since_ns;
	pthread_mutex_init(&server->busy_lock, NULL);
	pthread_mutex_init(&server->leader, NULL);
	pthread_mutex_init(&server->write, NULL);
	pthread_mutex_init(&server->lock, NULL);
	pthread_mutex_init(&server->exchange_lock, NULL);
	pthread_mutex_init(&server->exports_lock, NULL);
	pthread_mutex_init(&server->shared_end, NULL);
	pthread_mutex_init(&server->shared_lock, NULL);
	pthread_mutex_init(&server->holds_lock, NULL);
	pthread_cond_init(&server->let_go, NULL);
	pthread_cond_init(&server->end, NULL);
	pthread_mutex_init(&server->objects.lock, NULL);
	pthread_mutex_init(&server->functions.lock, NULL);
	pthread_mutex_init(&server->held_lock, NULL);
	aside_init(&server->aside, &server->host_waits, &server->threads);
}

int server_serve(const struct server_options *options, char *why, int bytes)
{
	struct server *server = options->prepared ? options->prepared : server_make();
	int rc;

	if (!server)
		return server_fail(why, bytes, -ENOMEM, "out of memory");
	server_init(server, options);
	rc = transport_socket_init(&server->transport, options->descriptor);
	if (rc) {
		free(server);
		return server_fail(why, bytes, rc, "take over descriptor %d: %s", options->descriptor,
			    strerror(-rc));
	}
	rc = server_hello(server, options, why, bytes);
	if (!rc)
		rc = inbox_init(&server->inbox, &server->transport);
	server->inbox.meter = &server->meter;
	/* Its first frames may be there already, so that it waits for none. */
	atomic_store_explicit(&server->status->reading_since_ns, transport_now_ns(), memory_order_relaxed);
	/* Our threads may be moved; a program's are its own. */
	server->inbox.parts = true;
	server->patient = inbox_has_processors();
	if (!rc)
		rc = server_text_start(server);
	if (!rc)
		rc = server_run(server);
	server->transport.ops->shutdown(&server->transport);
	/* Not freed: other threads may be inside the driver, and the process ends. */
	return rc;
}
