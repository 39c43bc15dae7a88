/* See silence.h. */
#include "silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "../transport.h"

/* No answer from the peer's kernel to what was sent for so long: the network between is gone,
 * though nothing has said so.  The kernel itself would go on for a quarter of an hour. */
#define SILENCE_NS 20000000000u

enum { HEARD, AWAITED, SILENT };

/* Has the peer's kernel anything to answer there, and has it not since then? */
static int silence(int descriptor, uint64_t since_ns, uint64_t now)
{
	socklen_t size = sizeof(struct tcp_info);
	struct tcp_info info;

	memset(&info, 0, sizeof(info));
	if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 ||
	    (!info.tcpi_unacked && !info.tcpi_probes))
		return HEARD;
	return !since_ns || (uint64_t)info.tcpi_last_ack_recv * 1000000u < now - since_ns ? AWAITED
											 : SILENT;
}

bool silence_is_due(struct silence *self)
{
	return transport_now_ns() - self->looked_ns >= (uint64_t)TRANSPORT_LOOK_MS * 1000000u / 2;
}

bool silence_is_found(struct silence *self, const int *descriptors, unsigned count)
{
	uint64_t now = transport_now_ns();
	int worst = HEARD;

	self->looked_ns = now;
	for (unsigned i = 0; i < count; i++) {
		int each = silence(descriptors[i], self->since_ns, now);

		worst = each > worst ? each : worst;
	}
	if (worst == SILENT)
		return now - self->since_ns >= SILENCE_NS;
	self->since_ns = worst == HEARD ? 0 : now;
	return false;
}

void silence_end(struct silence *self)
{
	self->since_ns = 0;
}
