/* How a session has ended, in its supervisor's words. */
#include "ending.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../transport/ground/thread.h"
#include "../../transport/sockets/socket.h"
#include "../../wire/proof.h"

/* The supervisor knows how a server has ended a moment after its connection has closed, longer where
 * the kernel still takes its memory apart. */
#define END_TIMEOUT_MS 2000

uid_t client_peer_user(const struct transport *transport)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(transport->descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) ? (uid_t)-1 : peer.uid;
}

void client_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

void client_session_ended(struct client_session *session, const char *text, size_t length)
{
	if (length >= sizeof(session->ending))
		length = sizeof(session->ending) - 1;
	memcpy(session->ending, text, length);
	session->ending[length] = 0;
	client_printable(session->ending);
}

void client_session_ask_end(struct client_session *session)
{
	struct wire_hello hello = wire_hello_ours();
	struct transport asked = { .descriptor = -1 };
	uint64_t end = transport_now_ns() + END_TIMEOUT_MS * 1000000ull;
	char text[WIRE_HELLO_TEXT_BYTES];
	struct wire_hello_reply reply;
	int cancel;

	if (!session->number || !*session->local)
		return;
	hello.session = session->number;
	hello.process = (uint32_t)getpid();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (transport_unix_connect(&asked, session->local, END_TIMEOUT_MS) == 0) {
		/* Whoever has taken a dead supervisor's name since is no one to believe. */
		if (client_peer_user(&asked) == session->local_user &&
		    wire_hello_prove(&hello, session->key) == 0 &&
		    transport_write_all(&asked, &hello, sizeof(hello)) == 0 &&
		    transport_read_all(&asked, &reply, sizeof(reply), transport_left_ms(end)) == 0 &&
		    reply.magic == WIRE_HELLO_MAGIC && reply.status == WIRE_HELLO_SESSION &&
		    reply.text_bytes <= sizeof(text) &&
		    transport_read_all(&asked, text, reply.text_bytes, transport_left_ms(end)) == 0)
			client_session_ended(session, text, reply.text_bytes);
		transport_release(&asked);
	}
	pthread_setcancelstate(cancel, &cancel);
}
