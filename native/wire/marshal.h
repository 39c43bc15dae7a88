/* marshal.h - the arguments of a call as bytes, written and read by the same walk.
 *
 * A walk (generated/params.h) visits the arguments in one order.  Where `get` is
 * false it writes what they hold, where it is true it reads into them, with memory
 * of its own for what pointers lead to.  What is read comes from another machine:
 * lengths are checked before anything is touched, and memory has a budget.
 */
#ifndef FARBUS_WIRE_MARSHAL_H
#define FARBUS_WIRE_MARSHAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../generated/cuda_abi.h"
#include "cursor.h"

/* Most bytes that the arguments of one call may take, as frames allow. */
#define MARSHAL_REQUEST_BYTES (128u << 10)
/* Most memory that reading the arguments of one call takes. */
#define MARSHAL_MEMORY_BYTES (4u << 20)
/* Most elements of one list. */
#define MARSHAL_LIST_LIMIT 65536u
/* Most structures within each other. */
#define MARSHAL_DEPTH_LIMIT 8u

struct marshal_block;

struct marshal {
	bool get;
	bool reply;			/* walking what comes back */
	bool failed;			/* not what a walk writes, or more than the limits */
	CUresult result;		/* of the first handle that named nothing */
	uint8_t *data;			/* written; malloc'ed */
	size_t used;
	size_t room;
	struct wire_reader reader;
	struct marshal_block *blocks;
	size_t memory_left;
	unsigned depth;
	void *side;			/* what the side's own functions need */
};

/* Both leave nothing to free. */
void marshal_writer(struct marshal *m);
void marshal_reader(struct marshal *m, const void *data, size_t bytes);
void marshal_free(struct marshal *m);

/* Zeroed memory that lasts as long as the walk; NULL and `failed` beyond the budget. */
void *marshal_memory(struct marshal *m, size_t count, size_t size);

/* The bytes themselves. */
void marshal_plain(struct marshal *m, void *data, size_t bytes);

/* Whether a pointer leads anywhere.  Reading: memory for `count` elements, or NULL. */
void *marshal_pointer(struct marshal *m, void *pointer, size_t count, size_t size);

/* What the program reads after the call, as the driver keeps a node's parameters: `memory`
 * of the walk, or where the client reads a reply, a copy of it that lasts (client/calls/marshal.c). */
void *marshal_lasting(struct marshal *m, void *memory, size_t bytes);

/* A string with its end; NULL stays NULL. */
char *marshal_string(struct marshal *m, char *text);

/* How many elements there is room for, at most MARSHAL_LIST_LIMIT; `count` is a size_t or an
 * unsigned int of `bytes`, or NULL. */
size_t marshal_room(struct marshal *m, void *count, size_t bytes);

/* What a list lacks of a count of the program's, which may be less than that. */
static inline size_t marshal_less(size_t count, size_t less)
{
	return count > less ? count - less : 0;
}

/* How many elements a list holds once the call has told its length. */
static inline size_t marshal_filled(size_t count, size_t room)
{
	return count < room ? count : room;
}

/* What a list of handles has room for beyond what was listed is NULL, as the driver leaves it. */
static inline void marshal_rest(const struct marshal *m, void *list, size_t size, size_t filled,
				size_t room)
{
	if (m->get && m->reply && list && filled < room)
		memset((char *)list + filled * size, 0, (room - filled) * size);
}

/* Note the first failure. */
static inline void marshal_fail(struct marshal *m, CUresult result)
{
	if (m->result == CUDA_SUCCESS)
		m->result = result;
}

/* Handles, by the side that compiles the walk: names where they travel, the program's
 * or the driver's own on either end.  NULL travels as NULL. */
void marshal_CUarray(struct marshal *m, CUarray *handle);
void marshal_CUcontext(struct marshal *m, CUcontext *handle);
void marshal_CUdevResource(struct marshal *m, CUdevResource *resource);
void marshal_CUdevResourceDesc(struct marshal *m, CUdevResourceDesc *handle);
void marshal_CUdevice(struct marshal *m, CUdevice *device);
void marshal_CUevent(struct marshal *m, CUevent *handle);
void marshal_CUfunction(struct marshal *m, CUfunction *handle);
void marshal_CUkernel(struct marshal *m, CUkernel *handle);
void marshal_CUgraph(struct marshal *m, CUgraph *handle);
void marshal_CUgraphConditionalHandle(struct marshal *m, CUgraphConditionalHandle *handle);
void marshal_CUgraphExec(struct marshal *m, CUgraphExec *handle);
void marshal_CUgraphNode(struct marshal *m, CUgraphNode *handle);
void marshal_CUgreenCtx(struct marshal *m, CUgreenCtx *handle);
void marshal_CUlinkState(struct marshal *m, CUlinkState *handle);
void marshal_CUmemGenericAllocationHandle(struct marshal *m, CUmemGenericAllocationHandle *handle);
void marshal_CUmemoryPool(struct marshal *m, CUmemoryPool *handle);
void marshal_CUmipmappedArray(struct marshal *m, CUmipmappedArray *handle);
void marshal_CUmodule(struct marshal *m, CUmodule *handle);
void marshal_CUstream(struct marshal *m, CUstream *handle);
void marshal_CUsurfObject(struct marshal *m, CUsurfObject *handle);
void marshal_CUsurfref(struct marshal *m, CUsurfref *handle);
void marshal_CUtexref(struct marshal *m, CUtexref *handle);
void marshal_CUtexObject(struct marshal *m, CUtexObject *handle);
void marshal_CUuserObject(struct marshal *m, CUuserObject *handle);

/* A graph that lies in the node which was walked last, beside others. */
void marshal_body(struct marshal *m, CUgraph *body);
/* A kernel's parameters, however the caller gave them. */
void marshal_parameters(struct marshal *m, CUfunction function, void ***parameters, void ***extra);
/* A function of the program's process and its argument. */
void marshal_host_function(struct marshal *m, CUhostFn *function, void **argument);
/* Memory of the program's process that a graph reads or writes. */
void marshal_host_memory(struct marshal *m, void **memory);

#endif
