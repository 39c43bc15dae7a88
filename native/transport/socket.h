/* socket.h - what the transports share of system calls. */
#ifndef FARBUS_TRANSPORT_SOCKET_H
#define FARBUS_TRANSPORT_SOCKET_H

/* No call of a transport is a cancellation point: callers hold locks, and the thread
 * that is cancelled may be the one that reads for all others. */
int transport_cancel_disable(void);
void transport_cancel_restore(int before);

/* poll(2) on one descriptor, prolonged by no signal.  0, -ETIMEDOUT or -errno. */
int transport_poll(int descriptor, short events, int timeout_ms);

#endif
