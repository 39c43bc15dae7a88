/* Two rings of bytes in memory that client and server share.
 *
 *	written - taken		bytes that are in the ring, at most SHM_RING_BYTES
 *	written			moved by the producer alone, taken by the consumer alone;
 *				both count up for ever and are masked at use
 *
 * The other process writes all of this memory at any time.  Each side therefore keeps
 * its own index for itself, reads the other's once per look, refuses a distance that
 * cannot be, and has bytes copied out before anybody looks at them.
 *
 * A reader that finds nothing says so in reader_asleep and sleeps on the socket, where
 * one byte wakes it; the socket also tells of the peer's end, whatever ended it.  A
 * writer that finds no room says so in writer_asleep and sleeps on the word `room`
 * (futex(2)); every SHM_LIFE_MS it looks whether the peer is still there.
 */
#include "../ground/clofork.h"
#include "../ground/crew.h"
#include "../ground/streaming.h"
#include "../sockets/socket.h"
#include "../transport.h"
#include "memory.h"
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Both rings and what lies before them fit a second-level cache: a copy that streams
 * through them meets memory only at its ends. */
#define SHM_RING_BYTES (512u << 10)
/* What is written or taken becomes known to the other side at least this often. */
#define SHM_STEP_BYTES (128u << 10)
/* A sleeping reader is woken for so much of what is still being written. */
#define SHM_WAKE_BYTES (SHM_RING_BYTES / 2)
/* Several threads copy what is so large, where there are processors for them, each a share of a step: the program's own copy is what
 * takes time beside a GPU that reads 55 GB/s. */
#define SHM_LARGE_BYTES (256u << 10)
#define SHM_SHARED_STEP_BYTES (32u << 10)
#define SHM_SHARE_ALIGN 4096u
#define SHM_LIFE_MS 50
/* How long a writer looks for room before it sleeps: taking one step lasts 10 to 20 us. */
#define SHM_ROOM_SPIN_NS 50000u
/* A wake-up that nobody has measured, and the longest that is believed: longer ones waited for a processor. */
#define SHM_WAKE_NS 50000u
#define SHM_WAKE_MOST_NS 100000u
/* Descriptors that have come and nobody has taken: as many as threads may offer memory at a time. */
#define SHM_DESCRIPTORS 256u
/* Reads of the socket for one of them: a client of ours leaves a few wake-ups before it. */
#define SHM_PASSED_READS 64

struct shm_ring {
	_Alignas(64) _Atomic uint64_t written;
	_Atomic uint32_t processor;	/* where that was written last, plus one; 0: an older peer */
	_Atomic uint64_t called_ns;	/* when a sleeping reader was woken last; 0: an older peer */
	_Alignas(64) _Atomic uint64_t taken;
	_Atomic uint64_t woken_ns;	/* how long the reader's last wake-up took; 0: an older peer */
	_Alignas(64) _Atomic uint32_t reader_asleep;
	_Alignas(64) _Atomic uint32_t writer_asleep;
	_Atomic uint32_t room;		/* changes when a sleeping writer may look again */
};
_Static_assert(sizeof(struct shm_ring) == 256, "layout shared with the peer");

struct shm_memory {
	struct shm_ring to_server;
	struct shm_ring to_client;
	_Alignas(4096) uint8_t to_server_bytes[SHM_RING_BYTES];
	uint8_t to_client_bytes[SHM_RING_BYTES];
};
_Static_assert(sizeof(struct shm_memory) == 4096 + 2 * SHM_RING_BYTES, "layout shared with the peer");

/* One process's view of its two rings. */
struct shm {
	struct shm_memory *memory;
	struct shm_ring *out;
	struct shm_ring *in;
	uint8_t *out_bytes;
	const uint8_t *in_bytes;
	uint64_t written;		/* the writer's */
	uint64_t out_taken;		/* as far as the writer knows */
	uint64_t taken;			/* the reader's */
	uint64_t woken_ns;		/* what the reader's wake-ups took since it was asked */
	_Atomic bool woke;		/* and whether a writer has had to wake the peer */
	bool hung_up;			/* the reader has met the socket's end */
	bool server;			/* descriptors are taken: the client alone passes some */
	/* Of a client, who copies what is large between the rings and the program's memory. */
	struct crew *writers;
	struct crew *readers;
	size_t reading;			/* bytes to come of something large */
	unsigned descriptor_count;
	int descriptors[SHM_DESCRIPTORS];	/* the oldest first; -1: lost on its way */
};

/* ---- writing ---- */

/* Let the reader see what was written, and from where. */
static void shm_show(struct transport *transport)
{
	struct shm *shm = transport->shm;

	TRANSPORT_SENDS(transport);
	atomic_store_explicit(&shm->out->processor, (uint32_t)(sched_getcpu() + 1), memory_order_relaxed);
	atomic_store_explicit(&shm->out->written, shm->written, memory_order_release);
}

/* Let the reader see what was written, and wake it if it sleeps. */
static int shm_publish(struct transport *transport)
{
	struct shm *shm = transport->shm;

	shm_show(transport);
	/* With the fence in shm_wait: one of the two sees what the other wrote. */
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&shm->out->reader_asleep, memory_order_relaxed))
		return 0;
	if (atomic_exchange(&shm->out->reader_asleep, 0)) {
		int cancel = transport_cancel_disable(), rc;
		ssize_t sent;

		atomic_store_explicit(&shm->out->called_ns, transport_now_ns(), memory_order_relaxed);
		atomic_store_explicit(&shm->woke, true, memory_order_relaxed);
		sent = send(transport->descriptor, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		rc = sent < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
		/* A full socket is full of bytes that wake it. */
		transport_cancel_restore(cancel);
		return rc;
	}
	return 0;
}

/* Bytes that may be written now, or -EPROTO. */
static ssize_t shm_room(struct shm *shm)
{
	uint64_t taken = atomic_load_explicit(&shm->out->taken, memory_order_acquire);
	uint64_t used = shm->written - taken;

	if (used > SHM_RING_BYTES)
		return -EPROTO;
	shm->out_taken = taken;
	return (ssize_t)(SHM_RING_BYTES - used);
}

/* Let the reader see what was written of something larger, and wake it only for the first of it and
 * for much: where both share a processor, each wake-up is two switches, and what else is
 * written soon is worth none.  Before it waits, and at the end, the writer wakes it in any case. */
static int shm_publish_part(struct transport *transport, bool first)
{
	struct shm *shm = transport->shm;

	if (!first && shm->written - shm->out_taken >= SHM_WAKE_BYTES && shm_room(shm) < 0)
		return -EPROTO;
	if (first || shm->written - shm->out_taken >= SHM_WAKE_BYTES)
		return shm_publish(transport);
	shm_show(transport);
	return 0;
}

static ssize_t shm_await_room(struct transport *transport)
{
	struct shm *shm = transport->shm;
	struct shm_ring *ring = shm->out;
	uint64_t start = transport_now_ns();
	ssize_t room;

	while (!(room = shm_room(shm)) && transport_now_ns() - start < SHM_ROOM_SPIN_NS)
		/* Not by sched_yield: where others are ready to run, that costs whole time slices. */
		transport_relax();
	while (!room) {
		const struct timespec life = { .tv_nsec = SHM_LIFE_MS * 1000000 };
		uint32_t before = atomic_load(&ring->room);

		atomic_store(&ring->writer_asleep, 1);
		atomic_thread_fence(memory_order_seq_cst);
		room = shm_room(shm);
		if (room)
			break;
		/* POLLHUP and POLLERR are always told. */
		if (transport_poll(transport->descriptor, POLLRDHUP, 0) == 0)
			return -EPIPE;
		syscall(SYS_futex, &ring->room, FUTEX_WAIT, before, &life, NULL, 0);
		room = shm_room(shm);
	}
	atomic_store_explicit(&ring->writer_asleep, 0, memory_order_relaxed);
	return room;
}

/* Of what begins at `index`, so much lies in one piece and is one step. */
static size_t shm_piece(uint64_t index, size_t bytes)
{
	size_t straight = SHM_RING_BYTES - index % SHM_RING_BYTES;

	if (bytes > SHM_STEP_BYTES)
		bytes = SHM_STEP_BYTES;
	return bytes < straight ? bytes : straight;
}

/* Contiguous room, waited for. */
static ssize_t shm_room_at(struct transport *transport, void **where, size_t bytes)
{
	struct shm *shm = transport->shm;
	ssize_t room = (ssize_t)(SHM_RING_BYTES - (shm->written - shm->out_taken));

	if ((size_t)room < bytes)
		room = shm_room(shm);
	if (!room) {
		int rc = shm_publish(transport);

		if (rc)
			return rc;
		room = shm_await_room(transport);
	}
	if (room < 0)
		return room;
	*where = shm->out_bytes + shm->written % SHM_RING_BYTES;
	return (ssize_t)shm_piece(shm->written, bytes < (size_t)room ? bytes : (size_t)room);
}

static ssize_t shm_room_behind(struct transport *transport, size_t ahead, void **where, size_t bytes)
{
	struct shm *shm = transport->shm;
	ssize_t room = shm_room(shm);

	if (room < 0)
		return room;
	/* Nobody takes what he has not got, and then less. */
	if (room < (ssize_t)ahead)
		return -EPROTO;
	room -= (ssize_t)ahead;
	*where = shm->out_bytes + (shm->written + ahead) % SHM_RING_BYTES;
	return (ssize_t)shm_piece(shm->written + ahead, bytes < (size_t)room ? bytes : (size_t)room);
}

static void shm_memory(struct transport *transport, void **at, size_t *bytes)
{
	*at = transport->shm->memory;
	*bytes = sizeof(struct shm_memory);
}

static int shm_written(struct transport *transport, size_t bytes, bool more)
{
	transport->shm->written += bytes;
	return more ? shm_publish_part(transport, false) : shm_publish(transport);
}

/* What one of several threads copies. */
struct share {
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
};

static int share_write(void *opaque)
{
	const struct share *share = opaque;

	streaming_copy(share->to, share->from, share->bytes);
	return 0;
}

static int share_read(void *opaque)
{
	const struct share *share = opaque;

	memcpy(share->to, share->from, share->bytes);
	return 0;
}

/* Copy a step, with the crew that there may be. */
static void shm_copy(struct crew *crew, int (*copy)(void *share), void *to, const void *from, size_t bytes)
{
	struct share shares[CREW_THREADS], rest = { to, from, bytes };
	size_t each = bytes / (CREW_THREADS + 1) / SHM_SHARE_ALIGN * SHM_SHARE_ALIGN;

	for (unsigned i = 0; crew && bytes >= SHM_SHARED_STEP_BYTES && i < CREW_THREADS; i++) {
		shares[i] = (struct share){ rest.to, rest.from, each };
		if (!crew_give(crew, copy, &shares[i]))
			break;
		rest = (struct share){ rest.to + each, rest.from + each, rest.bytes - each };
	}
	(void)copy(&rest);
	(void)crew_join(crew);
}

static int shm_write_bytes(struct transport *transport, const uint8_t *from, size_t bytes)
{
	bool large = bytes >= SHM_LARGE_BYTES;

	for (bool first = true; bytes; first = false) {
		void *where;
		ssize_t now = shm_room_at(transport, &where, bytes);

		if (now < 0)
			return (int)now;
		/* Of a server's nothing is large: what is, its driver writes into the ring. */
		if (transport->shm->server)
			memcpy(where, from, (size_t)now);
		else
			shm_copy(large ? transport->shm->writers : NULL, share_write, where, from, (size_t)now);
		transport->shm->written += (size_t)now;
		from += now;
		bytes -= (size_t)now;
		if (bytes) {
			int rc = shm_publish_part(transport, first);

			if (rc)
				return rc;
		}
	}
	return 0;
}

static int shm_write(struct transport *transport, struct iovec *vector, int count)
{
	for (int i = 0; i < count; i++) {
		int rc = shm_write_bytes(transport, vector[i].iov_base, vector[i].iov_len);

		if (rc)
			return rc;
	}
	return shm_publish(transport);
}

/* ---- reading ---- */

static ssize_t shm_peek_behind(struct transport *transport, size_t ahead, const void **where, size_t bytes)
{
	struct shm *shm = transport->shm;
	uint64_t there = atomic_load_explicit(&shm->in->written, memory_order_acquire) - shm->taken;

	if (there > SHM_RING_BYTES || there < ahead)
		return -EPROTO;
	there -= ahead;
	if (!there)
		return 0;
	TRANSPORT_RECEIVED(transport);
	*where = shm->in_bytes + (shm->taken + ahead) % SHM_RING_BYTES;
	return (ssize_t)shm_piece(shm->taken + ahead, bytes < there ? bytes : there);
}

static ssize_t shm_peek(struct transport *transport, const void **where, size_t bytes)
{
	ssize_t got = shm_peek_behind(transport, 0, where, bytes);

	return got ? got : transport->shm->hung_up ? -EPIPE : -EAGAIN;
}

static void shm_taken(struct transport *transport, size_t bytes)
{
	struct shm *shm = transport->shm;
	struct shm_ring *ring = shm->in;
	uint64_t left;

	shm->taken += bytes;
	atomic_store_explicit(&ring->taken, shm->taken, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	left = atomic_load_explicit(&ring->written, memory_order_relaxed) - shm->taken;
	/* Not for a little room: each wake-up lets the writer go on for a while. */
	if (atomic_load_explicit(&ring->writer_asleep, memory_order_relaxed) &&
	    left <= SHM_RING_BYTES / 2 && atomic_exchange(&ring->writer_asleep, 0)) {
		atomic_fetch_add(&ring->room, 1);
		syscall(SYS_futex, &ring->room, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

static ssize_t shm_read(struct transport *transport, void *buffer, size_t bytes)
{
	const void *where;
	ssize_t got = shm_peek(transport, &where, bytes);
	struct shm *shm = transport->shm;

	if (got > 0) {
		/* Who asks for much goes on until he has it. */
		if (bytes >= SHM_LARGE_BYTES)
			shm->reading = bytes;
		shm_copy(shm->reading ? shm->readers : NULL, share_read, buffer, where, (size_t)got);
		shm->reading -= shm->reading < (size_t)got ? shm->reading : (size_t)got;
		shm_taken(transport, (size_t)got);
	}
	return got;
}

/* Take what the socket has: wake-ups, which say nothing once they are read, and descriptors.
 * false: there was nothing. */
static bool shm_hear(struct transport *transport)
{
	struct shm *shm = transport->shm;
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char bells[64];
	struct iovec vector = { .iov_base = bells, .iov_len = sizeof(bells) };
	/* What does not fit, the kernel closes: any that a server sends. */
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = shm->server ? &control : NULL,
		.msg_controllen = shm->server ? sizeof(control) : 0,
	};
	int cancel, descriptor;
	ssize_t got;

	/* None may be lost: the next offer would get another's.  A client of ours offers what it has passed. */
	if (shm->descriptor_count == SHM_DESCRIPTORS) {
		shm->hung_up = true;
		return false;
	}
	cancel = transport_cancel_disable();
	got = recvmsg(transport->descriptor, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		shm->hung_up = true;
	descriptor = got > 0 ? transport_descriptor_of(&message) : -1;
	/* Where this process may open no more (RLIMIT_NOFILE), the kernel says that there was one: its offer has none. */
	if (descriptor >= 0 || (shm->server && got > 0 && message.msg_flags & MSG_CTRUNC))
		shm->descriptors[shm->descriptor_count++] = descriptor;
	transport_cancel_restore(cancel);
	return got > 0;
}

static uint64_t shm_believed(uint64_t woken_ns)
{
	return woken_ns && woken_ns <= SHM_WAKE_MOST_NS ? woken_ns : SHM_WAKE_NS;
}

/* The reader has slept since `start` and runs again. */
static void shm_runs_again(struct shm *shm, uint64_t start)
{
	uint64_t called = atomic_load_explicit(&shm->in->called_ns, memory_order_relaxed);
	uint64_t now = transport_now_ns();

	shm->woken_ns = shm_believed(called >= start && called < now ? now - called : 0);
	atomic_store_explicit(&shm->in->woken_ns, shm->woken_ns, memory_order_relaxed);
}

static int shm_wait(struct transport *transport, int timeout_ms)
{
	struct shm *shm = transport->shm;
	struct shm_ring *ring = shm->in;
	uint64_t start = transport_now_ns();
	int rc;

	atomic_store(&ring->reader_asleep, 1);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&ring->written, memory_order_acquire) != shm->taken) {
		atomic_store(&ring->reader_asleep, 0);
		return 0;
	}
	rc = transport_poll(transport->descriptor, POLLIN, timeout_ms);
	atomic_store(&ring->reader_asleep, 0);
	if (rc)
		return rc;
	shm_runs_again(shm, start);
	(void)shm_hear(transport);
	return 0;
}

/* What the peer's wake-up takes that was asked of it; 0: it was awake. */
static uint64_t shm_waking(struct transport *transport)
{
	struct shm *shm = transport->shm;

	if (!atomic_load_explicit(&shm->woke, memory_order_relaxed))
		return 0;
	return shm_believed(atomic_load_explicit(&shm->out->woken_ns, memory_order_relaxed));
}

static uint64_t shm_woken(struct transport *transport)
{
	struct shm *shm = transport->shm;
	uint64_t took = shm->woken_ns + shm_waking(transport);

	shm->woken_ns = 0;
	atomic_store_explicit(&shm->woke, false, memory_order_relaxed);
	return took;
}

static bool shm_apart(struct transport *transport)
{
	uint32_t theirs = atomic_load_explicit(&transport->shm->in->processor, memory_order_relaxed);
	uint32_t ours = (uint32_t)(sched_getcpu() + 1);

	return theirs && ours && theirs != ours;
}

static bool shm_beside(struct transport *transport)
{
	uint32_t theirs = atomic_load_explicit(&transport->shm->in->processor, memory_order_relaxed);

	return theirs && theirs == (uint32_t)(sched_getcpu() + 1);
}

static void shm_shutdown(struct transport *transport)
{
	struct shm_ring *ring = transport->shm->out;

	shutdown(transport->descriptor, SHUT_RDWR);
	atomic_fetch_add(&ring->room, 1);
	syscall(SYS_futex, &ring->room, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void transport_shm_drop(struct shm *shm)
{
	if (!shm)
		return;
	while (shm->descriptor_count)
		close(shm->descriptors[--shm->descriptor_count]);
	crew_drop(shm->writers);
	crew_drop(shm->readers);
	munmap(shm->memory, sizeof(struct shm_memory));
	free(shm);
}

static void shm_drop(struct transport *transport)
{
	transport_shm_drop(transport->shm);
}

static const struct transport_ops shm_ops = {
	.name = "shm",
	.direct = true,
	.write = shm_write,
	.read = shm_read,
	.wait = shm_wait,
	.peek = shm_peek,
	.taken = shm_taken,
	.room = shm_room_at,
	.written = shm_written,
	.peek_behind = shm_peek_behind,
	.room_behind = shm_room_behind,
	.apart = shm_apart,
	.beside = shm_beside,
	.waking = shm_waking,
	.woken = shm_woken,
	.memory = shm_memory,
	.shutdown = shm_shutdown,
	.drop = shm_drop,
};

/* ---- descriptors that are passed ---- */

int transport_shm_pass(struct transport *transport, int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .room = { 0 } };
	struct iovec vector = { .iov_base = "", .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int cancel = transport_cancel_disable(), rc;

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
	rc = sendmsg(transport->descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
	transport_cancel_restore(cancel);
	return rc;
}

int transport_shm_passed(struct transport *transport)
{
	struct shm *shm = transport->shm;
	int descriptor;

	if (!shm)
		return -1;
	for (int i = 0; i < SHM_PASSED_READS && !shm->descriptor_count; i++)
		if (!shm_hear(transport))
			break;
	if (!shm->descriptor_count)
		return -1;
	descriptor = shm->descriptors[0];
	memmove(shm->descriptors, shm->descriptors + 1,
		--shm->descriptor_count * sizeof(shm->descriptors[0]));
	return descriptor;
}

/* ---- the session's memory ---- */

/* One that has the memory, or not: then rc says why, as what is returned does. */
static int shm_begin(struct shm **shm, int rc, void *memory)
{
	struct shm *made = rc ? NULL : calloc(1, sizeof(*made));

	if (!rc && !made) {
		munmap(memory, sizeof(struct shm_memory));
		rc = -ENOMEM;
	}
	if (rc)
		return rc;
	made->memory = memory;
	*shm = made;
	return 0;
}

int transport_shm_make(struct shm **shm, int *descriptor)
{
	void *memory = NULL;
	int rc = transport_memory_make("farbus-remoting-session", sizeof(struct shm_memory), &memory, descriptor);
	const bool made = rc == 0;

	rc = shm_begin(shm, rc, memory);
	if (rc && made)
		clofork_close(*descriptor);
	return rc;
}

int transport_shm_take(struct shm **shm, const struct transport *transport, int descriptor)
{
	void *memory = NULL;
	int rc = transport_memory_take(transport, descriptor, sizeof(struct shm_memory), false, &memory);

	return shm_begin(shm, rc, memory);
}

void transport_shm_switch(struct transport *transport, struct shm *shm, bool server)
{
	struct shm_memory *memory = shm->memory;

	shm->out = server ? &memory->to_client : &memory->to_server;
	shm->in = server ? &memory->to_server : &memory->to_client;
	shm->out_bytes = server ? memory->to_client_bytes : memory->to_server_bytes;
	shm->in_bytes = server ? memory->to_server_bytes : memory->to_client_bytes;
	shm->server = server;
	if (!server) {
		shm->writers = crew_make();
		shm->readers = crew_make();
	}
	transport->shm = shm;
	transport->ops = &shm_ops;
}
