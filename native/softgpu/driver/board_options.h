/* board_options.h - what a board is asked to be, and who it is (board_options.c). */
#ifndef FARBUS_SOFTGPU_DRIVER_BOARD_OPTIONS_H
#define FARBUS_SOFTGPU_DRIVER_BOARD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_COUNT_MAX 16	/* software GPUs of one node */

struct board_model {
	uint32_t sm;			/* compute capability, 90 for 9.0 */
	uint32_t multiprocessors;
	uint64_t memory_bytes;
};

/* What FARBUS_SOFTGPU asks for, such as count=2,cc=9.0,mem=8GiB,sms=16. */
struct board_options {
	unsigned count;
	struct board_model model;
	unsigned workers;		/* engine threads, 0: one per processor */
	bool strict;
	bool deterministic;
	uint64_t watchdog_ns;		/* longest kernel, 0: no limit */
	uint64_t grace_ns;		/* for kernels of a context that is destroyed */
};

struct board_identity {
	uint8_t uuid[16];
	char name[64];
	uint32_t pci_domain, pci_bus, pci_device;
};

/* One line for a person. */
struct board_diagnostic {
	char text[256];
};

/* Read the options from FARBUS_SOFTGPU.  0 or -EINVAL with the reason. */
int board_options_read(struct board_options *options, struct board_diagnostic *why);

/* Identity of the board with that index on this node; always succeeds. */
void board_identity_of(unsigned index, struct board_identity *identity);
/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
void board_uuid_format(const uint8_t uuid[16], char text[41]);

#endif
