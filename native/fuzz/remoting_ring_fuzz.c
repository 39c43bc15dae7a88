/* remoting_ring_fuzz.c - a hostile peer at a session's shared memory.
 *
 * Each round writes and reads frames through one end while indices, flags and bytes
 * of the memory are drawn anew between the calls.  Whatever they are, a call moves at
 * most what it was given, or refuses.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../transport/inbox.h"
#include "../transport/transport.h"
#include "rounds.h"

#define STEPS 200u
#define MOVED_MAX (96u << 10)
/* What lies before the rings' bytes: all that steers them. */
#define HEAD_BYTES 512u

static uint64_t random_state;

static uint64_t random_next(void)
{
	return random_of(&random_state);
}

static void scribble(uint8_t *memory, size_t bytes)
{
	uint64_t *words = (uint64_t *)memory;
	uint64_t *word = &words[random_next() % (HEAD_BYTES / 8)];

	switch (random_next() % 6) {
	case 0:
		*word += random_next() % (64u << 10);
		break;
	case 1:
		*word = 1ull << random_next() % 64;
		break;
	case 2:
		*word = random_next();
		break;
	case 3:			/* a reader that has kept up: else rings stay full */
		words[8] = words[0];
		words[40] = words[32];
		break;
	default:
		memory[HEAD_BYTES + random_next() % (bytes - HEAD_BYTES)] = (uint8_t)random_next();
	}
}

static int round_run(uint64_t number)
{
	static uint8_t data[MOVED_MAX];
	struct transport client, server;
	struct shm *ours, *theirs;
	struct inbox inbox;
	int pair[2], descriptor, rc = 0;
	uint8_t *memory;
	size_t bytes;

	random_state = number;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || transport_socket_init(&client, pair[0]) ||
	    transport_socket_init(&server, pair[1]) || transport_shm_make(&ours, &descriptor))
		return 1;
	bytes = (size_t)lseek(descriptor, 0, SEEK_END);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (memory == MAP_FAILED || transport_shm_take(&theirs, &server, descriptor))
		return 1;
	transport_shm_switch(&client, ours, false);
	transport_shm_switch(&server, theirs, true);
	if (inbox_init(&inbox, &server))
		return 1;
	/* A peer that is gone: nothing waits for it. */
	shutdown(pair[0], SHUT_RDWR);
	for (unsigned step = 0; step < STEPS; step++) {
		struct wire_header header;
		struct transport *end = random_next() % 2 ? &client : &server;
		size_t now = 1 + random_next() % MOVED_MAX;

		scribble(memory, bytes);
		switch (random_next() % 3) {
		case 0:
			(void)transport_write_all(end, data, now);
			break;
		case 1:
			if (end->ops->read(end, data, now) > (ssize_t)now)
				rc = 1;
			break;
		default:
			if (!inbox_header(&inbox, &header, 0) && header.length > WIRE_FRAME_BYTES)
				rc = 1;
		}
	}
	inbox_release(&inbox);
	munmap(memory, bytes);
	transport_release(&client);
	transport_release(&server);
	return rc;
}

static int round_timed(uint64_t number)
{
	/* One that waits for ever ends here, its number in the file. */
	alarm(20);
	return round_run(number);
}

int main(int argc, char **argv)
{
	return rounds_run(argc, argv, "remoting_ring", round_timed);
}
