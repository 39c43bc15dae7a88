/* emulator.h - a network between two processes of this machine: delay and rate. */
#ifndef FARBUS_BENCH_EMULATOR_H
#define FARBUS_BENCH_EMULATOR_H

#include <stdint.h>

struct emulated {
	uint64_t rtt_ns;	/* half of it in each direction */
	double gbps;		/* 10^9 bits per second and direction, for all connections; 0: not limited */
	double connection_gbps;	/* the same for each connection */
};

/* Pass on connections to a listener on the loopback, each to `port` there, in a child
 * process that ends with this one.  Returns the port to connect to, or -errno. */
int emulator_start(const struct emulated *network, uint16_t port);

#endif
