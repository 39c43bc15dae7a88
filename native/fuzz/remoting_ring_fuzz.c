/* remoting_ring_fuzz.c - a hostile peer at a session's shared memory.
 *
 * Each round writes and reads frames through one end, or where they lie, while indices, flags and bytes
 * of the memory are drawn anew, between the calls and, by another thread, in the midst of them.  Whatever they are, a
 * call moves at most what it was given, or refuses, and leads nowhere but into the rings.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../transport/frames/inbox.h"
#include "../transport/rings/shm.h"
#include "../transport/sockets/socket.h"
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

static void scribble(uint8_t *memory, size_t bytes, uint64_t *state)
{
	uint64_t *words = (uint64_t *)memory;
	uint64_t *word = &words[random_of(state) % (HEAD_BYTES / 8)];

	switch (random_of(state) % 6) {
	case 0:
		*word += random_of(state) % (64u << 10);
		break;
	case 1:
		*word = 1ull << random_of(state) % 64;
		break;
	case 2:
		*word = random_of(state);
		break;
	case 3:			/* a reader that has kept up: else rings stay full */
		words[8] = words[0];
		words[40] = words[32];
		break;
	default:
		memory[HEAD_BYTES + random_of(state) % (bytes - HEAD_BYTES)] = (uint8_t)random_of(state);
	}
}

struct scribbler {
	uint8_t *memory;
	size_t bytes;
	uint64_t state;
	_Atomic bool stop;
};

static void *scribbler_run(void *opaque)
{
	struct scribbler *scribbler = opaque;

	while (!atomic_load(&scribbler->stop))
		scribble(scribbler->memory, scribbler->bytes, &scribbler->state);
	return NULL;
}

/* Does what a call has led to lie in the memory, and is it no more than was asked for? */
static bool lies_there(struct transport *end, const void *at, ssize_t got, size_t asked)
{
	const uint8_t *from = at;
	uint8_t *first;
	size_t bytes;

	end->ops->memory(end, (void **)&first, &bytes);
	return got <= 0 || ((size_t)got <= asked && from >= first + HEAD_BYTES && from <= first + bytes - got);
}

/* Read where it lies, as copies do: what is under way is still there when more is asked for.  false: led astray. */
static bool read_in_place(struct transport *end, size_t most)
{
	const void *at, *more;
	ssize_t got = end->ops->peek(end, &at, most), behind = 0;

	if (got > 0)
		behind = end->ops->peek_behind(end, (size_t)got, &more, most);
	if (!lies_there(end, at, got, most) || !lies_there(end, more, behind, most))
		return false;
	if (got > 0)
		end->ops->taken(end, (size_t)got + (behind > 0 ? (size_t)behind : 0));
	return true;
}

static bool write_in_place(struct transport *end, size_t most)
{
	void *at, *more;
	ssize_t room = end->ops->room(end, &at, most), behind = 0;

	if (room > 0)
		behind = end->ops->room_behind(end, (size_t)room, &more, most);
	if (!lies_there(end, at, room, most) || !lies_there(end, more, behind, most))
		return false;
	if (behind > 0)
		memset(more, 1, (size_t)behind);
	if (room > 0)
		(void)end->ops->written(end, (size_t)room + (behind > 0 ? (size_t)behind : 0), false);
	return true;
}

static int round_run(uint64_t number)
{
	static uint8_t data[MOVED_MAX];
	struct transport client, server;
	struct shm *ours, *theirs;
	struct scribbler scribbler = { .state = ~number };
	struct inbox inbox;
	pthread_t thread;
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
	scribbler.memory = memory;
	scribbler.bytes = bytes;
	if (number % 2 && pthread_create(&thread, NULL, scribbler_run, &scribbler))
		return 1;
	for (unsigned step = 0; step < STEPS; step++) {
		struct wire_header header;
		struct transport *end = random_next() % 2 ? &client : &server;
		size_t now = 1 + random_next() % MOVED_MAX;

		scribble(memory, bytes, &random_state);
		switch (random_next() % 5) {
		case 0:
			(void)transport_write_all(end, data, now);
			break;
		case 1:
			if (end->ops->read(end, data, now) > (ssize_t)now)
				rc = 1;
			break;
		case 2:
			if (!read_in_place(end, now))
				rc = 1;
			break;
		case 3:
			if (!write_in_place(end, now))
				rc = 1;
			break;
		default:
			if (!inbox_header(&inbox, &header, 0) && header.length > WIRE_FRAME_BYTES)
				rc = 1;
		}
	}
	atomic_store(&scribbler.stop, true);
	if (number % 2)
		pthread_join(thread, NULL);
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
