/* plane.h - what a copy is of. */
#ifndef FARBUS_CLIENT_PLANE_H
#define FARBUS_CLIENT_PLANE_H

#include "ranges.h"

/* Rows of bytes on one side of a copy; height 1: pitch does not matter. */
struct client_plane {
	uint64_t address;
	size_t pitch;
	enum client_memory_kind kind;
	struct client_context *context;	/* whose memory it is; NULL: this process's */
};

struct client_extent {
	size_t width;
	size_t height;
};

#endif
