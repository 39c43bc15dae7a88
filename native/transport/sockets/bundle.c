#include "../ground/crew.h"
#include "bundle.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* A piece of a copy and the frame's header go as one chunk. */
#define CHUNK_BYTES (256u << 10)
#define CHUNK_SLACK 4096u
/* Less stays on the first connection: a switch costs both sides a system call. */
#define LARGE_BYTES (32u << 10)
/* From here on a chunk is read to where it belongs; less is read together with what follows. */
#define BULK_BYTES 4096u
/* Parts of one write: more go as several chunks. */
#define PARTS 20
/* Chunks that are written at one time. */
#define CHUNKS 16u
/* What several threads carry goes over all connections, but in no smaller chunks than these, which take one as long as giving
 * them to another does. */
#define SHARE_BYTES (64u << 10)
#define PAGE_BYTES 4096u
/* Looks at a connection before sleeping on it. */
#define SPIN_NS 50000u

struct chunk {
	uint32_t length;
	uint8_t next;
	uint8_t zero[3];
};
_Static_assert(sizeof(struct chunk) == BUNDLE_HEADER_BYTES, "wire layout");

struct connection {
	struct transport transport;
	/* What was read behind the chunk that named another connection. */
	uint8_t stash[BULK_BYTES + sizeof(struct chunk)];
	size_t stash_start;
	size_t stash_bytes;
};

struct bundle {
	struct transport_ops ops;
	bool names;
	struct connection each[BUNDLE_CONNECTIONS];
	_Atomic unsigned present;	/* a bit for each that is there: the peer may name it */
	_Atomic unsigned ready;		/* and that nobody else writes to */
	_Atomic unsigned heard;		/* that the peer reads from */

	/* Who writes. */
	unsigned writing;
	unsigned named;			/* bits */
	struct crew *writers;		/* NULL: there are no processors for them */

	/* Who reads. */
	struct crew *readers;
	unsigned reading;
	unsigned next;
	struct chunk header;
	size_t header_bytes;
	size_t left;			/* bytes of the chunk that have not come */
	int failed;			/* what was met behind the bytes that were read */
};

/* May several threads carry what goes over it?  There are several connections, and processors. */
static bool bundle_is_wide(struct transport *transport)
{
	const struct bundle *bundle = transport->bundle;

	return bundle->writers && atomic_load(&bundle->ready) != 1;
}

static void bundle_end(struct bundle *bundle)
{
	unsigned present = atomic_load(&bundle->present);

	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			bundle->each[i].transport.ops->shutdown(&bundle->each[i].transport);
}

/* ---- writing ---- */

/* What is written next: chunks in the order of the stream. */
struct plan {
	struct bundle *bundle;
	bool kept;			/* what it is made of (transport_ops.write_kept) */
	unsigned count;
	unsigned used;			/* connections, a bit each */
	struct {
		unsigned connection;
		int parts;
		struct chunk chunk;
		struct iovec vector[1 + PARTS];
	} each[CHUNKS];
};

/* What the kernel holds and the peer's has not acknowledged. */
static size_t unsent(const struct connection *connection)
{
	int bytes = 0;

	return ioctl(connection->transport.descriptor, SIOCOUTQ, &bytes) < 0 || bytes < 0 ? 0 : (size_t)bytes;
}

/* Where the chunk behind one of so many bytes goes.  `loads`: what lies unsent, and what is planned; asked once. */
static unsigned next_choose(struct bundle *bundle, size_t bytes, size_t loads[BUNDLE_CONNECTIONS], bool *asked)
{
	unsigned usable = atomic_load(&bundle->ready) & atomic_load(&bundle->heard);
	unsigned unnamed = usable & ~bundle->named;
	unsigned best = bundle->writing;
	size_t least = SIZE_MAX;

	if (bundle->names && unnamed)
		return (unsigned)__builtin_ctz(unnamed);
	if (usable == 1 || bytes < LARGE_BYTES)
		return 0;
	for (unsigned i = 0; i < BUNDLE_CONNECTIONS && !*asked; i++)
		if (usable & 1u << i)
			loads[i] += unsent(&bundle->each[i]);
	*asked = true;
	/* In turn where they are equal. */
	for (unsigned i = 1; i <= BUNDLE_CONNECTIONS; i++) {
		unsigned at = (bundle->writing + i) % BUNDLE_CONNECTIONS;

		if (usable & 1u << at && loads[at] < least) {
			least = loads[at];
			best = at;
		}
	}
	return best;
}

/* How large the chunks of so many bytes are to be. */
static size_t share_of(struct transport *transport, size_t total)
{
	unsigned ready = (unsigned)__builtin_popcount(atomic_load(&transport->bundle->ready));
	size_t share;

	if (!bundle_is_wide(transport) || total > ready * CHUNK_BYTES)
		return CHUNK_BYTES;
	share = (total / ready + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return share < SHARE_BYTES ? SHARE_BYTES : share < CHUNK_BYTES ? share : CHUNK_BYTES;
}

/* Plan as many as there is room for; how many bytes they are. */
static size_t plan_make(struct plan *plan, struct iovec **vector, size_t total, size_t share)
{
	struct bundle *bundle = plan->bundle;
	size_t loads[BUNDLE_CONNECTIONS] = { 0 }, planned = 0;
	bool asked = false;

	plan->count = 0;
	plan->used = 0;
	while (planned < total && plan->count < CHUNKS) {
		size_t left = total - planned, room = left > share + CHUNK_SLACK ? share : left, taken = 0;
		struct iovec *part = *vector, *to = plan->each[plan->count].vector;
		struct chunk *chunk = &plan->each[plan->count].chunk;
		int used = 1;

		while (taken < room && used <= PARTS) {
			size_t now = part->iov_len < room - taken ? part->iov_len : room - taken;

			to[used++] = (struct iovec){ part->iov_base, now };
			part->iov_base = (char *)part->iov_base + now;
			part->iov_len -= now;
			taken += now;
			if (!part->iov_len)
				part++;
		}
		*vector = part;
		loads[bundle->writing] += taken;
		*chunk = (struct chunk){ .length = (uint32_t)taken, .next = (uint8_t)next_choose(bundle, taken, loads, &asked) };
		to[0] = (struct iovec){ chunk, sizeof(*chunk) };
		plan->each[plan->count].parts = used;
		plan->each[plan->count++].connection = bundle->writing;
		plan->used |= 1u << bundle->writing;
		bundle->writing = chunk->next;
		bundle->named |= 1u << chunk->next;
		planned += taken;
	}
	return planned;
}

/* Write its chunks of these connections, in order. */
static int plan_write(struct plan *plan, unsigned connections)
{
	int rc = 0;

	for (unsigned i = 0; i < plan->count && !rc; i++) {
		struct transport *transport = &plan->bundle->each[plan->each[i].connection].transport;

		if (connections & 1u << plan->each[i].connection)
			rc = (plan->kept ? transport->ops->write_kept : transport->ops->write)(transport, plan->each[i].vector,
											       plan->each[i].parts);
	}
	return rc;
}

struct carried {
	struct plan *plan;
	unsigned connections;
};

/* A cut of one is a cut of all: nobody is to wait for a peer that waits for what is lost. */
static int carried_write(void *opaque)
{
	const struct carried *carried = opaque;
	int rc = plan_write(carried->plan, carried->connections);

	if (rc)
		bundle_end(carried->plan->bundle);
	return rc;
}

/* A thread for each connection. */
static int plan_write_wide(struct plan *plan)
{
	struct bundle *bundle = plan->bundle;
	struct carried carried[BUNDLE_CONNECTIONS];
	unsigned left = plan->used;
	int rc, others;

	/* The last is the caller's. */
	while (left & (left - 1)) {
		unsigned one = left & -left;
		struct carried *each = &carried[__builtin_ctz(one)];

		*each = (struct carried){ plan, one };
		if (!crew_give(bundle->writers, carried_write, each))
			break;
		left &= ~one;
	}
	rc = carried_write(&(struct carried){ plan, left });
	others = crew_join(bundle->writers);
	return rc ? rc : others;
}

static int chunks_write(struct transport *transport, struct iovec *vector, int count, bool kept)
{
	size_t total = 0, share;
	struct plan plan;
	int rc = 0;

	/* Nothing else of it: most writes are short. */
	plan.bundle = transport->bundle;
	plan.kept = kept;
	for (int i = 0; i < count; i++)
		total += vector[i].iov_len;
	share = share_of(transport, total);
	while (total && !rc) {
		size_t planned = plan_make(&plan, &vector, total, share);
		bool wide = plan.used & (plan.used - 1) && planned >= BUNDLE_WIDE_BYTES && bundle_is_wide(transport);

		rc = wide ? plan_write_wide(&plan) : plan_write(&plan, ~0u);
		total -= planned;
	}
	return rc;
}

static int bundle_write(struct transport *transport, struct iovec *vector, int count)
{
	return chunks_write(transport, vector, count, false);
}

static int bundle_write_kept(struct transport *transport, struct iovec *vector, int count)
{
	return chunks_write(transport, vector, count, true);
}

/* ---- reading ---- */

static ssize_t connection_read(struct connection *connection, void *buffer, size_t bytes)
{
	size_t stashed = connection->stash_bytes;

	if (!stashed)
		return connection->transport.ops->read(&connection->transport, buffer, bytes);
	if (stashed > bytes)
		stashed = bytes;
	memcpy(buffer, connection->stash + connection->stash_start, stashed);
	connection->stash_start += stashed;
	connection->stash_bytes -= stashed;
	return (ssize_t)stashed;
}

/* These were read last, and are not for now.  What came from the stash still lies there. */
static void connection_unread(struct connection *connection, const uint8_t *bytes, size_t count,
			      bool stashed)
{
	if (stashed) {
		connection->stash_start -= count;
		connection->stash_bytes += count;
		return;
	}
	memcpy(connection->stash, bytes, count);
	connection->stash_start = 0;
	connection->stash_bytes = count;
}

static int header_take(struct bundle *bundle)
{
	static const uint8_t zero[3];
	const struct chunk *chunk = &bundle->header;

	bundle->header_bytes = 0;
	if (!chunk->length || chunk->length > CHUNK_BYTES + CHUNK_SLACK || chunk->next >= BUNDLE_CONNECTIONS ||
	    memcmp(chunk->zero, zero, sizeof(zero)) != 0 ||
	    !(atomic_load(&bundle->present) & 1u << chunk->next))
		return -EPROTO;
	bundle->left = chunk->length;
	bundle->next = chunk->next;
	/* The peer reads there, since it has it. */
	atomic_fetch_or(&bundle->heard, 1u << chunk->next);
	return 0;
}

/* Take the headers out of what was read from a connection: how many bytes of the stream it
 * holds, or an error. */
static ssize_t chunks_walk(struct bundle *bundle, uint8_t *bytes, size_t got, bool stashed)
{
	size_t kept = 0, at = 0;

	while (at < got) {
		size_t now = got - at;

		if (bundle->left) {
			if (now > bundle->left)
				now = bundle->left;
			if (kept != at)
				memmove(bytes + kept, bytes + at, now);
			bundle->left -= now;
			kept += now;
			at += now;
			if (bundle->left || bundle->next == bundle->reading)
				continue;
			connection_unread(&bundle->each[bundle->reading], bytes + at, got - at, stashed);
			bundle->reading = bundle->next;
			break;
		}
		if (now > sizeof(bundle->header) - bundle->header_bytes)
			now = sizeof(bundle->header) - bundle->header_bytes;
		memcpy((uint8_t *)&bundle->header + bundle->header_bytes, bytes + at, now);
		bundle->header_bytes += now;
		at += now;
		if (bundle->header_bytes < sizeof(bundle->header))
			continue;
		bundle->failed = header_take(bundle);
		if (bundle->failed)
			return kept ? (ssize_t)kept : bundle->failed;
	}
	return (ssize_t)kept;
}

static ssize_t bundle_read(struct transport *transport, void *buffer, size_t bytes)
{
	struct bundle *bundle = transport->bundle;
	ssize_t got;

	if (bundle->failed)
		return bundle->failed;
	do {
		struct connection *connection = &bundle->each[bundle->reading];
		bool stashed = connection->stash_bytes;
		size_t most = bundle->left;

		/* Behind a large chunk its follower's header, if that comes here. */
		if (!most || bundle->next == bundle->reading)
			most += most < BULK_BYTES ? BULK_BYTES : sizeof(struct chunk);
		got = connection_read(connection, buffer, most < bytes ? most : bytes);
		if (got > 0)
			got = chunks_walk(bundle, buffer, (size_t)got, stashed);
	} while (!got);
	return got;
}

/* Of a chunk, bytes that one connection has, and where they go. */
struct piece {
	struct connection *connection;
	uint8_t *at;
	size_t bytes;
	void (*look)(void *opaque);
	void *opaque;
};

/* Read all of them, of which the peer has sent the rest or is about to, looking after the network where nothing comes.  0 or
 * -errno. */
static int piece_read(void *opaque)
{
	struct piece *piece = opaque;
	struct transport *transport = &piece->connection->transport;
	uint64_t start = 0;

	while (piece->bytes) {
		ssize_t got = connection_read(piece->connection, piece->at, piece->bytes);
		int rc = 0;

		if (got > 0) {
			piece->at += got;
			piece->bytes -= (size_t)got;
			start = 0;
			continue;
		}
		if (got != -EAGAIN)
			return (int)got;
		if (!start)
			start = transport_now_ns();
		if (transport_now_ns() - start < SPIN_NS)
			transport_relax();
		else
			rc = transport->ops->wait(transport, TRANSPORT_LOOK_MS);
		if (rc == -ETIMEDOUT)
			piece->look(piece->opaque);
		else if (rc)
			return rc;
	}
	return 0;
}

ssize_t transport_bundle_take(struct transport *transport, void *buffer, size_t bytes, void (*look)(void *opaque),
			      void *opaque)
{
	struct bundle *bundle = transport->bundle;
	struct piece pieces[CREW_THREADS];
	unsigned given = 0, busy = 0;		/* connections that others read from, a bit each */
	size_t at = 0;
	int rc = bundle->failed, others;

	while (at < bytes && !rc) {
		struct piece piece = { .connection = &bundle->each[bundle->reading], .look = look, .opaque = opaque };

		/* Behind what another one reads. */
		if (busy & 1u << bundle->reading) {
			rc = crew_join(bundle->readers);
			given = busy = 0;
			continue;
		}
		if (!bundle->left) {
			piece.at = (uint8_t *)&bundle->header + bundle->header_bytes;
			piece.bytes = sizeof(bundle->header) - bundle->header_bytes;
			rc = piece_read(&piece);
			if (!rc)
				rc = header_take(bundle);
			continue;
		}
		piece.at = (uint8_t *)buffer + at;
		piece.bytes = bundle->left < bytes - at ? bundle->left : bytes - at;
		at += piece.bytes;
		bundle->left -= piece.bytes;
		/* The last is this thread's, which would only wait. */
		if (at < bytes && given < CREW_THREADS) {
			pieces[given] = piece;
			if (crew_give(bundle->readers, piece_read, &pieces[given])) {
				busy |= 1u << bundle->reading;
				given++;
				piece.bytes = 0;
			}
		}
		rc = piece_read(&piece);
		if (!bundle->left)
			bundle->reading = bundle->next;
	}
	/* A cut of one is a cut of all: nobody is to wait for the others. */
	if (rc)
		bundle_end(bundle);
	others = crew_join(bundle->readers);
	if (!rc)
		rc = others;
	if (rc)
		bundle->failed = rc;
	return rc ? rc : (ssize_t)bytes;
}

static int bundle_wait(struct transport *transport, int timeout_ms)
{
	struct bundle *bundle = transport->bundle;
	struct connection *connection = &bundle->each[bundle->reading];

	if (bundle->failed || connection->stash_bytes)
		return 0;
	return connection->transport.ops->wait(&connection->transport, timeout_ms);
}

/* ---- */

static bool bundle_hear(struct transport *transport)
{
	struct bundle *bundle = transport->bundle;
	unsigned present = atomic_load(&bundle->present);
	bool any = false;

	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			any |= bundle->each[i].transport.ops->hear(&bundle->each[i].transport);
	return any;
}

static void bundle_shutdown(struct transport *transport)
{
	bundle_end(transport->bundle);
}

static void bundle_drop(struct transport *transport)
{
	struct bundle *bundle = transport->bundle;
	unsigned present = atomic_load(&bundle->present);

	crew_drop(bundle->writers);
	crew_drop(bundle->readers);
	/* It has the same descriptor. */
	bundle->each[0].transport.descriptor = -1;
	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			transport_release(&bundle->each[i].transport);
	free(bundle);
}

int transport_bundle_wrap(struct transport *transport, bool names)
{
	struct bundle *bundle = calloc(1, sizeof(*bundle));

	if (!bundle)
		return -ENOMEM;
	bundle->ops = (struct transport_ops){
		.name = transport->ops->name,
		.write = bundle_write,
		.write_kept = transport->ops->write_kept ? bundle_write_kept : NULL,
		.hear = transport->ops->hear ? bundle_hear : NULL,
		.read = bundle_read,
		.wait = bundle_wait,
		.wide = bundle_is_wide,
		.shutdown = bundle_shutdown,
		.drop = bundle_drop,
	};
	bundle->names = names;
	bundle->writers = crew_make();
	bundle->readers = crew_make();
	bundle->each[0].transport = *transport;
	bundle->named = 1;
	atomic_store(&bundle->present, 1);
	atomic_store(&bundle->ready, 1);
	atomic_store(&bundle->heard, 1);
	*transport = (struct transport){
		.ops = &bundle->ops,
		.descriptor = transport->descriptor,
		.bundle = bundle,
	};
	return 0;
}

int transport_bundle_add(struct transport *transport, unsigned number, struct transport *fresh)
{
	struct bundle *bundle = transport->bundle;
	unsigned present = atomic_load(&bundle->present);

	if (!number)
		number = (unsigned)__builtin_ctz(~present);
	if (number >= BUNDLE_CONNECTIONS)
		return -ENOSPC;
	if (present & 1u << number)
		return -EEXIST;
	bundle->each[number].transport = *fresh;
	atomic_fetch_or(&bundle->present, 1u << number);
	if (bundle->names) {
		atomic_fetch_or(&bundle->heard, 1u << number);
		atomic_fetch_or(&bundle->ready, 1u << number);
	}
	*fresh = (struct transport){ .descriptor = -1 };
	return (int)number;
}

void transport_bundle_ready(struct transport *transport, unsigned number)
{
	atomic_fetch_or(&transport->bundle->ready, 1u << number);
}

void transport_bundle_renumber(struct transport *transport)
{
	transport->bundle->each[0].transport.descriptor = transport->descriptor;
}

unsigned transport_bundle_all(const struct transport *transport, int all[BUNDLE_CONNECTIONS])
{
	const struct bundle *bundle = transport->bundle;
	unsigned present = atomic_load(&bundle->present), count = 0;

	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			all[count++] = bundle->each[i].transport.descriptor;
	return count;
}

int transport_bundle_reading(const struct transport *transport)
{
	return transport->bundle->each[transport->bundle->reading].transport.descriptor;
}

int transport_bundle_writing(const struct transport *transport)
{
	return transport->bundle->each[transport->bundle->writing].transport.descriptor;
}
