/* See zerocopy.h. */
#include "zerocopy.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../transport.h"

/* In headers since glibc 2.27 and Linux 4.14. */
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

/* Sends that the kernel is not done with, a power of two; what comes beyond is copied.  A pair of 10 Gb/s and 100 ms has as many of
 * 512 KiB under way. */
#define ZEROCOPY_SENDS 256u
/* Of one send: the kernel charges all of it to RLIMIT_MEMLOCK before it begins. */
#define ZEROCOPY_STEP_BYTES (1u << 20)
/* Sends that decide, and of how many of the latest. */
#define ZEROCOPY_FEW 4u
#define ZEROCOPY_LATEST 64u

struct zerocopy {
	_Atomic bool off;
	_Atomic uint32_t sent;			/* sends, as the kernel counts them: the next one's number */
	_Atomic uint32_t done;			/* with which the kernel is done */
	_Atomic uint32_t bytes[ZEROCOPY_SENDS];	/* of each, by its number */
	pthread_mutex_t lock;			/* over what was heard */
	unsigned heard;				/* of the latest */
	unsigned copied;
};

static struct {
	_Atomic bool stubborn;
	_Atomic uint64_t bytes[2];	/* not copied, and copied */
} all;

void zerocopy_set_stubborn(bool stubborn)
{
	atomic_store(&all.stubborn, stubborn);
}

uint64_t zerocopy_bytes(bool copied)
{
	return atomic_load_explicit(&all.bytes[copied], memory_order_relaxed);
}

void transport_zerocopy_begin(struct transport *transport)
{
	struct zerocopy *zerocopy;
	int one = 1;

	/* A socket, and not what encrypts or carries it otherwise. */
	if (!transport->ops->write_kept || transport->bundle || transport->zerocopy ||
	    setsockopt(transport->descriptor, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) < 0)
		return;
	zerocopy = calloc(1, sizeof(*zerocopy));
	if (zerocopy)
		pthread_mutex_init(&zerocopy->lock, NULL);
	transport->zerocopy = zerocopy;
}

void transport_zerocopy_drop(struct zerocopy *zerocopy)
{
	free(zerocopy);
}

bool zerocopy_is_on(const struct zerocopy *zerocopy)
{
	return zerocopy && !atomic_load_explicit(&zerocopy->off, memory_order_relaxed);
}

/* The kernel is done with these sends; `lock` is held.  What was sent again may have been copied on a path that else
 * copies nothing, and one notification may be of several sends, by the word of the first: so it is the greater part that decides. */
static void sends_hear(struct zerocopy *zerocopy, uint32_t first, uint32_t last, bool copied)
{
	uint32_t count = last - first + 1;
	uint64_t bytes = 0;

	/* More than are under way the kernel does not tell of. */
	if (count > ZEROCOPY_SENDS)
		return;
	for (uint32_t i = 0; i < count; i++)
		bytes += atomic_load_explicit(&zerocopy->bytes[(first + i) % ZEROCOPY_SENDS], memory_order_relaxed);
	atomic_fetch_add_explicit(&all.bytes[copied], bytes, memory_order_relaxed);
	atomic_fetch_add(&zerocopy->done, count);
	zerocopy->heard += count;
	zerocopy->copied += copied ? count : 0;
	if (zerocopy->heard >= ZEROCOPY_FEW && 2 * zerocopy->copied > zerocopy->heard && !atomic_load(&all.stubborn))
		atomic_store(&zerocopy->off, true);
	while (zerocopy->heard >= ZEROCOPY_LATEST) {
		zerocopy->heard /= 2;
		zerocopy->copied /= 2;
	}
}

bool zerocopy_take(struct zerocopy *zerocopy, int descriptor)
{
	bool any = false;

	pthread_mutex_lock(&zerocopy->lock);
	for (;;) {
		union {
			struct cmsghdr header;
			char room[256];
		} control;
		struct msghdr message = { .msg_control = &control, .msg_controllen = sizeof(control) };
		struct cmsghdr *each;

		if (recvmsg(descriptor, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		any = true;
		for (each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
			struct sock_extended_err said;

			/* Of IPv4 and of IPv6, and nothing else was asked for. */
			if (each->cmsg_len < CMSG_LEN(sizeof(said)))
				continue;
			memcpy(&said, CMSG_DATA(each), sizeof(said));
			if (!said.ee_errno && said.ee_origin == SO_EE_ORIGIN_ZEROCOPY)
				sends_hear(zerocopy, said.ee_info, said.ee_data, said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED);
		}
	}
	pthread_mutex_unlock(&zerocopy->lock);
	return any;
}

ssize_t zerocopy_send(struct zerocopy *zerocopy, int descriptor, const void *at, size_t bytes)
{
	uint32_t number = atomic_load(&zerocopy->sent);
	ssize_t got;

	if (number != atomic_load(&zerocopy->done))
		(void)zerocopy_take(zerocopy, descriptor);
	if (!zerocopy_is_on(zerocopy) || number - atomic_load(&zerocopy->done) >= ZEROCOPY_SENDS)
		return send(descriptor, at, bytes, MSG_NOSIGNAL);
	if (bytes > ZEROCOPY_STEP_BYTES)
		bytes = ZEROCOPY_STEP_BYTES;
	/* Before it is sent: another thread may hear that the kernel is done with it before this one goes on. */
	atomic_store(&zerocopy->bytes[number % ZEROCOPY_SENDS], (uint32_t)bytes);
	atomic_store(&zerocopy->sent, number + 1);
	got = send(descriptor, at, bytes, MSG_NOSIGNAL | MSG_ZEROCOPY);
	if (got < 0) {
		/* It has no number then. */
		atomic_store(&zerocopy->sent, number);
		if (errno == ENOBUFS)
			got = send(descriptor, at, bytes, MSG_NOSIGNAL);
	} else if ((size_t)got < bytes) {
		atomic_store(&zerocopy->bytes[number % ZEROCOPY_SENDS], (uint32_t)got);
	}
	return got;
}
