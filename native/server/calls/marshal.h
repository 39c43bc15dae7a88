/* marshal.h - calls that travel as their arguments: the server's half. */
#ifndef FARBUS_SERVER_MARSHAL_H
#define FARBUS_SERVER_MARSHAL_H

#include "../../wire/marshal.h"
#include "../server_ops.h"

/* Entries' numbers end below. */
#define SERVER_MARSHALLED 1024u

struct server_marshalled {
	CUresult (*serve)(struct server_call *call, struct marshal *m);
	bool wait;			/* may wait for the device */
};
extern const struct server_marshalled server_marshalled[SERVER_MARSHALLED];

/* The arguments are read: is that all, and does every handle name something? */
CUresult server_marshal_taken(struct marshal *m);
/* If the call succeeds, that object is no more. */
void server_marshal_dropping(struct marshal *m, enum server_type type, uint64_t real);
/* The driver has answered: true if results are to be written. */
bool server_marshal_answer(struct marshal *m, CUresult result, bool errors);

#endif
