/* cuInit, and what a program may ask before it. */
#include "../across/across.h"
#include "../addresses/exports.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../exchange/receive.h"
#include "../ground/thread.h"
#include "../ground/trace.h"
#include "../handles/route.h"
#include "../libraries/kernel.h"
#include "../libraries/library.h"
#include "../lives/context_life.h"
#include "../managed/managed.h"
#include "../sessions/resume.h"
#include "../sessions/session.h"
#include "capture.h"
#include "details.h"
#include "device.h"

#include <string.h>

#include "../../cudart/cudart.h"
#include "../../transport/ground/clofork.h"

/* The child of a fork has no session: CUDA answers error 3 there. */
static void child_of_fork(void)
{
	struct client *client = &farbus_client;

	clofork_child();
	client_descriptors_child();
	/* Another thread may have held it: there is none here. */
	pthread_mutex_init(&client->init, NULL);
	switch (atomic_load(&client->state)) {
	case CLIENT_FRESH:	/* the child may use CUDA by itself */
	case CLIENT_FAILED:
		return;
	default:
		atomic_store(&client->state, CLIENT_FORKED);
	}
	for (unsigned i = 0; i < client->session_count; i++)
		client_session_let_go(&client->sessions[i]);
}

static void fork_watch(void)
{
	pthread_atfork(clofork_prepare, clofork_parent, child_of_fork);
}

/* Take client.init, such that a fork from now on does not leave it locked in the child. */
static void client_init_lock(struct client *client)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fork_watch);
	pthread_mutex_lock(&client->init);
}

/* Connect, without starting a thread; client.init is held. */
static CUresult client_connect(struct client *client)
{
	int state = atomic_load(&client->state);
	CUresult result;
	int cancel;

	if (state == CLIENT_FAILED)
		return client->failure;
	if (state == CLIENT_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (state != CLIENT_FRESH)
		return CUDA_SUCCESS;
	atomic_store(&client->state, CLIENT_CONNECTING);
	client_trace_note(CLIENT_TRACE_CALLED);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	result = client_trace_trouble();
	if (result == CUDA_SUCCESS)
		result = client_sessions_open(client);
	pthread_setcancelstate(cancel, &cancel);
	if (result != CUDA_SUCCESS) {
		client->failure = result;
		atomic_store(&client->state, CLIENT_FAILED);
		return result;
	}
	atomic_store(&client->state, CLIENT_CONNECTED);
	return CUDA_SUCCESS;
}

/* A thread of the program's ends: servers that are there are told, before its lane is another's. */
static void thread_end(void *opaque)
{
	struct client_thread *thread = opaque;

	client_capture_thread_ends();
	if (atomic_load(&farbus_client.state) != CLIENT_READY)
		return;
	for (unsigned i = 0; i < farbus_client.session_count; i++) {
		const struct client_route route = { .session = &farbus_client.sessions[i] };
		const struct client_request request = { .op = WIRE_OP_LANE_END };

		if (!atomic_load(&route.session->dead))
			client_post_to(&route, &request);
	}
	client_captures_end_thread(thread->lane);
	client_thread_leave(thread);
}

static void cudart_start(void);

static CUresult client_start(struct client *client)
{
	CUresult result = client_mapped_check();

	for (int i = 0; i < client->device_count && result == CUDA_SUCCESS; i++)
		result = client_context_make_primary(&client->devices[i]);
	if (result != CUDA_SUCCESS)
		return result;
	if (client_threads_init(thread_end))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (client->session_count > 1)
		client->session_lost = client_across_lost;
	for (unsigned i = 0; i < client->session_count; i++)
		if (client_session_start(&client->sessions[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	cudart_start();
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags)
{
	struct client *client = &farbus_client;
	CUresult result;

	if (atomic_load(&client->state) == CLIENT_READY)
		return Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (atomic_load(&client->state) == CLIENT_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (Flags)
		return CUDA_ERROR_INVALID_VALUE;
	client_init_lock(client);
	result = client_connect(client);
	if (result == CUDA_SUCCESS && client->device_count == 0)
		result = CUDA_ERROR_NO_DEVICE;
	if (result == CUDA_SUCCESS && atomic_load(&client->state) == CLIENT_CONNECTED) {
		result = client_start(client);
		if (result == CUDA_SUCCESS) {
			atomic_store(&client->state, CLIENT_READY);
		} else {
			client->failure = result;
			atomic_store(&client->state, CLIENT_FAILED);
		}
	}
	pthread_mutex_unlock(&client->init);
	return result;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
	struct client *client = &farbus_client;

	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	/* Valid before cuInit, and what it says must not change afterwards. */
	client_init_lock(client);
	*driverVersion = client_connect(client) == CUDA_SUCCESS ? client->driver_version
								: CLIENT_DRIVER_VERSION;
	pthread_mutex_unlock(&client->init);
	return CUDA_SUCCESS;
}

/* ---- the profiler has nothing to do here ---- */

CUresult cuProfilerStart(void)
{
	return client_enter();
}

CUresult cuProfilerStop(void)
{
	return client_enter();
}

/* ---- what the runtime's private tables ask ---- */

static int host_driver_version(void)
{
	return farbus_client.driver_version;
}

static int host_device_count(void)
{
	return farbus_client.device_count;
}

static CUresult host_device_identity(int ordinal, CUuuid *uuid, int pci[3])
{
	const struct client_device *device = &farbus_client.devices[ordinal];

	memcpy(uuid->bytes, device->snapshot.uuid, sizeof(uuid->bytes));
	memcpy(pci, device->pci, sizeof(device->pci));
	return CUDA_SUCCESS;
}

static CUresult host_primary_context(CUdevice device, CUcontext *context)
{
	if (device < 0 || device >= farbus_client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = farbus_client.devices[device].primary->handle;
	return CUDA_SUCCESS;
}

static CUresult host_context_device(CUcontext handle, CUdevice *device)
{
	struct client_context *context = handle ? client_context_get(handle)
						: client_context_current();

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

/* These go to the server, and come past the entries. */
static CUresult host_module_load(CUmodule *module, const void *wrapper)
{
	CLIENT_TRACED("cudart.module_load", client_module_load(module, wrapper),
		      IMAGE(module));
}

static CUresult host_device_layout(uint8_t **gpcs, uint8_t **numbers)
{
	CLIENT_TRACED("cudart.device_layout", client_device_layout(gpcs, numbers), (void)0);
}

static const struct cudart_host cudart_callbacks = {
	.driver_version = host_driver_version,
	.device_count = host_device_count,
	.device_identity = host_device_identity,
	.primary_context = host_primary_context,
	.current_context = cuCtxGetCurrent,
	.context_device = host_context_device,
	.stream_number = cuStreamGetId,
	.module_load = host_module_load,
	.module_functions = client_module_visit,
	.device_layout = host_device_layout,
};

static void cudart_start(void)
{
	cudart_init(&cudart_callbacks);
}
