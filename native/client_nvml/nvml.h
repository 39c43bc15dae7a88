/* nvml.h - the libnvidia-ml.so.1 of a program whose devices are somewhere else.
 *
 * A second client of the remoting protocol beside the shim (native/client), whose way into
 * a session it shares.  It has a connection of its own, because programs ask NVML before and
 * without CUDA, and in children of a fork: nvmlInit connects, takes the snapshot of the
 * devices, and lets go; the first question that only the server can answer connects again,
 * and that connection stays until the last nvmlShutdown.  No threads, no work when loaded.
 *
 *	nvmlInit		the last nvmlShutdown
 *	down -----------> up ------------------------> down
 *			  |  idle: no connection
 *			  |  connected: a question was asked
 *			  |  lost: every question about a device of that server is answered
 *			  v	   NVML_ERROR_GPU_IS_LOST at once; what the snapshot tells is still told
 *
 * Locks, in the order in which they are taken: link (over the connection; held while the
 * server answers, which has a limit) > lock (over the rest; never held while waiting).
 */
#ifndef FARBUS_CLIENT_NVML_NVML_H
#define FARBUS_CLIENT_NVML_NVML_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../client/client.h"
#include "../generated/nvml_functions.h"
#include "../nvml/nvml_abi.h"

/* NVML answers in microseconds to some 100 ms; a driver that takes longer is stuck. */
#define NVML_ANSWER_TIMEOUT_MS 10000
/* Most bytes of a version's text, NUL included (NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE). */
#define NVML_VERSION_TEXT_BYTES 80

/* What is known of a device from nvmlInit on.  A handle points to one of nvml.devices. */
struct nvmlDevice_st {
	unsigned server;			/* index of its session */
	uint32_t ordinal;			/* the server's */
	char name[256];
	uint8_t uuid[16];
	uint64_t total_bytes;			/* what the lease may use */
	unsigned domain, bus, slot;		/* of the server's PCI */
	unsigned pci_device, pci_subsystem;	/* 0: not known */
	int capability[2];
};

struct nvml {
	pthread_mutex_t link;
	bool connected;
	uint32_t lost;			/* bit n: the server of session n */
	bool stale;			/* a fork's child has the parent's buffers still */
	uint64_t sequence;

	pthread_mutex_t lock;		/* over what follows */
	unsigned users;			/* nvmlInit without nvmlShutdown */
	unsigned count;
	/* By server and PCI address, as NVML orders them. */
	struct nvmlDevice_st devices[CLIENT_SERVERS * WIRE_DEVICES];
	char driver_version[NVML_VERSION_TEXT_BYTES];	/* "": not known */
	char library_version[NVML_VERSION_TEXT_BYTES];
	int cuda_version;
};

extern struct nvml nvml;

/* What the server says to a question. */
struct nvml_answer {
	uint64_t values[4];
	size_t tail_bytes;
	uint8_t tail[NVML_TAIL_BYTES] __attribute__((aligned(8)));
};

struct nvml_question {
	enum nvml_query query;
	uint32_t arguments[3];
	const void *tail;
	size_t tail_bytes;
};

/* NVML_SUCCESS while NVML is up. */
nvmlReturn_t nvml_up(void);
/* The same, and how many devices there are. */
nvmlReturn_t nvml_devices(unsigned *count);
/* A copy of what is known of the device; NVML_ERROR_INVALID_ARGUMENT for no handle of ours. */
nvmlReturn_t nvml_device(nvmlDevice_t handle, struct nvmlDevice_st *device);
/* Ask the server about a device. */
nvmlReturn_t nvml_ask(nvmlDevice_t handle, const struct nvml_question *question,
		      struct nvml_answer *answer);
/* NVML's protocol for lists: *count is the room and becomes the length; too little room is an
 * error that says how much there must be.  The answer has entries of `entry` bytes, of which
 * the first `given` are given out. */
nvmlReturn_t nvml_ask_list(nvmlDevice_t device, const struct nvml_question *question,
			   unsigned *count, void *out, size_t entry, size_t given);
/* Give a text out; NVML_ERROR_INSUFFICIENT_SIZE where it has no room. */
nvmlReturn_t nvml_give_text(char *out, unsigned room, const char *text, size_t bytes);
/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
void nvml_uuid_format(const uint8_t uuid[16], char text[41]);

#endif
