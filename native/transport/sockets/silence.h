/* silence.h - does the network still carry what is sent?  Only the kernel knows whether the peer's answers. */
#ifndef FARBUS_TRANSPORT_SILENCE_H
#define FARBUS_TRANSPORT_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Of all connections of one stream; zero: nothing is known. */
struct silence {
	uint64_t since_ns;		/* since when nothing was answered, 0: it was */
	uint64_t looked_ns;
};

/* Is it time to look again? */
bool silence_is_due(struct silence *self);
/* Look at these: true: on one of them the peer's kernel has not answered for so long that the network between is gone. */
bool silence_is_found(struct silence *self, const int *descriptors, unsigned count);
/* The stream goes on over another connection. */
void silence_end(struct silence *self);

#endif
