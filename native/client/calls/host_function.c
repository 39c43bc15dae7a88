/* Host functions and callbacks of streams, as a program posts them. */
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/jobs.h"
#include "../exchange/pace.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "../managed/managed.h"
#include "../managed/regions.h"
#include "../streams/host.h"

static CUresult host_function_captured(const struct host_job *template, uint64_t stream_wire)
{
	struct wire_capture_host_function request = {
		.stream = stream_wire,
		.function = (uint64_t)(uintptr_t)template->function,
		.argument = (uint64_t)(uintptr_t)template->argument,
	};
	struct host_job kept = *template, *job;
	CUresult result;

	/* CUDA has no callbacks in graphs, only host functions: the capture is lost, as by
	 * asking the stream whether it is done. */
	if (template->callback) {
		const struct wire_stream_query query = { .stream = stream_wire };

		return client_call(WIRE_OP_STREAM_QUERY, &query, sizeof(query), NULL, 0);
	}
	kept.kept = true;
	result = client_job_open(&kept, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	return client_call(WIRE_OP_CAPTURE_HOST_FUNCTION, &request, sizeof(request), NULL, 0);
}

static CUresult host_function(CUstream stream, const struct host_job *template)
{
	struct wire_stream_host_function request;
	struct host_job pending = *template, *job;
	CUresult result = client_stream_enter(stream, &request.stream);
	struct client_route route;
	bool managed;

	if (result != CUDA_SUCCESS)
		return result;
	if (client_stream_captured(request.stream))
		return host_function_captured(template, request.stream);
	client_stream_pace(request.stream, CLIENT_WEIGHT_HOST_FUNCTION, 0);
	pending.session = client_stream_session(request.stream);
	pending.context = client_stream_context(request.stream);
	pending.wire = client_managed_key(request.stream);
	result = client_job_open(&pending, &job);
	if (result != CUDA_SUCCESS)
		return result;
	request.token = job->token;
	_Static_assert(sizeof(struct wire_stream_callback) == sizeof(request), "the same fields");
	/* Not while another thread brings pages back by what would come behind it (client_pages_bring). */
	managed = client_managed_any();
	if (managed)
		client_pages_lock();
	result = client_host_post(job, template->callback ? WIRE_OP_STREAM_CALLBACK : WIRE_OP_STREAM_HOST_FUNCTION, &request,
			  sizeof(request), &route);
	if (managed)
		client_pages_unlock();
	return client_host_posting(&route, request.token, result);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	const struct host_job template = { .run = client_host_run, .function = fn, .argument = userData };

	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(hStream, &template);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
			     unsigned int flags)
{
	const struct host_job template = {
		.run = client_host_run,
		.callback = callback,
		.stream = hStream,
		.argument = userData,
	};

	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(hStream, &template);
}

CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode)
{
	(void)syncMode;
	return cuLaunchHostFunc(hStream, fn, userData);
}
