/* The export tables.  Which slots are called, and with what, was observed from
 * outside on cudart 11.8 to 13.5; names are our own, sizes at least those of driver 580.  ZLUDA (Apache-2.0/MIT)
 * documents several of them too. */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cudart_host *cudart_host;

typedef void (*slot_function)(void);
#define SLOT(function) ((slot_function)(function))

static CUresult slot_unknown(const char *table, const void *caller)
{
	Dl_info library;

	fprintf(stderr, "farbus: %s called an unknown function of the driver's private table %s\n",
		dladdr(caller, &library) && library.dli_fname ? library.dli_fname : "a CUDA library", table);
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define UNKNOWN_IN(name, table)							\
	static CUresult name(void)						\
	{									\
		return slot_unknown(table, __builtin_return_address(0));	\
	}
UNKNOWN_IN(unknown_runtime, "CUDART")
UNKNOWN_IN(unknown_hooks, "TOOLS_HOOKS")
UNKNOWN_IN(unknown_tls, "TOOLS_TLS")
UNKNOWN_IN(unknown_check, "CTXCHECK")
UNKNOWN_IN(unknown_context, "TOOLSCTX")
UNKNOWN_IN(unknown_module, "TOOLSMOD")
#ifdef CUDART_HANDSHAKE
UNKNOWN_IN(unknown_integrity, "INTEGRITY")
#endif

/* CUDART: primary contexts; modules for cudart 11. */

static CUresult runtime_module_load(CUmodule *module, const void *wrapper)
{
	return cudart_host->module_load(module, wrapper);
}

static CUresult runtime_primary_context(CUcontext *context, CUdevice device)
{
	return cudart_host->primary_context(device, context);
}

static CUresult runtime_module_load_2(CUmodule *module, const void *wrapper, void *unused_1,
				      void *unused_2, unsigned unused_3)
{
	(void)unused_1;
	(void)unused_2;
	(void)unused_3;
	return cudart_host->module_load(module, wrapper);
}

static CUresult runtime_nothing(void)
{
	return CUDA_SUCCESS;
}

static CUresult runtime_module_load_3(const void *wrapper, CUmodule *module, void *unused_1,
				      void *unused_2, unsigned unused_3)
{
	(void)unused_1;
	(void)unused_2;
	(void)unused_3;
	return cudart_host->module_load(module, wrapper);
}

struct runtime_table {
	size_t bytes;
	slot_function slots[15];
};

static const struct runtime_table table_runtime = {
	.bytes = sizeof(table_runtime),
	.slots = {
		[0] = SLOT(runtime_module_load),
		[1] = SLOT(runtime_primary_context),
		[2 ... 4] = SLOT(unknown_runtime),
		[5] = SLOT(runtime_module_load_2),
		[6] = SLOT(runtime_nothing),
		[7] = SLOT(runtime_module_load_3),
		[8 ... 10] = SLOT(unknown_runtime),
		[11] = SLOT(runtime_nothing),
		[12 ... 14] = SLOT(unknown_runtime),
	},
};

/* TOOLS_HOOKS: flags by which a tool would ask to be called back; all off.
 * cudart reads 1024 words, whatever size it is told. */
static uint32_t hook_flags[1024];
static uint32_t hook_flags_2[1024];

static void hooks_flags(void **flags, size_t *count)
{
	*flags = hook_flags;
	*count = sizeof(hook_flags);
}

static void hooks_flags_2(void **flags, size_t *count)
{
	*flags = hook_flags_2;
	*count = 14;
}

static const struct {
	size_t bytes;
	slot_function slots[6];
} table_hooks = {
	.bytes = sizeof(table_hooks),
	.slots = {
		[0] = SLOT(unknown_hooks),
		[1] = SLOT(hooks_flags),
		[2 ... 4] = SLOT(unknown_hooks),
		[5] = SLOT(hooks_flags_2),
	},
};

/* TOOLS_TLS: the thread's current context. */

static CUresult tls_current(CUcontext *context)
{
	return cudart_host->current_context(context);
}

static const struct {
	size_t bytes;
	slot_function slots[3];
} table_tls = {
	.bytes = sizeof(table_tls),
	.slots = {
		[0] = SLOT(unknown_tls),
		[1] = SLOT(tls_current),
		[2] = SLOT(unknown_tls),
	},
};

/* CLS: values that libraries keep with a context. */

typedef void (*storage_destructor)(CUcontext context, void *key, void *value);

struct storage_item {
	struct storage_item *next;
	CUcontext context;
	void *key;
	void *value;
	storage_destructor destructor;
};

static pthread_mutex_t storage_lock = PTHREAD_MUTEX_INITIALIZER;
static struct storage_item *storage;

static CUresult storage_context(CUcontext *context)
{
	CUresult result = CUDA_SUCCESS;

	if (!*context)
		result = cudart_host->current_context(context);
	return result == CUDA_SUCCESS && !*context ? CUDA_ERROR_INVALID_CONTEXT : result;
}

/* The link that points to the item, or to the end; the lock is held. */
static struct storage_item **storage_find(CUcontext context, const void *key)
{
	struct storage_item **link = &storage;

	while (*link && ((*link)->context != context || (*link)->key != key))
		link = &(*link)->next;
	return link;
}

static CUresult storage_put(CUcontext context, void *key, void *value,
			    storage_destructor destructor)
{
	CUresult result = storage_context(&context);
	struct storage_item **link;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&storage_lock);
	link = storage_find(context, key);
	if (!*link)
		*link = calloc(1, sizeof(**link));
	if (*link) {
		(*link)->context = context;
		(*link)->key = key;
		(*link)->value = value;
		(*link)->destructor = destructor;
	} else {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&storage_lock);
	return result;
}

static CUresult storage_delete(CUcontext context, void *key)
{
	CUresult result = storage_context(&context);
	struct storage_item **link, *item;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&storage_lock);
	link = storage_find(context, key);
	item = *link;
	if (item)
		*link = item->next;
	pthread_mutex_unlock(&storage_lock);
	free(item);
	return item ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult storage_get(void **value, CUcontext context, void *key)
{
	CUresult result = storage_context(&context);
	struct storage_item *item;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&storage_lock);
	item = *storage_find(context, key);
	if (item)
		*value = item->value;
	pthread_mutex_unlock(&storage_lock);
	return item ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void cudart_context_destroyed(CUcontext context)
{
	for (;;) {
		struct storage_item **link = &storage, *item;

		/* One at a time: a destructor may use the storage again. */
		pthread_mutex_lock(&storage_lock);
		while (*link && (*link)->context != context)
			link = &(*link)->next;
		item = *link;
		if (item)
			*link = item->next;
		pthread_mutex_unlock(&storage_lock);
		if (!item)
			return;
		if (item->destructor)
			item->destructor(context, item->key, item->value);
		free(item);
	}
}

/* This one has no size; a NULL ends it. */
static const slot_function table_storage[] = {
	SLOT(storage_put), SLOT(storage_delete), SLOT(storage_get), NULL,
};

/* CTXCHECK (12.4 and later): may this context be used? */

static CUresult check_context(CUcontext context, uint32_t *state, void **detail)
{
	(void)context;
	*state = 0;
	*detail = NULL;
	return CUDA_SUCCESS;
}

static const struct {
	size_t bytes;
	slot_function slots[14];
} table_check = {
	.bytes = sizeof(table_check),
	.slots = {
		[0] = SLOT(unknown_check),
		[1] = SLOT(check_context),
		[2] = SLOT(runtime_nothing),
		[3 ... 13] = SLOT(unknown_check),
	},
};

/* TOOLSCTX (cudart 13.4, cuBLAS, cuBLASLt, cuDNN): what a context is, and a stream in it. */

static CUresult context_device(CUcontext context, CUdevice *device)
{
	return cudart_host->context_device(context, device);
}

static CUresult context_number(CUcontext context, uint64_t *number)
{
	*number = (uint64_t)(uintptr_t)context;
	return CUDA_SUCCESS;
}

/* What the next one is asked about; the default stream has one, too. */
static CUresult context_stream(CUcontext context, CUstream stream, void **object)
{
	(void)context;
	*object = stream ? (void *)stream : (void *)CU_STREAM_LEGACY;
	return CUDA_SUCCESS;
}

static CUresult context_stream_number(CUcontext context, void *object, unsigned long long *number)
{
	(void)context;
	return cudart_host->stream_number((CUstream)object, number);
}

static const struct {
	size_t bytes;
	slot_function slots[94];
} table_context = {
	.bytes = sizeof(table_context),
	.slots = {
		[0 ... 1] = SLOT(unknown_context),
		[2] = SLOT(context_device),
		[3] = SLOT(context_number),
		[4 ... 37] = SLOT(unknown_context),
		[38] = SLOT(context_stream_number),
		[39 ... 49] = SLOT(unknown_context),
		[50] = SLOT(context_stream),
		[51 ... 93] = SLOT(unknown_context),
	},
};

/* TOOLSMOD (cuFFT): the kernels of a module. */

static int module_functions(CUcontext context, CUmodule module,
			    void (*visit)(void *opaque, CUfunction function), void *opaque)
{
	(void)context;
	return cudart_host->module_functions(module, visit, opaque);
}

static const struct {
	size_t bytes;
	slot_function slots[98];
} table_module = {
	.bytes = sizeof(table_module),
	.slots = {
		[0 ... 5] = SLOT(unknown_module),
		[6] = SLOT(module_functions),
		[7 ... 97] = SLOT(unknown_module),
	},
};

/* LAYOUT (cuBLASLt on compute capability 9.0, which calls it without a look at whether there is one): where
 * multiprocessors lie. */

static CUresult layout_give(uint8_t **gpcs, uint8_t **numbers)
{
	if (!gpcs || !numbers)
		return CUDA_ERROR_INVALID_VALUE;
	return cudart_host->device_layout(gpcs, numbers);
}

static CUresult layout_take_back(uint8_t *gpcs, uint8_t *numbers)
{
	free(gpcs);
	free(numbers);
	return CUDA_SUCCESS;
}

/* The others were never seen called; who might can do without them, as it can without the table. */
static CUresult layout_absent(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

static const struct {
	size_t bytes;
	slot_function slots[16];
} table_layout = {
	.bytes = sizeof(table_layout),
	.slots = {
		[0 ... 2] = SLOT(layout_absent),
		[3] = SLOT(layout_give),
		[4 ... 11] = SLOT(layout_absent),
		[12] = SLOT(layout_take_back),
		[13 ... 15] = SLOT(layout_absent),
	},
};

#ifdef CUDART_HANDSHAKE

static CUresult integrity_answer(uint32_t version, uint64_t seconds, uint64_t answer[2]);

static const struct {
	size_t bytes;
	slot_function slots[2];
} table_integrity = {
	.bytes = sizeof(table_integrity),
	.slots = { SLOT(integrity_answer), SLOT(unknown_integrity) },
};

static CUresult integrity_answer(uint32_t version, uint64_t seconds, uint64_t answer[2])
{
	const struct cudart_integrity integrity = {
		.cudart_table = &table_runtime,
		.integrity_table = &table_integrity,
		.integrity_function = (const void *)integrity_answer,
		.host = cudart_host,
	};

	return cudart_integrity_answer(&integrity, version, seconds, answer);
}

#endif

static const struct {
	uint8_t uuid[16];
	const void *table;
} tables[] = {
	{ { 0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
	    0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9 }, &table_runtime },
	{ { 0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74,
	    0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66 }, &table_hooks },
	{ { 0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47,
	    0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc }, &table_tls },
	{ { 0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
	    0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93 }, table_storage },
	{ { 0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43,
	    0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e }, &table_check },
	{ { 0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48,
	    0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2 }, &table_context },
	{ { 0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d,
	    0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e }, &table_module },
	{ { 0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45,
	    0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca }, &table_layout },
#ifdef CUDART_HANDSHAKE
	{ { 0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
	    0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2 }, &table_integrity },
#endif
};

void cudart_init(const struct cudart_host *host)
{
	cudart_host = host;
}

const void *cudart_export_table(const CUuuid *uuid)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		if (memcmp(tables[i].uuid, uuid->bytes, sizeof(tables[i].uuid)) == 0)
			return tables[i].table;
	return NULL;
}
