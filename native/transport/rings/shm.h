/* shm.h - two rings of bytes in shared memory (shm.c), over a connected Unix socket, which stays as doorbell and as sign of
 * life.
 *
 * The client makes the memory and sends its descriptor with the hello; the server
 * takes it or not.  Once both know, both switch: from then on bytes go through it. */
#ifndef FARBUS_TRANSPORT_SHM_H
#define FARBUS_TRANSPORT_SHM_H

#include "../transport.h"

/* Make memory for a session: *descriptor is to be sent and then closed (clofork_close).  0 or -errno. */
int transport_shm_make(struct shm **shm, int *descriptor);
/* Map what a peer sent, which is closed in any case.  -EPROTO: not what may be offered
 * (size, seals, or not of the socket's other user). */
int transport_shm_take(struct shm **shm, const struct transport *transport, int descriptor);
void transport_shm_drop(struct shm *shm);
/* Go on over `shm`, which the transport then owns. */
void transport_shm_switch(struct transport *transport, struct shm *shm, bool server);
/* Over shared memory: pass a descriptor to the server, ahead of what is written next.  0 or
 * -errno, -EAGAIN among them: it never waits. */
int transport_shm_pass(struct transport *transport, int descriptor);
/* The oldest descriptor that was passed here and not taken yet, now the caller's; -1: there is
 * none.  For who reads. */
int transport_shm_passed(struct transport *transport);

#endif
