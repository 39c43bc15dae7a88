/* objects.h - memory apart from addresses (objects.c). */
#ifndef FARBUS_SERVER_QUOTA_OBJECTS_H
#define FARBUS_SERVER_QUOTA_OBJECTS_H

#include "quota.h"

/* Put functions of ours in the place of the driver's. */
void quota_objects_install(struct server_driver *driver);
/* What is charged for memory apart from addresses stays so until it is let go of; NULL: nothing is.  And a handle of the
 * same memory, or with NULL of another process's: it stays as long as that, too, and the reference is the handle's. */
struct charge *server_quota_hold(CUmemGenericAllocationHandle handle);
struct charge *server_quota_hold_again(struct charge *charge);
void server_quota_let_go(struct charge *charge);
void server_quota_share(struct charge *charge, CUmemGenericAllocationHandle handle);

#endif
