/* library.h - libraries and modules (library.c). */
#ifndef FARBUS_CLIENT_LIBRARY_H
#define FARBUS_CLIENT_LIBRARY_H

#include "../client.h"
#include "jit.h"

struct client_parameter {
	uint32_t offset;
	uint32_t bytes;
};

/* CUfunction_attribute values that are kept with a kernel. */
#define CLIENT_FUNCTION_ATTRIBUTES WIRE_KERNEL_ATTRIBUTES

/* What CUDA 2 lets a program set of a launch before it launches (old.c). */
#define CLIENT_PIECES_BYTES 4096u

struct client_pieces {
	uint32_t block[3];
	uint32_t shared_bytes;
	uint32_t bytes;			/* of the parameters */
	uint8_t parameters[CLIENT_PIECES_BYTES];
};

/* A kernel as it is on one device. */
struct client_kernel {
	_Atomic uint64_t wire;		/* its server's name for it; 0: it is not there yet */
	_Atomic bool described;		/* what follows is there */
	_Atomic uint32_t attributes_known;	/* bit n: attributes[n]; else it is -1 */
	_Atomic int attributes[CLIENT_FUNCTION_ATTRIBUTES];
	_Atomic uint32_t set;			/* bit n: to what attributes[n] says, by the program, */
	_Atomic unsigned set_epoch;		/* since so many contexts had ended */
	uint16_t setting[CLIENT_FUNCTION_ATTRIBUTES];	/* threads that set attributes[n] at this time, */
	uint32_t overlaps;			/* bit n: several of them; both under a lock of function.c */
};

/* A kernel; its handle is both its CUkernel and its CUfunction. */
struct client_function {
	CUfunction handle;
	struct client_library *library;
	char *name;
	struct client_parameter *parameters;
	uint32_t parameter_count;
	uint32_t parameter_bytes;
	struct client_pieces *pieces;	/* NULL: nothing was set */
	struct client_occupancy *occupancy;	/* what was asked before (function.c), or NULL */
	struct client_fits *fits;		/* launches that the driver took (launch.c), or NULL */
	struct client_kernel on[];	/* by the device */
};

/* A library or a module: the same thing with a different door.  A module is its context's;
 * a library is loaded at the server that is current then, and at others when it is used
 * there. */
struct client_library {
	CUlibrary handle;
	struct client_context *context;	/* of a module; NULL: a library */
	struct client_session *session;	/* that described its kernels */
	const void *origin;		/* where the program had the image: for messages alone */
	struct client_library *next;
	pthread_mutex_t lock;		/* over functions */
	struct client_function **functions;
	uint32_t function_count;
	uint32_t function_room;
	_Atomic uint32_t loaded;	/* bit n: the session of index n has it */
	uint32_t listed;		/* bit n: that one has described all kernels */
	/* What other servers are sent when a kernel is first used there; NULL: there is one. */
	void *image;
	size_t image_bytes;		/* of it as it travels, kept or not */
	struct client_jit_options *options;
};

/* Whose a module is, and its context; CUDA_ERROR_NOT_SUPPORTED for that of a library. */
CUresult client_module_find(CUmodule module, const struct client_library **library);
/* Bytes of what a server was sent of it, or had of it before; 0: there is none. */
size_t client_library_bytes(const void *handle);

void client_libraries_forget(struct client_context *context);
CUresult client_module_load(CUmodule *module, const void *image);
/* A file's bytes with a zero behind them; malloc'ed. */
CUresult client_file_read(const char *path, void **data, size_t *bytes);
/* Send something too large for a frame; the operation that names `blob` comes next. */
CUresult client_blob_send(const struct client_route *route, uint64_t blob, const void *data,
			  size_t bytes);

/* A library or a module; NULL: it is none. */
struct client_library *client_library_get(const void *handle);
/* Load it at a server where it is not yet. */
CUresult client_library_bring(struct client_library *library, struct client_session *session);

/* Has the server described all of its kernels? */
static inline bool client_library_listed(const struct client_library *library, const struct client_session *session)
{
	return library->listed >> session->index & 1;
}

#endif
