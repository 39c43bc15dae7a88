/* Captures that go on: which streams are captured the server knows; while none is, that is answered here. */
#include "../ground/thread.h"
#include "../handles/greens.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "captures.h"
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

CUresult client_capture_info(uint64_t stream, struct wire_capture_info_reply *reply, uint8_t **tail,
			     size_t *tail_bytes)
{
	const struct wire_capture_info fixed = { .stream = stream };
	const struct client_request request = {
		.op = WIRE_OP_CAPTURE_INFO,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = {
		.reply = reply,
		.reply_bytes = sizeof(*reply),
		.want_tail = true,
	};
	CUresult result;

	memset(reply, 0, sizeof(*reply));
	*tail = NULL;
	*tail_bytes = 0;
	if (!client_captures())
		return CUDA_SUCCESS;
	result = client_call_wide(&request, &wait);
	*tail = wait.tail;
	*tail_bytes = wait.tail_bytes;
	return result;
}

bool client_stream_captured(uint64_t stream)
{
	struct wire_capture_info_reply reply;
	size_t tail_bytes;
	uint8_t *tail;
	CUresult result = client_capture_info(stream, &reply, &tail, &tail_bytes);

	free(tail);
	return result == CUDA_SUCCESS && reply.status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUgraph client_stream_capture_graph(uint64_t stream)
{
	struct wire_capture_info_reply reply;
	size_t tail_bytes;
	uint8_t *tail;
	CUresult result = client_capture_info(stream, &reply, &tail, &tail_bytes);

	free(tail);
	return result == CUDA_SUCCESS && reply.status == CU_STREAM_CAPTURE_STATUS_ACTIVE ?
	       client_graph_take(stream, reply.graph) : NULL;
}

/* By the stream in which it began, which is that of one thread and context where each has one of the name. */
struct capture {
	struct capture *next;
	uint64_t number;
	uint64_t stream;
	const struct client_context *context;
	const struct client_green *green;	/* to compare with */
	uint16_t lane;
};

static struct {
	pthread_mutex_t lock;
	struct capture *first;
	uint64_t number;		/* of the last that began */
} captures = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool is_thread_s(const struct capture *capture)
{
	return capture->stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD;
}

static bool is_number(const struct capture *capture, const struct capture *meant)
{
	return capture->number == meant->number;
}

static bool is_context(const struct capture *capture, const struct capture *meant)
{
	return capture->context == meant->context;
}

static bool is_green(const struct capture *capture, const struct capture *meant)
{
	return capture->green == meant->green;
}

static bool is_thread(const struct capture *capture, const struct capture *meant)
{
	return is_thread_s(capture) && capture->lane == meant->lane;
}

/* They go on no longer. */
static void captures_drop(bool (*is)(const struct capture *, const struct capture *), const struct capture *meant)
{
	struct capture **link = &captures.first, *capture;

	if (!client_captures())
		return;
	pthread_mutex_lock(&captures.lock);
	while ((capture = *link)) {
		if (!is(capture, meant)) {
			link = &capture->next;
			continue;
		}
		*link = capture->next;
		free(capture);
		atomic_fetch_sub(&farbus_client.capturing, 1);
	}
	pthread_mutex_unlock(&captures.lock);
}

/* What a stream captures, as this thread names it: the first that began, as others are refused meanwhile, and drop
 * themselves. */
void client_capture_leave(uint64_t stream)
{
	const struct client_context *context = client_stream_context(stream);
	uint16_t lane = client_thread()->lane;
	struct capture meant = { 0 };

	if (!client_captures())
		return;
	pthread_mutex_lock(&captures.lock);
	for (const struct capture *capture = captures.first; capture; capture = capture->next)
		if (capture->stream == stream &&
		    (!is_thread_s(capture) || (capture->lane == lane && capture->context == context)))
			meant.number = capture->number;
	pthread_mutex_unlock(&captures.lock);
	captures_drop(is_number, &meant);
}

void client_captures_end_context(const struct client_context *context)
{
	captures_drop(is_context, &(struct capture){ .context = context });
}

void client_captures_end_green(const struct client_green *green)
{
	captures_drop(is_green, &(struct capture){ .green = green });
}

void client_captures_end_thread(uint16_t lane)
{
	captures_drop(is_thread, &(struct capture){ .lane = lane });
}

CUresult client_capture_begin(const struct client_request *request, uint64_t stream)
{
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct capture *capture = calloc(1, sizeof(*capture)), meant = { 0 };
	const struct client_stream *made = client_stream_find(stream);
	CUresult result;

	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*capture = (struct capture){
		.stream = stream,
		.context = client_stream_context(stream),
		.green = made ? made->green : NULL,
		.lane = client_thread()->lane,
	};
	pthread_mutex_lock(&captures.lock);
	meant.number = capture->number = ++captures.number;
	capture->next = captures.first;
	captures.first = capture;
	atomic_fetch_add(&farbus_client.capturing, 1);
	pthread_mutex_unlock(&captures.lock);
	result = client_call_wide(request, &wait);
	if (result != CUDA_SUCCESS)
		captures_drop(is_number, &meant);
	return result;
}
