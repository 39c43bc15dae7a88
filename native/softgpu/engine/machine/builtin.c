/* builtin.c - functions that PTX declares and the device provides. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../running.h"

#define HEAP_BYTES_MAX ((size_t)8 << 20)	/* CUDA's default cudaLimitMallocHeapSize */

/* Ahead of the memory that a kernel was given.  Only what is in the table may be
 * freed: a kernel may call free with any bits. */
struct heap_block {
	struct heap_block *next;	/* of the same bucket */
	size_t bytes;
};

_Static_assert(sizeof(struct heap_block) == 16, "what follows is aligned to 16 bytes");

#define HEAP_BUCKETS 4096u	/* a power of two */

static struct {
	pthread_mutex_t mutex;
	size_t used, limit;
	struct heap_block *buckets[HEAP_BUCKETS];
} heap = { .mutex = PTHREAD_MUTEX_INITIALIZER, .limit = HEAP_BYTES_MAX };

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

static struct heap_block **heap_bucket(const struct heap_block *block)
{
	return &heap.buckets[((uintptr_t)block >> 4) % HEAP_BUCKETS];
}

/* The allocator takes locks: a fault in it must not unwind past them. */
static void *heap_alloc(size_t bytes)
{
	struct slot *slot = fault_disarm();
	struct heap_block *block = NULL, **bucket;

	pthread_mutex_lock(&heap.mutex);
	if (bytes && bytes <= heap.limit - heap.used)
		block = aligned_alloc(16, (sizeof(*block) + bytes + 15) & ~(size_t)15);
	if (block) {
		bucket = heap_bucket(block);
		*block = (struct heap_block){ *bucket, bytes };
		*bucket = block;
		heap.used += bytes;
	}
	pthread_mutex_unlock(&heap.mutex);
	fault_arm(slot);
	return block ? block + 1 : NULL;
}

/* False if the memory is not one that heap_alloc gave, or is free already. */
static bool heap_free(uintptr_t memory)
{
	struct slot *slot = fault_disarm();
	/* Not to be looked into before it is found. */
	struct heap_block *block = (struct heap_block *)(memory - sizeof(*block)), **link;
	bool found;

	pthread_mutex_lock(&heap.mutex);
	for (link = heap_bucket(block); *link && *link != block; link = &(*link)->next)
		;
	block = *link;
	found = block;
	if (found) {
		*link = block->next;
		heap.used -= block->bytes;
	}
	pthread_mutex_unlock(&heap.mutex);
	free(block);
	fault_arm(slot);
	return found;
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

		uintptr_t memory = (uintptr_t)argument(warp, call, lane, 0);

		warp->ip = call;
		if (memory && !heap_free(memory))
			warp_fail(warp, ENGINE_LAUNCH_FAILED,
				  "free of %#llx, which malloc did not give (PTX line %u)",
				  (unsigned long long)memory, call->line);
	}
	return call + 1;
}

/* cudaGraphSetConditional(handle, value), which is in no library: drivers provide it. */
static const struct instruction *builtin_set_conditional(struct warp *warp,
							 const struct instruction *call)
{
	const struct engine_launch *request = warp->block->launch->request;

	warp->ip = call;
	for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);
		uint64_t handle = argument(warp, call, lane, 0);
		uint32_t value = (uint32_t)argument(warp, call, lane, 1);
		/* What is called takes locks. */
		struct slot *slot = fault_disarm();
		bool done = request->set_condition &&
			    request->set_condition(request->condition_opaque, handle, value);

		fault_arm(slot);
		if (!done)
			warp_fail(warp, ENGINE_LAUNCH_FAILED,
				  "cudaGraphSetConditional of %#llx, which is no handle of the "
				  "kernel's context (PTX line %u)",
				  (unsigned long long)handle, call->line);
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
		{ "cudaGraphSetConditional", builtin_set_conditional },
	};

	for (size_t k = 0; k < sizeof(builtins) / sizeof(builtins[0]); k++)
		if (!strcmp(builtins[k].name, name))
			return builtins[k].handler;
	return NULL;
}
