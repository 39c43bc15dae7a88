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
 */
#ifndef FARBUS_TRANSPORT_BUNDLE_H
#define FARBUS_TRANSPORT_BUNDLE_H

#include "transport.h"

/* Most connections of one bundle, the first among them. */
#define BUNDLE_CONNECTIONS 8u

/* What precedes each chunk that is written. */
#define BUNDLE_HEADER_BYTES 8u

/* Go on as a bundle of this connection alone.  `names`: this side names connections that were
 * added.  0 or -ENOMEM.  Reading returns -EPROTO for what no peer writes. */
int transport_bundle_wrap(struct transport *transport, bool names);
void transport_bundle_drop(struct bundle *bundle);

/* Take over `fresh` as the connection of that number (0: the next that is free).  Its number, and
 * then *fresh is the bundle's; -ENOSPC: there is none; -EEXIST: it is there.  One caller at a time. */
int transport_bundle_add(struct transport *transport, unsigned number, struct transport *fresh);

/* Who does not name connections has nothing more to write to that one himself. */
void transport_bundle_ready(struct transport *transport, unsigned number);

/* The first connection's descriptor has another number: the transport's. */
void transport_bundle_renumber(struct transport *transport);

/* The descriptors of all connections; how many. */
unsigned transport_bundle_all(const struct transport *transport, int all[BUNDLE_CONNECTIONS]);
/* Of the connection over which the next byte comes, for who reads; and of the one that is written
 * to next, for who writes. */
int transport_bundle_reading(const struct transport *transport);
int transport_bundle_writing(const struct transport *transport);

#endif
