/* guest.h - a guest in somebody's program keeps out of its way (guest.c). */
#ifndef FARBUS_CLIENT_GUEST_H
#define FARBUS_CLIENT_GUEST_H

/* Move a descriptor to a high number; where none is free, it stays.  Its number now. */
int client_raise_descriptor(int descriptor);

#endif
