/* What the server asks this process to do when a stream gets there, on threads of this library's (jobs.c): host
 * functions, gates, and the bytes of pinned memory that could not be taken earlier. */
#include "../exchange/exchange.h"
#include "../exchange/failure.h"
#include "../exchange/jobs.h"
#include "../exchange/outstanding.h"
#include "../exchange/pace.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

/* Send the rows of a pulled copy, packed. */
static void job_send(const struct host_job *job)
{
	const struct client_route route = { .session = job->session };
	size_t total = job->width * job->height, at = 0;
	uint8_t *packed = malloc(WIRE_BULK_BYTES);

	if (!packed) {
		client_message("out of memory while reading pinned memory for the GPU");
		client_session_fail(job->session, -12);
		return;
	}
	while (at < total) {
		const struct wire_pull_data fixed = { .token = job->token, .offset = at };
		struct client_request request = {
			.op = WIRE_OP_PULL_DATA,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
			.tail = packed,
		};
		size_t bytes = 0;

		while (bytes < WIRE_BULK_BYTES && at + bytes < total) {
			size_t row = (at + bytes) / job->width, column = (at + bytes) % job->width;
			size_t now = job->width - column;

			if (now > WIRE_BULK_BYTES - bytes)
				now = WIRE_BULK_BYTES - bytes;
			memcpy(packed + bytes, job->host + row * job->pitch + column, now);
			bytes += now;
		}
		request.tail_bytes = bytes;
		if (client_post_to(&route, &request) != CUDA_SUCCESS)
			break;
		at += bytes;
	}
	free(packed);
}

/* Let the stream that waits for the token go on. */
static void job_tell(const struct host_job *job)
{
	const struct client_route route = { .session = job->session };
	const struct wire_host_done fixed = { .token = job->token };
	const struct client_request request = {
		.op = WIRE_OP_HOST_DONE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};

	client_post_to(&route, &request);
}

/* The program's function has returned, or has ended its thread: the stream goes on. */
static void job_called(void *opaque)
{
	const struct client_managed *managed;
	struct host_job *job = opaque;

	client_thread()->host_function = false;
	if (job->refused) {
		client_job_end_refused(job);
		return;
	}
	managed = atomic_load_explicit(&farbus_client.managed, memory_order_relaxed);
	if (managed)
		managed->host_end(job->wire);
	job_tell(job);
	client_flush(job->session);
	if (!job->kept)
		client_job_end(job);
}

/* No CUDA call is allowed meanwhile. */
static void job_call(struct host_job *job)
{
	pthread_cleanup_push(job_called, job);
	client_thread()->host_function = true;
	if (job->callback)
		job->callback(job->stream, job->status, job->argument);
	else
		job->function(job->argument);
	pthread_cleanup_pop(1);
}

/* Call the program's function, or send what is in its memory, and let the stream go on. */
static void job_do(struct host_job *job)
{
	const struct client_managed *managed = atomic_load_explicit(&farbus_client.managed, memory_order_relaxed);

	if (!job->host) {
		if (managed)
			managed->host_begin(job->wire);
		job_call(job);
		return;
	}
	job_send(job);
	client_flush(job->session);
	if (!job->kept)
		client_job_end(job);
}

/* Of what the driver refused callbacks alone are called, with the error that their context has. */
void client_host_run(struct host_job *job, bool again)
{
	if (again) {
		job_do(job);
	} else if (job->refused && job->callback && client_result_is_sticky(job->status)) {
		job_call(job);
	} else if (job->refused) {
		client_job_end_refused(job);
	} else if (job->kept) {
		client_job_end_kept(job);
	} else if (job->reached) {
		job->reached(job, job->argument);
	} else {
		job_do(job);
	}
}

CUresult client_host_post(struct host_job *job, enum wire_op op, const void *fixed, size_t fixed_bytes,
			 struct client_route *route)
{
	const struct client_request request = { .op = op, .fixed = fixed, .fixed_bytes = fixed_bytes };
	CUresult result = client_route_find(op, fixed, route);

	return result == CUDA_SUCCESS ? client_post_registered(route, &request, client_job_posted, job) : result;
}

CUresult client_host_posting(const struct client_route *route, uint64_t token, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		(void)client_job_cancel(token);
		return result;
	}
	client_flush(route->session);
	return client_confirm(route);
}

static CUresult job_open_token(const struct host_job *template, uint64_t *token)
{
	struct host_job *job;
	CUresult result = client_job_open(template, &job);

	if (result == CUDA_SUCCESS)
		*token = job->token;
	return result;
}

CUresult client_host_keep(CUhostFn function, void *argument, uint64_t *token)
{
	const struct host_job template = {
		.run = client_host_run,
		.function = function,
		.argument = argument,
		.kept = true,
	};

	return job_open_token(&template, token);
}

CUresult client_host_once(CUhostFn function, void *argument, uint64_t *token)
{
	const struct host_job template = {
		.run = client_host_run,
		.function = function,
		.argument = argument,
		.quiet = true,
	};

	return job_open_token(&template, token);
}

void client_host_drop(uint64_t token)
{
	(void)client_job_cancel(token);
}

/* ---- gates ---- */

CUresult client_gate_close(uint64_t stream, bool waits,
			   void (*reached)(struct host_job *gate, void *opaque), void *opaque,
			   struct host_job **gate)
{
	const struct client_route route = client_route_stream(stream);
	const struct host_job template = {
		.run = client_host_run,
		.session = route.session,
		.context = client_stream_context(stream),
		.quiet = !waits,
		.argument = opaque,
		.reached = reached,
	};
	struct wire_stream_host_function function = { .stream = stream };
	struct wire_stream_gate fixed = { .stream = stream, .waits = waits };
	struct client_request request = {
		.op = WIRE_OP_STREAM_GATE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct host_job *job;
	CUresult result;

	/* Before 2.4 a gate is a host function. */
	if (!client_session_has(route.session, WIRE_OP_STREAM_GATE))
		request = (struct client_request){
			.op = WIRE_OP_STREAM_HOST_FUNCTION,
			.fixed = &function,
			.fixed_bytes = sizeof(function),
		};
	if (waits)
		client_stream_pace(stream, CLIENT_WEIGHT_HOST_FUNCTION, 0);
	else
		client_awaited(route.session, 1);
	result = client_job_open(&template, &job);
	if (result == CUDA_SUCCESS) {
		fixed.token = function.token = job->token;
		if (gate)
			*gate = job;
		result = client_post_registered(&route, &request, client_job_posted, job);
		/* Reached by a server that did not wait for all of it: what it leads to is still to be done. */
		if (result != CUDA_SUCCESS && !client_job_cancel(fixed.token))
			result = CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS)
		client_flush(route.session);
	else if (!waits)
		client_awaited(route.session, -1);
	return result;
}

void client_gate_open(struct host_job *gate)
{
	struct client_session *session = gate->session;

	job_tell(gate);
	client_flush(session);
	if (gate->quiet)
		client_awaited(session, -1);
	client_job_end(gate);
}

/* A copy in a captured stream: each run of the graph reads the bytes anew. */
CUresult client_host_copy_captured(uint64_t device, size_t device_pitch, const void *host,
				   size_t host_pitch, size_t width, size_t height,
				   uint64_t stream_wire)
{
	const struct host_job template = {
		.run = client_host_run,
		.host = host,
		.pitch = host_pitch,
		.width = width,
		.height = height,
		.kept = true,
	};
	struct wire_capture_copy_to_device request = {
		.device = device,
		.pitch = device_pitch,
		.width = width,
		.height = height,
		.stream = stream_wire,
	};
	struct host_job *job;
	CUresult result = client_job_open(&template, &job);

	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	/* On failure the server forgets the token by itself, if it ever had it. */
	return client_call(WIRE_OP_CAPTURE_COPY_TO_DEVICE, &request, sizeof(request), NULL, 0);
}

CUresult client_host_copy(uint64_t device, size_t device_pitch, const void *host, size_t host_pitch,
			  size_t width, size_t height, uint64_t stream_wire)
{
	const struct host_job template = {
		.run = client_host_run,
		.session = client_stream_session(stream_wire),
		.context = client_stream_context(stream_wire),
		.host = host,
		.pitch = host_pitch,
		.width = width,
		.height = height,
	};
	struct wire_copy_pinned_to_device request = {
		.device = device,
		.pitch = device_pitch,
		.width = width,
		.height = height,
		.stream = stream_wire,
	};
	struct client_route route;
	struct host_job *job;
	CUresult result;

	client_stream_pace(stream_wire, CLIENT_WEIGHT_WORK, 0);
	result = client_job_open(&template, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	result = client_host_post(job, WIRE_OP_COPY_PINNED_TO_DEVICE, &request, sizeof(request), &route);
	return client_host_posting(&route, request.token, result);
}
