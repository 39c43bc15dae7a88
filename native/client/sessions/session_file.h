/* session_file.h - where servers are, and with what a session begins (session_file.c). */
#ifndef FARBUS_CLIENT_SESSION_FILE_H
#define FARBUS_CLIENT_SESSION_FILE_H

#include "../client.h"

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

#endif
