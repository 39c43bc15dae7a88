/* library.h - images and libraries (library.c). */
#ifndef FARBUS_SERVER_LIBRARY_H
#define FARBUS_SERVER_LIBRARY_H

#include "../server_ops.h"

#include "../../wire/cursor.h"
#include "../../wire/image.h"
#include "../../wire/kernel.h"

/* A loaded image.  Kernels are named by handles in server.functions. */
struct server_library {
	struct server_context *context;
	bool is_module;
	union {
		CUlibrary library;
		CUmodule module;
	};
	void *packed;			/* the driver may keep pointers into it */
	struct image_unpacked image;
	void **kernels;			/* CUkernel or CUfunction */
	uint64_t *handles;
	uint32_t count;
	bool enumerated;
	struct server_library *next;	/* of those that ended with their context */
};

/* The modules of a context: nobody finds them any more; and, when the driver has destroyed them with the
 * context, the memory that it may have pointed into until then. */
void server_libraries_forget(struct server_context *context);
void server_libraries_free(struct server_context *context);
CUresult server_resolve_library(struct server_call *call, uint64_t handle, CUlibrary *library);
/* A module, and the name (named.c) under which its references lie. */
CUresult server_resolve_module(struct server_call *call, uint64_t handle, CUmodule *module,
			       uint64_t *name);
/* Options of the just-in-time compiler from a message: those that are plain numbers, the others
 * are left out.  Room is for WIRE_JIT_OPTIONS. */
struct wire_reader;
CUresult server_jit_options(struct wire_reader *reader, uint32_t count, CUjit_option *options,
			    void **values, unsigned *taken);

#endif
