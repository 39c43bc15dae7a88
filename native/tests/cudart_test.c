/* The private tables of CUDA's runtime, against a host that is made up here. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cudart/cudart.h"

#undef NDEBUG

static CUcontext current;
static int destroyed;

static int driver_version(void)
{
	return 13000;
}

static int device_count(void)
{
	return 1;
}

static CUresult device_identity(int ordinal, CUuuid *uuid, int pci[3])
{
	memset(uuid->bytes, ordinal + 7, sizeof(uuid->bytes));
	pci[0] = 0;
	pci[1] = 1;
	pci[2] = 0;
	return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context)
{
	*context = current;
	return CUDA_SUCCESS;
}

static CUresult layout_result;

static CUresult device_layout(uint8_t **gpcs, uint8_t **numbers)
{
	if (layout_result != CUDA_SUCCESS)
		return layout_result;
	*gpcs = calloc(2, 1);
	*numbers = calloc(2, 1);
	assert(*gpcs && *numbers);
	(*numbers)[1] = 1;
	return CUDA_SUCCESS;
}

static const struct cudart_host host = {
	.driver_version = driver_version,
	.device_count = device_count,
	.device_identity = device_identity,
	.current_context = current_context,
	.device_layout = device_layout,
};

static const CUuuid storage_id = { { '\xc6', '\x93', '\x33', '\x6e', '\x11', '\x21', '\xdf', '\x11',
				     '\xa8', '\xc3', '\x68', '\xf3', '\x55', '\xd8', '\x95', '\x93' } };
static const CUuuid integrity_id = { { '\xd4', '\x08', '\x20', '\x55', '\xbd', '\xe6', '\x70', '\x4b',
				       '\x8d', '\x34', '\xba', '\x12', '\x3c', '\x66', '\xe1',
				       '\xf2' } };

static const CUuuid layout_id = { { '\x17', '\x34', '\xdc', '\x26', '\x80', '\x0d', '\x47', '\x45',
				    '\x87', '\x26', '\xc0', '\xf1', '\xe7', '\xdd', '\x8b',
				    '\xca' } };

static void destructor(CUcontext context, void *key, void *value)
{
	(void)context;
	(void)key;
	destroyed += *(int *)value;
}

static void test_storage_belongs_to_its_context(void)
{
	struct storage_table {
		CUresult (*put)(CUcontext, void *, void *, void (*)(CUcontext, void *, void *));
		CUresult (*delete)(CUcontext, void *);
		CUresult (*get)(void **, CUcontext, void *);
	};
	const struct storage_table *table = cudart_export_table(&storage_id);
	CUcontext a = (CUcontext)0x10, b = (CUcontext)0x20;
	int key, one = 1, two = 2;
	void *value;

	assert(table);
	assert(table->get(&value, NULL, &key) != CUDA_SUCCESS);
	assert(table->put(a, &key, &one, destructor) == CUDA_SUCCESS);
	assert(table->put(b, &key, &two, destructor) == CUDA_SUCCESS);
	current = a;
	assert(table->get(&value, NULL, &key) == CUDA_SUCCESS && value == &one);
	assert(table->get(&value, b, &key) == CUDA_SUCCESS && value == &two);
	cudart_context_destroyed(b);
	assert(destroyed == 2);
	assert(table->get(&value, b, &key) != CUDA_SUCCESS);
	assert(table->delete(a, &key) == CUDA_SUCCESS);
	assert(table->get(&value, a, &key) != CUDA_SUCCESS);
	cudart_context_destroyed(a);
	assert(destroyed == 2);
}

static void test_unknown_tables_are_refused(void)
{
	static const CUuuid unknown = { { 1, 2, 3 } };

	assert(!cudart_export_table(&unknown));
}

static void test_the_fixed_answers_are_the_published_ones(void)
{
	struct integrity_table {
		size_t bytes;
		CUresult (*answer)(uint32_t, uint64_t, uint64_t[2]);
	};
	const struct integrity_table *table = cudart_export_table(&integrity_id);
	uint64_t answer[2], again[2];

	if (!table)
		return;		/* built without the handshake */
	assert(table->answer(13000, 0, answer) == CUDA_SUCCESS);
	assert(answer[0] == 0x3341181c03cb675cu && answer[1] == 0x8ed383aa1f4cd1e8u);
	assert(table->answer(13001, 0, answer) == CUDA_SUCCESS);
	assert(answer[0] == 0x1841181c03cb675cu && answer[1] == 0x8ed383aa1f4cd1e8u);
	assert(table->answer(13002, 1000, answer) == CUDA_SUCCESS);
	assert(table->answer(13002, 1001, again) == CUDA_SUCCESS);
	assert(answer[0] != again[0] || answer[1] != again[1]);
}

static void test_the_layout_is_the_host_s(void)
{
	struct layout_table {
		size_t bytes;
		CUresult (*before[3])(void);
		CUresult (*give)(uint8_t **, uint8_t **);
		CUresult (*between[8])(void);
		CUresult (*take_back)(uint8_t *, uint8_t *);
		CUresult (*behind[3])(void);
	};
	const struct layout_table *table = cudart_export_table(&layout_id);
	uint8_t *gpcs = NULL, *numbers = NULL;

	assert(table && table->bytes == sizeof(*table) && table->bytes == 17 * sizeof(void *));
	assert(table->give(NULL, &numbers) == CUDA_ERROR_INVALID_VALUE);
	assert(table->give(&gpcs, NULL) == CUDA_ERROR_INVALID_VALUE);
	layout_result = CUDA_ERROR_INVALID_CONTEXT;
	assert(table->give(&gpcs, &numbers) == CUDA_ERROR_INVALID_CONTEXT);
	assert(!gpcs && !numbers);
	layout_result = CUDA_SUCCESS;
	assert(table->give(&gpcs, &numbers) == CUDA_SUCCESS);
	assert(gpcs[0] == 0 && gpcs[1] == 0 && numbers[0] == 0 && numbers[1] == 1);
	assert(table->take_back(gpcs, numbers) == CUDA_SUCCESS);
	assert(table->take_back(NULL, NULL) == CUDA_SUCCESS);
	for (int i = 0; i < 3; i++)
		assert(table->before[i]() == CUDA_ERROR_NOT_SUPPORTED &&
		       table->behind[i]() == CUDA_ERROR_NOT_SUPPORTED);
	for (int i = 0; i < 8; i++)
		assert(table->between[i]() == CUDA_ERROR_NOT_SUPPORTED);
}

int main(void)
{
	cudart_init(&host);
	test_unknown_tables_are_refused();
	test_storage_belongs_to_its_context();
	test_the_fixed_answers_are_the_published_ones();
	test_the_layout_is_the_host_s();
	puts("ok");
	return 0;
}
