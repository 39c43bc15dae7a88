/* frame.h - what every message of a remoting session starts with.
 *
 * A session is one ordered stream of frames in each direction.  The order in
 * which frames enter the stream is the session's order: the server starts to
 * execute them in that order, whichever threads they came from.
 *
 * All integers are little-endian; hello.h refuses peers of other byte order.
 */
#ifndef FARBUS_WIRE_FRAME_H
#define FARBUS_WIRE_FRAME_H

#include <stdint.h>

#include "../generated/wire_ops.h"

struct wire_header {
	uint32_t length;	/* bytes that follow this header */
	uint16_t opcode;	/* enum wire_op; | WIRE_REPLY in a reply */
	uint16_t lane;		/* the client's thread */
	uint64_t sequence;	/* of the request; a reply repeats it */
	uint64_t argument;	/* request: handle of the current context; reply: CUresult */
};
_Static_assert(sizeof(struct wire_header) == 24, "wire layout");

/* Most bytes of the fixed part of a message. */
#define WIRE_FIXED_BYTES 128u
/* Most bytes that may follow a header. */
#define WIRE_FRAME_BYTES (WIRE_FIXED_BYTES + WIRE_BULK_BYTES)
/* The status of a host_call that says: this token will not be asked for again. */
#define WIRE_TOKEN_FORGOTTEN INT32_MIN
/* Most threads of one client process: more share lane 0 and wait for each other. */
#define WIRE_LANES 4096u
/* No thread's, since 2.4: what the client asks in streams of its own, which no stream of the program is before and no host
 * function.  It waits for no other lane's frames, so that a host function may wait for it. */
#define WIRE_LANE_OWN (WIRE_LANES - 1)
/* The first minor version that has it. */
#define WIRE_LANE_OWN_MINOR 4u

/* A reply's result, and no CUresult: the server does not know that function of the driver. */
#define WIRE_RESULT_UNKNOWN 0x7fffffffu

#endif
