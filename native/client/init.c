/* cuInit, versions, look-ups, export tables, error texts. */
#include "descriptor.h"
#include "details.h"
#include "library.h"
#include "managed.h"
#include "resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cudart/cudart.h"
#include "../transport/clofork.h"

struct client farbus_client = {
	.init = PTHREAD_MUTEX_INITIALIZER,
	.handles = HANDLE_TABLE_INITIALIZER,
	.sessions = { [0 ... CLIENT_SERVERS - 1] = { .transport = { .descriptor = -1 } } },
};

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

static void cudart_start(void);

static CUresult client_start(struct client *client)
{
	CUresult result = client_mapped_check();

	for (int i = 0; i < client->device_count && result == CUDA_SUCCESS; i++)
		result = client_context_make_primary(&client->devices[i]);
	if (result != CUDA_SUCCESS)
		return result;
	if (client_threads_init())
		return CUDA_ERROR_OUT_OF_MEMORY;
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

/* ---- look-ups ---- */

CUresult client_unsupported(int number)
{
	static _Atomic unsigned char said[4096];

	for (size_t i = 0; i < client_entry_count; i++) {
		const struct client_entry *entry = &client_entries[i];

		if (entry->number != number)
			continue;
		if (number < (int)sizeof(said) && !atomic_exchange(&said[number], 1))
			client_message("%s is not supported over remoting: %s", entry->symbol,
				       entry->reason);
		break;
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult client_missing(const struct client_session *session, int number)
{
	static _Atomic unsigned char said[4096];

	for (size_t i = 0; i < client_entry_count; i++) {
		if (client_entries[i].number != number)
			continue;
		if (number < (int)sizeof(said) && !atomic_exchange(&said[number], 1))
			client_message("the server at %s does not have %s: it speaks remoting protocol "
				       "%u.%u, this shim %u.%u; install the same version of farbus on "
				       "both nodes", session->peer, client_entries[i].symbol,
				       session->major, session->minor, WIRE_PROTOCOL_MAJOR,
				       WIRE_PROTOCOL_MINOR);
		break;
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* The first entry of that name, or client_entry_count. */
static size_t entry_first(const char *name)
{
	size_t low = 0, high = client_entry_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (strcmp(client_entries[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The newest variant whose version is at most the requested one. */
static void *entry_resolve(const char *name, int version, cuuint64_t flags, bool *known)
{
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	void *found = NULL;

	*known = false;
	for (size_t i = entry_first(name); i < client_entry_count; i++) {
		const struct client_entry *entry = &client_entries[i];

		if (strcmp(entry->name, name) != 0)
			break;
		*known = true;
		if (entry->version <= version)
			found = entry->function;
		if (per_thread && entry->thread_function && entry->thread_version <= version)
			found = entry->thread_function;
	}
	if (*known)
		return found;
	/* Some libraries ask for a symbol's full name. */
	for (size_t i = 0; i < client_entry_count; i++) {
		const struct client_entry *entry = &client_entries[i];

		if (entry->thread_symbol && strcmp(entry->thread_symbol, name) == 0)
			found = entry->thread_function;
		else if (strcmp(entry->symbol, name) == 0)
			found = entry->function;
	}
	*known = found;
	return found;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	bool known;
	void *found;
	int newest = farbus_client.driver_version ? farbus_client.driver_version
						  : CLIENT_DRIVER_VERSION;

	if (!symbol || !pfn)
		return CUDA_ERROR_INVALID_VALUE;
	found = entry_resolve(symbol, cudaVersion < newest ? cudaVersion : newest, flags, &known);
	*pfn = found;
	if (symbolStatus)
		*symbolStatus = found ? CU_GET_PROC_ADDRESS_SUCCESS
				: known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
					: CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (found)
		return CUDA_SUCCESS;
	return symbolStatus ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	const void *table;

	if (!ppExportTable || !pExportTableId)
		return CUDA_ERROR_INVALID_VALUE;
	table = cudart_export_table(pExportTableId);
	if (!table)
		return CUDA_ERROR_INVALID_VALUE;
	*ppExportTable = table;
	return CUDA_SUCCESS;
}

/* ---- error texts ---- */

static const struct {
	CUresult result;
	const char *name;
	const char *text;
} results[] = {
#define ROW(name, text) { name, #name, text },
	CUDA_ABI_RESULTS(ROW)
#undef ROW
};

#define RESULT_COUNT (sizeof(results) / sizeof(results[0]))

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < RESULT_COUNT; i++) {
		if (results[i].result == error) {
			*pStr = results[i].name;
			return CUDA_SUCCESS;
		}
	}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < RESULT_COUNT; i++) {
		if (results[i].result == error) {
			*pStr = results[i].text;
			return CUDA_SUCCESS;
		}
	}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
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
