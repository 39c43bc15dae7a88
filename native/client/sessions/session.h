/* session.h - what opening the sessions (session.c) takes: the session file, and the devices of all servers; and what is
 * known of a session's end. */
#ifndef FARBUS_CLIENT_SESSION_H
#define FARBUS_CLIENT_SESSION_H

#include "../client.h"

/* ---- session_file.c ---- */

#define SESSION_FILE_BYTES 32768

/* A server block of the session file. */
struct session_server {
	const char *transport;		/* "tls", "tcp" or "unix" */
	const char *address;
	const char *port;
	const char *file;		/* the session file's own path */
	uint8_t secret[WIRE_SECRET_BYTES];
	bool has_secret;
	unsigned connections;		/* how many there are to be; 0: by the round trip */
	bool rdma;			/* the operator lets what goes there go unencrypted, by RDMA */
};

struct session_file {
	char text[SESSION_FILE_BYTES];
	struct session_server servers[CLIENT_SERVERS];
	unsigned count;
};

/* 0, or -errno and the reason on stderr. */
int client_session_file_load(struct session_file *file, const char *path);
/* One "key value..." per line; a server begins a block.  Unknown keys are for newer shims. */
int client_session_file_parse(struct session_file *file, const char *path);
/* How many connections a setting asks for; 0: it is none. */
unsigned client_connections_decode(const char *text);

/* ---- ending.c ---- */

/* Keep what a supervisor says of a session that has ended, for the message about its loss. */
void client_session_ended(struct client_session *session, const char *text, size_t length);
/* Ask the supervisor of this machine how a session over its socket has ended. */
void client_session_ask_end(struct client_session *session);

/* Who listens there, as the kernel knows it; (uid_t)-1: it does not say. */
uid_t client_peer_user(const struct transport *transport);
/* What a peer sends to be read by a person does nothing to his terminal. */
void client_printable(char *text);

/* ---- visible.c ---- */

/* The devices of all sessions as one list: the servers in the file's order, each with its
 * own order, or by PCI address where CUDA_DEVICE_ORDER asks for that.  Addresses of several
 * machines have no order among each other. */
int client_devices_number(struct client *client);
/* CUDA_VISIBLE_DEVICES selects and orders, up to the first item that names no
 * device; one that is named twice makes none visible (CUDA's rule). */
int client_devices_choose(struct client *client);

/* ---- session.c ---- */

/* Open a session with every server of the session file, and number the devices. */
CUresult client_sessions_open(struct client *client);

#endif
