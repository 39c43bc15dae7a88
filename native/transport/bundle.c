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

	/* Who reads. */
	unsigned reading;
	unsigned next;
	struct chunk header;
	size_t header_bytes;
	size_t left;			/* bytes of the chunk that have not come */
	int failed;			/* what was met behind the bytes that were read */
};

/* ---- writing ---- */

/* What the kernel holds and the peer's has not acknowledged. */
static size_t unsent(const struct connection *connection)
{
	int bytes = 0;

	return ioctl(connection->transport.descriptor, SIOCOUTQ, &bytes) < 0 || bytes < 0 ? 0 : (size_t)bytes;
}

/* Where the chunk behind one of so many bytes goes. */
static unsigned next_choose(struct bundle *bundle, size_t bytes)
{
	unsigned usable = atomic_load(&bundle->ready) & atomic_load(&bundle->heard);
	unsigned unnamed = usable & ~bundle->named;
	unsigned best = bundle->writing;
	size_t least = SIZE_MAX;

	if (bundle->names && unnamed)
		return (unsigned)__builtin_ctz(unnamed);
	if (usable == 1 || bytes < LARGE_BYTES)
		return 0;
	/* In turn where they are equal. */
	for (unsigned i = 1; i <= BUNDLE_CONNECTIONS; i++) {
		unsigned at = (bundle->writing + i) % BUNDLE_CONNECTIONS;
		size_t load;

		if (!(usable & 1u << at))
			continue;
		load = unsent(&bundle->each[at]) + (at == bundle->writing ? bytes : 0);
		if (load < least) {
			least = load;
			best = at;
		}
	}
	return best;
}

static int bundle_write(struct transport *transport, struct iovec *vector, int count)
{
	struct bundle *bundle = transport->bundle;
	size_t total = 0;
	int rc = 0;

	for (int i = 0; i < count; i++)
		total += vector[i].iov_len;
	while (total && !rc) {
		size_t room = total > CHUNK_BYTES + CHUNK_SLACK ? CHUNK_BYTES : total, taken = 0;
		struct iovec parts[1 + PARTS];
		struct chunk chunk = { 0 };
		int used = 1;

		while (taken < room && used <= PARTS) {
			size_t now = vector->iov_len < room - taken ? vector->iov_len : room - taken;

			parts[used++] = (struct iovec){ vector->iov_base, now };
			vector->iov_base = (char *)vector->iov_base + now;
			vector->iov_len -= now;
			taken += now;
			if (!vector->iov_len)
				vector++;
		}
		chunk.length = (uint32_t)taken;
		chunk.next = (uint8_t)next_choose(bundle, taken);
		parts[0] = (struct iovec){ &chunk, sizeof(chunk) };
		transport = &bundle->each[bundle->writing].transport;
		rc = transport->ops->write(transport, parts, used);
		bundle->writing = chunk.next;
		bundle->named |= 1u << chunk.next;
		total -= taken;
	}
	return rc;
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

static int bundle_wait(struct transport *transport, int timeout_ms)
{
	struct bundle *bundle = transport->bundle;
	struct connection *connection = &bundle->each[bundle->reading];

	if (bundle->failed || connection->stash_bytes)
		return 0;
	return connection->transport.ops->wait(&connection->transport, timeout_ms);
}

/* ---- */

static void bundle_shutdown(struct transport *transport)
{
	struct bundle *bundle = transport->bundle;
	unsigned present = atomic_load(&bundle->present);

	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			bundle->each[i].transport.ops->shutdown(&bundle->each[i].transport);
}

int transport_bundle_wrap(struct transport *transport, bool names)
{
	struct bundle *bundle = calloc(1, sizeof(*bundle));

	if (!bundle)
		return -ENOMEM;
	bundle->ops = (struct transport_ops){
		.name = transport->ops->name,
		.write = bundle_write,
		.read = bundle_read,
		.wait = bundle_wait,
		.shutdown = bundle_shutdown,
	};
	bundle->names = names;
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

/* The first connection's descriptor is closed. */
void transport_bundle_drop(struct bundle *bundle)
{
	unsigned present;

	if (!bundle)
		return;
	present = atomic_load(&bundle->present);
	bundle->each[0].transport.descriptor = -1;
	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++)
		if (present & 1u << i)
			transport_release(&bundle->each[i].transport);
	free(bundle);
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
