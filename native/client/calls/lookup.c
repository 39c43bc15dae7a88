/* Look-ups of the driver API's functions and of the runtime's private tables; functions that are not there. */
#include "../ground/message.h"
#include "lookup.h"

#include <string.h>

#include "../../cudart/cudart.h"

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
