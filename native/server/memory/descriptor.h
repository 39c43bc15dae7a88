/* descriptor.h - memory and pools that other processes of the lease have by a descriptor (descriptor.c). */
#ifndef FARBUS_SERVER_DESCRIPTOR_H
#define FARBUS_SERVER_DESCRIPTOR_H

#include "../server_ops.h"

/* Is it an operation that needs the supervisor to keep descriptors? */
bool server_descriptor_op(unsigned op);

#endif
