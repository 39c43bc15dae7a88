/* builtin.c - functions that PTX declares and the device provides. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

#define HEAP_BYTES_MAX ((size_t)8 << 20)	/* CUDA's default cudaLimitMallocHeapSize */

static _Atomic size_t heap_used;
static _Atomic size_t heap_limit = HEAP_BYTES_MAX;

static char *lane_locals(const struct warp *warp, unsigned lane)
{
	return warp->local + lane * warp->local_stride + warp->local_offset;
}

static uint64_t argument(const struct warp *warp, const struct instruction *call, unsigned lane,
			 unsigned index)
{
	const struct call_site *site = call->target;
	uint64_t value = 0;

	if (index >= site->argument_count)
		warp_fail((struct warp *)warp, ENGINE_LAUNCH_FAILED,
			  "too few arguments to a device function (PTX line %u)", call->line);
	memcpy(&value, lane_locals(warp, lane) + site->arguments[index].offset,
	       site->arguments[index].bytes < 8 ? site->arguments[index].bytes : 8);
	return value;
}

static void set_result(const struct warp *warp, const struct instruction *call, unsigned lane,
		       uint64_t value)
{
	const struct call_site *site = call->target;

	if (site->has_result)
		memcpy(lane_locals(warp, lane) + site->result.offset, &value,
		       site->result.bytes < 8 ? site->result.bytes : 8);
}

static const struct instruction *builtin_vprintf(struct warp *warp, const struct instruction *call)
{
	warp->ip = call;
	for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);
		const char *format = (const char *)(uintptr_t)argument(warp, call, lane, 0);
		const char *arguments = (const char *)(uintptr_t)argument(warp, call, lane, 1);

		set_result(warp, call, lane,
			   (uint64_t)print_format(warp->block->launch, format, arguments));
	}
	return call + 1;
}

/* __assertfail(message, file, line, function, character size); the text is
 * what CUDA prints. */
static const struct instruction *builtin_assertfail(struct warp *warp,
						    const struct instruction *call)
{
	const struct block *block = warp->block;
	char text[1024];

	warp->ip = call;
	for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);
		int used = snprintf(text, sizeof(text),
				    "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
				    (const char *)(uintptr_t)argument(warp, call, lane, 1),
				    (unsigned)argument(warp, call, lane, 2),
				    (const char *)(uintptr_t)argument(warp, call, lane, 3),
				    block->index[0], block->index[1], block->index[2],
				    warp->thread_index[0][lane], warp->thread_index[1][lane],
				    warp->thread_index[2][lane],
				    (const char *)(uintptr_t)argument(warp, call, lane, 0));

		print_text(block->launch, text,
			   used < (int)sizeof(text) ? (size_t)used : sizeof(text) - 1);
	}
	warp_fail(warp, ENGINE_ASSERT, "assertion failed");
}

/* The allocator takes locks: a fault in it must not unwind past them. */
static void *heap_alloc(size_t bytes)
{
	size_t used = atomic_load(&heap_used);
	struct slot *slot;
	void *memory;

	if (!bytes || bytes > atomic_load(&heap_limit) ||
	    used > atomic_load(&heap_limit) - bytes)
		return NULL;
	slot = fault_disarm();
	memory = aligned_alloc(16, (bytes + 15) & ~(size_t)15);
	if (memory)
		atomic_fetch_add(&heap_used, malloc_usable_size(memory));
	fault_arm(slot);
	return memory;
}

static void heap_free(void *memory)
{
	struct slot *slot = fault_disarm();

	if (memory)
		atomic_fetch_sub(&heap_used, malloc_usable_size(memory));
	free(memory);
	fault_arm(slot);
}

static const struct instruction *builtin_malloc(struct warp *warp, const struct instruction *call)
{
	for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);

		set_result(warp, call, lane,
			   (uintptr_t)heap_alloc(argument(warp, call, lane, 0)));
	}
	return call + 1;
}

static const struct instruction *builtin_free(struct warp *warp, const struct instruction *call)
{
	for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);

		heap_free((void *)(uintptr_t)argument(warp, call, lane, 0));
	}
	return call + 1;
}

handler_fn builtin_handler(const char *name)
{
	static const struct {
		const char *name;
		handler_fn handler;
	} builtins[] = {
		{ "vprintf", builtin_vprintf },
		{ "__assertfail", builtin_assertfail },
		{ "malloc", builtin_malloc },
		{ "free", builtin_free },
	};

	for (size_t k = 0; k < sizeof(builtins) / sizeof(builtins[0]); k++)
		if (!strcmp(builtins[k].name, name))
			return builtins[k].handler;
	return NULL;
}
