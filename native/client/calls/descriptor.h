/* descriptor.h - memory and pools by descriptors: how they are given out (descriptor.c). */
#ifndef FARBUS_CLIENT_CALLS_DESCRIPTOR_H
#define FARBUS_CLIENT_CALLS_DESCRIPTOR_H

#include "../client.h"

/* May an object be made for such handles (a mask of CUmemAllocationHandleType)?  If not, it has been said. */
CUresult client_descriptors_check(unsigned types);

#endif
