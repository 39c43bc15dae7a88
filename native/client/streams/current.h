/* current.h - which context is current to a thread (current.c). */
#ifndef FARBUS_CLIENT_CURRENT_H
#define FARBUS_CLIENT_CURRENT_H

#include "../client.h"

/* It becomes the thread's current one; CUDA_ERROR_INVALID_VALUE: too many are pushed. */
CUresult client_context_push(CUcontext handle);

#endif
