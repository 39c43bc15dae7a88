/* descriptor.h - what lies in the descriptor that a program gets for memory or a pool of its lease.
 *
 * It is one end of a socket of this machine (AF_UNIX, SOCK_SEQPACKET) with this message in it, which whoever
 * imports looks at and leaves there.  The driver's own descriptor is kept on the GPU's node, by the lease's
 * supervisor, for who shows the token. */
#ifndef FARBUS_WIRE_DESCRIPTOR_H
#define FARBUS_WIRE_DESCRIPTOR_H

#include <stdint.h>

#include "hello.h"

#define WIRE_DESCRIPTOR_MAGIC 0x0a0d7375627261f1ull	/* no text begins so */
#define WIRE_DESCRIPTOR_VERSION 1u

enum wire_descriptor_kind {
	WIRE_DESCRIPTOR_MEMORY = 1,	/* cuMemCreate's */
	WIRE_DESCRIPTOR_POOL = 2,
};

struct wire_descriptor {
	uint64_t magic;
	uint32_t version;
	uint32_t kind;
	uint8_t lease[WIRE_LEASE_BYTES];
	uint64_t token[4];		/* random, the supervisor's */
};
_Static_assert(sizeof(struct wire_descriptor) == 64, "layout in a program's descriptor");
_Static_assert(sizeof(((struct wire_descriptor *)0)->token) == WIRE_TOKEN_BYTES, "one token");

/* Why an export or an import was not made, where the driver has no say in it. */
enum wire_descriptor_refusal {
	WIRE_DESCRIPTOR_GRANTED = 0,
	WIRE_DESCRIPTOR_UNKNOWN = 1,	/* no session of the lease keeps such a one (any more) */
	WIRE_DESCRIPTOR_FULL = 2,	/* session or lease keep as many as they may */
	WIRE_DESCRIPTOR_SILENT = 3,	/* the supervisor does not answer */
	WIRE_DESCRIPTOR_GARBLED = 4,	/* the supervisor says what is no answer */
};

#endif
