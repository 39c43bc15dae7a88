/* descriptor.h - memory and pools by descriptors (descriptor.c). */
#ifndef FARBUS_CLIENT_DESCRIPTOR_H
#define FARBUS_CLIENT_DESCRIPTOR_H

#include "client.h"

/* Have servers close what they keep for descriptors of which the program has closed the last. */
void client_descriptors_look(void);
/* The child of a fork, behind clofork_child: it keeps none of this process's ends. */
void client_descriptors_child(void);
/* May an object be made for such handles (a mask of CUmemAllocationHandleType)?  If not, it has been said. */
CUresult client_descriptors_check(unsigned types);

#endif
