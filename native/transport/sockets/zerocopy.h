/* zerocopy.h - what the kernel sends from where it lies (MSG_ZEROCOPY, Documentation/networking/msg_zerocopy.rst).
 *
 * The kernel keeps the pages of what is sent so, and not a copy.  It numbers these sends, and when it is done with one says so in
 * the socket's error queue: there it also says where it has copied all the same.  Until somebody has taken that, poll(2) tells of
 * POLLERR, which is then no error of the connection: who polls the descriptor of such a socket takes it (transport_ops.hear).
 *
 * Whether a path copies nobody knows beforehand: over the loopback and to containers the kernel copies where the receiver begins,
 * adapters without scatter and gather have it copy at once, and what is sent again may be copied on any path.  So it is
 * tried on each connection, and given up where most was copied.
 *
 * One caller at a time sends.  Anybody takes what the kernel has said.
 */
#ifndef FARBUS_TRANSPORT_ZEROCOPY_H
#define FARBUS_TRANSPORT_ZEROCOPY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct transport;
struct zerocopy;

/* Have a connected TCP socket send so what may be sent so, if its kernel can. */
void transport_zerocopy_begin(struct transport *transport);
void transport_zerocopy_drop(struct zerocopy *zerocopy);

/* Is there any use in it?  NULL: no. */
bool zerocopy_is_on(const struct zerocopy *zerocopy);

/* As send(2): how many bytes, or -1 and errno.  They stay as they are until the kernel's pages of them matter no more; where it
 * takes no more of these (RLIMIT_MEMLOCK, net.core.optmem_max) they are copied. */
ssize_t zerocopy_send(struct zerocopy *zerocopy, int descriptor, const void *at, size_t bytes);

/* Take what the kernel has said.  false: it has said nothing. */
bool zerocopy_take(struct zerocopy *zerocopy, int descriptor);

/* For tests: go on also where the kernel copies, as over the loopback.  What waits in a socket to be sent is not copied there,
 * either. */
void zerocopy_set_stubborn(bool stubborn);

/* Bytes that this process has sent so, as far as its kernel has told: of those that it has copied all the same, or of the others. */
uint64_t zerocopy_bytes(bool copied);

#endif
