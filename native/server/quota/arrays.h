/* arrays.h - arrays and mipmapped arrays (arrays.c). */
#ifndef FARBUS_SERVER_QUOTA_ARRAYS_H
#define FARBUS_SERVER_QUOTA_ARRAYS_H

#include "quota.h"

/* Put functions of ours in the place of the driver's. */
void quota_arrays_install(struct server_driver *driver);

#endif
