/* resume.h - a session that goes on after its connection was cut (resume.c). */
#ifndef FARBUS_SERVER_RESUME_H
#define FARBUS_SERVER_RESUME_H

#include "../server_ops.h"

/* May this session be resumed?  Then tell the client how, as the hello's end, and go on so. */
bool server_resume_may(const struct server *server, const struct server_options *options);
void server_resume_prepare(struct server *server, const struct server_options *options,
			   const struct wire_hello *hello, uint64_t granted);
int server_resume_grant(struct server *server);
int server_resume_start(struct server *server);

#endif
