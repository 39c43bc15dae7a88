/* Where multiprocessors lie, which drivers tell cuBLASLt by a private table.  What is known of that was observed
 * from outside with driver 580 on an H100; native/cudart/tables.c is the other end. */
#include "../server_ops.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* As much of the table as is used. */
struct layout_table {
	size_t bytes;			/* of all of it */
	void (*unknown[3])(void);
	CUresult (*give)(uint8_t **gpcs, uint8_t **numbers);
	void (*unknown_too[8])(void);
	CUresult (*take_back)(uint8_t *gpcs, uint8_t *numbers);
};

static const CUuuid layout_id = { { '\x17', '\x34', '\xdc', '\x26', '\x80', '\x0d', '\x47', '\x45',
				    '\x87', '\x26', '\xc0', '\xf1', '\xe7', '\xdd', '\x8b',
				    '\xca' } };

/* How much of both arrays travels.  The driver does not say how long they are: they are libc's, which knows
 * to 16 bytes.  There is a byte for each pair of multiprocessors, and never more than one for each of them: so
 * that bounds it, lest much else of this process goes out should they be larger. */
static size_t layout_length(uint8_t *gpcs, uint8_t *numbers, int multiprocessors)
{
	size_t length = multiprocessors > 0 ? (size_t)multiprocessors : 0;
	size_t first = malloc_usable_size(gpcs), second = malloc_usable_size(numbers);

	if (first < length)
		length = first;
	return second < length ? second : length;
}

CUresult serve_device_layout(struct server_call *call)
{
	const size_t room = wire_op_infos[WIRE_OP_DEVICE_LAYOUT].reply_tail;
	const struct server_driver *driver = call->driver;
	const struct layout_table *table;
	const void *found = NULL;
	uint8_t *gpcs = NULL, *numbers = NULL;
	int multiprocessors;
	CUresult result;
	size_t length;

	if (!driver->cuGetExportTable || driver->cuGetExportTable(&found, &layout_id) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_SUPPORTED;
	table = found;
	if (!table || table->bytes < sizeof(*table))
		return CUDA_ERROR_NOT_SUPPORTED;
	result = driver->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
					      call->context->device);
	if (result == CUDA_SUCCESS)
		result = table->give(&gpcs, &numbers);
	if (result != CUDA_SUCCESS)
		return result;
	/* Whether a part can be given back alone is not known. */
	if (!gpcs || !numbers)
		return CUDA_ERROR_NOT_SUPPORTED;
	length = layout_length(gpcs, numbers, multiprocessors);
	if (!length || 2 * length > room) {
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else if (!(call->reply_tail = malloc(2 * length))) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		memcpy(call->reply_tail, gpcs, length);
		memcpy(call->reply_tail + length, numbers, length);
		call->reply_tail_bytes = 2 * length;
	}
	table->take_back(gpcs, numbers);
	return result;
}
