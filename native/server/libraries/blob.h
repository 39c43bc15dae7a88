/* blob.h - images on their way, in parts (blob.c). */
#ifndef FARBUS_SERVER_BLOB_H
#define FARBUS_SERVER_BLOB_H

#include "../server_ops.h"

/* A blob that has arrived whole; its data becomes the caller's.  NULL: there is none such. */
void *server_blob_take(struct server *server, uint64_t handle, uint64_t bytes);

#endif
