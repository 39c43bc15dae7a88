/* bundle.h - one stream of bytes over several connections.
 *
 * In each direction the stream is cut into chunks.  A chunk's header says how long it is and over
 * which connection the next one comes: a reader always knows where to look, and puts nothing in
 * order.  The first chunk comes over the connection that the bundle began with.
 *
 *	length 4	bytes of the stream that follow, at least one
 *	next 1		the connection of the next chunk
 *	zero 3
 *
 * Large writes go where the least lies unsent; small ones name the first connection.  Connections
 * are added while the bundle is in use, by both sides under the same number: first by the server, then by the
 * client, who names it in a chunk.  The server writes over no connection that the client has not named.
 *
 * Where there are processors for it, several threads write and read what is large, one for each connection: the kernel copies
 * what goes through it, and one thread does that at 4 to 6 GB/s.  Who reads gives a chunk to another thread as soon as
 * its header has come, which says where the chunk behind it lies.
 */
#ifndef FARBUS_TRANSPORT_BUNDLE_H
#define FARBUS_TRANSPORT_BUNDLE_H

#include "../transport.h"

/* Most connections of one bundle, the first among them. */
#define BUNDLE_CONNECTIONS 8u

/* What precedes each chunk that is written. */
#define BUNDLE_HEADER_BYTES 8u

/* From here on several threads carry what is written, or to be read. */
#define BUNDLE_WIDE_BYTES (256u << 10)

/* Go on as a bundle of this connection alone.  `names`: this side names connections that were
 * added.  0 or -ENOMEM.  Reading returns -EPROTO for what no peer writes. */
int transport_bundle_wrap(struct transport *transport, bool names);

/* Take over `fresh` as the connection of that number (0: the next that is free).  Its number, and
 * then *fresh is the bundle's; -ENOSPC: there is none; -EEXIST: it is there.  One caller at a time. */
int transport_bundle_add(struct transport *transport, unsigned number, struct transport *fresh);

/* Who does not name connections has nothing more to write to that one himself. */
void transport_bundle_ready(struct transport *transport, unsigned number);

/* Read exactly so many bytes, all of which the peer has sent or is about to, whatever this side does: by several threads.
 * Only for one that is wide (transport.h).  Where nothing has come for TRANSPORT_LOOK_MS, `look` is called; an end of the stream ends
 * the wait.  `bytes`, or -errno, and then the connections are shut down. */
ssize_t transport_bundle_take(struct transport *transport, void *buffer, size_t bytes, void (*look)(void *opaque),
			      void *opaque);

/* The first connection's descriptor has another number: the transport's. */
void transport_bundle_renumber(struct transport *transport);

/* The descriptors of all connections; how many. */
unsigned transport_bundle_all(const struct transport *transport, int all[BUNDLE_CONNECTIONS]);
/* Of the connection over which the next byte comes, for who reads; and of the one that is written
 * to next, for who writes. */
int transport_bundle_reading(const struct transport *transport);
int transport_bundle_writing(const struct transport *transport);

#endif
