/* managed_alloc.h - what managed memory there is (managed_alloc.c). */
#ifndef FARBUS_CLIENT_MANAGED_ALLOC_H
#define FARBUS_CLIENT_MANAGED_ALLOC_H

#include "../client.h"

/* Pinned memory that is managed, of the current context. */
CUresult client_mapped_alloc(uint64_t bytes, unsigned flags, uint64_t *address);
/* cuMemFree of a managed allocation, or cuMemFreeHost; false: it is none. */
bool client_managed_free(uint64_t address, CUresult *result);
/* A variable of a module that is managed: it can be touched from here on. */
CUresult client_managed_variable(struct client_library *library, struct client_context *context,
				 uint64_t address, uint64_t bytes);
void client_managed_forget_library(const struct client_library *library);
void client_managed_forget_context(const struct client_context *context);

#endif
