/* named.h - objects that are named here (named.c). */
#ifndef FARBUS_SERVER_NAMED_H
#define FARBUS_SERVER_NAMED_H

#include "../server_ops.h"

/* Objects that are named here.  The name of `real`, making it if it has none, in
 * `owner` (a name, or 0); `again` counts one more holder of what is there already. */
struct server_names *server_names_make(void);
CUresult server_name(struct server_call *call, enum server_type type, uint64_t real, uint64_t owner,
		     bool again, uint64_t *wire);
/* `owner`: gets the name of what it lies in, or is NULL. */
bool server_named(struct server_call *call, enum server_type type, uint64_t wire, uint64_t *real,
		  uint64_t *owner);
/* The driver's object of that name and type, or NULL. */
void *server_object(struct server_call *call, enum server_type type, uint64_t wire);
/* Launches of an executable graph repeat (graph.c). */
void server_named_set_repeats(struct server *server, uint64_t executable);
bool server_named_repeats(struct server *server, uint64_t executable);
/* What a link has made, the driver's until the link is destroyed; `image`: keep that. */
const void *server_named_image(struct server *server, uint64_t wire, const void *image,
			       size_t *bytes);
/* Let a link's memory go with its name; -ENOENT: there is no such link.  Taken, it stays until it
 * is let go of with server_named_link_put; NULL: there is none. */
int server_named_link_set(struct server *server, uint64_t wire, struct server_link *link);
struct server_link *server_named_link_take(struct server *server, uint64_t wire);
void server_named_link_put(struct server *server, struct server_link *link);
void server_name_drop(struct server *server, enum server_type type, uint64_t real);
/* The driver is about to destroy it: from here on nobody finds it, nor what lies in it, and nobody uses
 * it any more.  NULL: somebody else still has it.  Settled, it is gone, or back. */
struct named;
struct named *server_name_hide(struct server_call *call, enum server_type type, uint64_t real);
void server_name_settle(struct server *server, struct named *hidden, bool gone);
/* A context is about to end, and with it these: nobody finds them any more.  Then, when the caller no longer
 * leads, nobody uses them either, and their names are free. */
struct named *server_names_hide(struct server *server, const struct server_context *context);
void server_names_end(struct server_call *call, struct named *hidden);

#endif
