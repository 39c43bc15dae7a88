/* memory.h - memory by its address (memory.c). */
#ifndef FARBUS_SERVER_QUOTA_MEMORY_H
#define FARBUS_SERVER_QUOTA_MEMORY_H

#include "quota.h"

/* Put functions of ours in the place of the driver's. */
void quota_memory_install(struct server_driver *driver);

#endif
