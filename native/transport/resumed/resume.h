/* resume.h - a stream of bytes that outlives the connections that carry it.
 *
 * Wraps a connected transport (TCP, or what encrypts it) behind the same calls.  Each
 * direction counts its bytes; the writer keeps what the peer has not acknowledged, at most
 * RESUME_WINDOW_BYTES, and sends it again over the connection that comes after a cut.
 * Who makes that connection is not this layer's affair: the client dials (`dial`), the server
 * is given one (transport_resume_hold, then transport_resume_adopt).
 */
#ifndef FARBUS_TRANSPORT_RESUME_H
#define FARBUS_TRANSPORT_RESUME_H

#include "../transport.h"

/* Most bytes that a peer may have sent and not seen acknowledged: part of the protocol, since
 * the other side must be able to take so many in while nobody there wants them.  Powers of two,
 * for they are rings.  The one of peers that know of no other is what a network of 25 Gb/s holds in 5 ms; with
 * others a window begins with less, which stays in the processor's cache and is more than the 2 MiB that older
 * readers acknowledge at a time, and grows as far as the network holds bytes, at most to what 10 Gb/s hold in 100 ms.
 * A server begins with RESUME_WINDOW_RING where its client acknowledges often enough for that and is on the same machine: what
 * the kernel holds of it stays in a processor's cache.  Over a network a copy of some MiB would wait for it once more. */
#define RESUME_WINDOW_BYTES (16u << 20)
#define RESUME_WINDOW_FIRST (4u << 20)
#define RESUME_WINDOW_RING (2u << 20)
#define RESUME_WINDOW_MOST (128u << 20)

struct resume_options {
	uint32_t grace_ms;	/* how long a cut may last */
	bool grows;		/* the peer knows of windows that grow */
	bool prompt;		/* who dials acknowledges often, and who is given connections makes use of it */
	bool bundles;		/* and of several connections (bundle.h), which who dials names; of RDMA there is one */
	/* The same where the peer's machine has closed or reset the connection, and not gone
	 * silent: mostly the peer's process is gone, and a peer that is not notices at once. */
	uint32_t closed_grace_ms;
	/* One attempt to connect and to agree with the peer; NULL: connections are given.  Called on
	 * a thread of its own while the stream is cut, again after a pause.  On 0, *fresh
	 * is connected and *peer_received what the peer has of this side's stream; -EAGAIN: try
	 * again; anything else ends the stream.  `left_ms` is what is left of the grace time. */
	int (*dial)(void *opaque, uint64_t received, int left_ms, struct transport *fresh,
		    uint64_t *peer_received);
	/* The stream goes on over the connection that was dialled. */
	void (*resumed)(void *opaque);
	/* Something of BUNDLE_WIDE_BYTES or more is written or read for the first time: further connections may be worth
	 * having.  Called in the midst of it; NULL: nobody wants to know. */
	void (*bulk)(void *opaque);
	void *opaque;
};

/* Go on over `transport`, which begins its stream here.  0, -ENOMEM or -EMFILE, and it is as it was. */
int transport_resume_wrap(struct transport *transport, const struct resume_options *options);
/* In the child of a fork: close what else than the connection it has a copy of. */
void transport_resume_let_go(struct transport *transport);

/* A peer that has received so much of this side's stream comes with a new connection: give up the
 * one there is, whatever it looks like, and say what was received.  -EPROTO: it can't have; then
 * nothing has changed.  -EPIPE: the stream has ended. */
int transport_resume_hold(struct transport *transport, uint64_t peer_received, uint64_t *received);
/* Go on over `fresh`, which is taken over in any case.  0, -EPROTO or -EPIPE, as above. */
int transport_resume_adopt(struct transport *transport, struct transport *fresh,
			   uint64_t peer_received);

/* Which connection it goes on over, for what is to be added to that one alone. */
uint64_t transport_resume_generation(struct transport *transport);
/* May others be added to it? */
bool transport_resume_may_join(struct transport *transport);
/* Add another connection to the one of that generation, under that number (0: any).  Its number,
 * and *fresh is taken over; -ESTALE: that connection is cut; -ENOSPC or -EEXIST (bundle.h). */
int transport_resume_join(struct transport *transport, struct transport *fresh, uint64_t generation,
			  unsigned number);

/* Where connections are given: the caller has written its last to that one himself. */
void transport_resume_joined(struct transport *transport, uint64_t generation, unsigned number);

/* For who waits elsewhere: is the network still there?  As often as it likes, but at least every
 * TRANSPORT_LOOK_MS, for a thread that writes can't look itself. */
void transport_resume_look(struct transport *transport);

#endif
