/* Frames to the client, and what comes in the tail of one of its own. */
#include "frames.h"

#include <stdlib.h>
#include <string.h>

#include "../../transport/sockets/zerocopy.h"
#include "../../wire/cursor.h"

/* As little as this leaves in one message with the reply that follows it: of more, the network has something to do meanwhile. */
#define TOGETHER_BYTES (4u << 10)

/* `followed` by another frame at once. */
static int frame_send(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence, uint64_t argument,
		      const void *fixed, size_t fixed_bytes, const void *tail, size_t tail_bytes, bool followed)
{
	const struct transport_ops *ops = server->transport.ops;
	struct wire_header header = {
		.length = (uint32_t)(fixed_bytes + tail_bytes),
		.opcode = opcode,
		.lane = lane,
		.sequence = sequence,
		.argument = argument,
	};
	struct iovec vector[3] = { { .iov_base = &header, .iov_len = sizeof(header) } };
	int parts = 1, rc;

	if (fixed_bytes)
		vector[parts++] = (struct iovec){ .iov_base = (void *)fixed, .iov_len = fixed_bytes };
	if (tail_bytes)
		vector[parts++] = (struct iovec){ .iov_base = (void *)tail, .iov_len = tail_bytes };
	pthread_mutex_lock(&server->write);
	/* First: with its last answer a client may go, and with it this process, before this thread goes on. */
	server_count(&server->status->sent_bytes, sizeof(header) + header.length);
	rc = (followed && ops->append ? ops->append : ops->write)(&server->transport, vector, parts);
	atomic_store_explicit(&server->status->uncopied_mib, (uint32_t)(zerocopy_bytes(false) >> 20), memory_order_relaxed);
	pthread_mutex_unlock(&server->write);
	return rc;
}

int server_send(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		uint64_t argument, const void *fixed, size_t fixed_bytes, const void *tail,
		size_t tail_bytes)
{
	return frame_send(server, opcode, lane, sequence, argument, fixed, fixed_bytes, tail, tail_bytes, false);
}

int server_send_data(struct server *server, uint16_t lane, uint64_t sequence, uint64_t offset, const void *bytes,
		     size_t count, bool replied)
{
	const struct wire_data data = { .sequence = sequence, .offset = offset };

	return frame_send(server, WIRE_EVENT_DATA, lane, sequence, 0, &data, sizeof(data), bytes, count,
			  replied && count <= TOGETHER_BYTES);
}

int server_send_begin(struct server *server, uint16_t opcode, uint16_t lane, uint64_t sequence,
		      const void *fixed, size_t fixed_bytes, size_t tail_bytes)
{
	struct wire_header header = {
		.length = (uint32_t)(fixed_bytes + tail_bytes),
		.opcode = opcode,
		.lane = lane,
		.sequence = sequence,
	};
	struct iovec vector[2] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)fixed, .iov_len = fixed_bytes },
	};

	const struct transport_ops *ops = server->transport.ops;

	pthread_mutex_lock(&server->write);
	server_count(&server->status->sent_bytes, sizeof(header) + header.length);
	return (ops->append ? ops->append : ops->write)(&server->transport, vector, 2);
}

CUresult server_take(struct server_call *call, void *target, size_t bytes)
{
	if (bytes > call->tail_bytes)
		return SERVER_MALFORMED;
	if (inbox_take(call->inbox, target, bytes))
		return SERVER_MALFORMED;
	call->tail_bytes -= bytes;
	return CUDA_SUCCESS;
}

CUresult server_tail_open(struct server_call *call, struct wire_writer *writer)
{
	call->reply_tail = malloc(WIRE_BULK_BYTES);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*writer = (struct wire_writer){ .at = call->reply_tail, .left = WIRE_BULK_BYTES };
	return CUDA_SUCCESS;
}

void server_tail_close(struct server_call *call, const struct wire_writer *writer)
{
	call->reply_tail_bytes = WIRE_BULK_BYTES - writer->left;
}

void server_status_carried(struct server *server, const struct transport *transport)
{
	uint64_t name = 0;

	/* The last byte stays 0. */
	memcpy(&name, transport->ops->name, strnlen(transport->ops->name, sizeof(name) - 1));
	atomic_store_explicit(&server->status->transport, name, memory_order_relaxed);
}
