/* context_life.h - contexts begin and end (context_life.c). */
#ifndef FARBUS_CLIENT_CONTEXT_LIFE_H
#define FARBUS_CLIENT_CONTEXT_LIFE_H

#include "../client.h"

CUresult client_context_make_primary(struct client_device *device);

#endif
