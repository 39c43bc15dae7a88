/* remoting_ring_fuzz.c - a hostile peer at a session's shared memory.
 *
 * Usage: remoting_ring SECONDS LAST
 *        remoting_ring 0 LAST		the round whose number is in LAST, once
 * Each round writes and reads frames through one end while indices, flags and bytes
 * of the memory are drawn anew between the calls.  Whatever they are, a call moves at
 * most what it was given, or refuses.  The same number gives the same round.
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

#define STEPS 200u
#define MOVED_MAX (96u << 10)
/* What lies before the rings' bytes: all that steers them. */
#define HEAD_BYTES 512u

static uint64_t random_state;

/* splitmix64 (G. Steele et al., "Fast splittable pseudorandom number generators", 2014) */
static uint64_t random_next(void)
{
	uint64_t mixed = random_state += 0x9e3779b97f4a7c15u;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
	return mixed ^ mixed >> 31;
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

int main(int argc, char **argv)
{
	unsigned long long number = 0;
	time_t end;
	FILE *last;

	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS LAST\n", argv[0]);
		return 2;
	}
	if (atoi(argv[1]) == 0) {
		last = fopen(argv[2], "r");
		if (!last || fscanf(last, "%llu", &number) != 1)
			return 2;
		return round_run(number);
	}
	for (end = time(NULL) + atoi(argv[1]); time(NULL) < end; number++) {
		last = fopen(argv[2], "w");
		if (!last || fprintf(last, "%llu\n", number) < 0 || fclose(last))
			return 2;
		/* One that waits for ever ends here, its number in the file. */
		alarm(20);
		if (round_run(number)) {
			fprintf(stderr, "remoting_ring: round %llu moved what it must not\n", number);
			return 1;
		}
	}
	printf("remoting_ring: %llu rounds\n", number);
	return 0;
}
