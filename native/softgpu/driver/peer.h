/* peer.h - which memory of other devices a context may use. */
#ifndef FARBUS_SOFTGPU_DRIVER_PEER_H
#define FARBUS_SOFTGPU_DRIVER_PEER_H

#include "../engine/engine.h"
#include "context.h"

/* For a launch in the context; what it may use is asked while it runs. */
void driver_peer_reach(struct CUctx_st *context, struct engine_reach *reach);

#endif
