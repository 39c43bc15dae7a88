/* active.h - streams that may have work which uses managed memory.  client_pages_lock is held. */
#ifndef FARBUS_CLIENT_ACTIVE_H
#define FARBUS_CLIENT_ACTIVE_H

#include "home.h"

/* Around posting work to the stream that may use managed memory, of a graph too. */
void client_active_begin(uint64_t stream, bool graph);
void client_active_end(uint64_t stream);
/* Copies: it has been posted, and other threads may have to know when it is over. */
void client_active_mark(uint64_t stream);
/* Has the stream of that key (client_managed_key) any, or any of them? */
bool client_active_is(uint64_t key);
bool client_active_any(void);
/* The program has waited for the stream, or with 0 for the whole context, from that posting on. */
void client_active_quiet(const struct client_context *context, uint64_t stream, uint64_t since);
/* The context is destroyed. */
void client_active_forget(const struct client_context *context);
/* Ask for each stream that may have work whether it has, but for those behind that one (0: where
 * graphs were launched; CLIENT_ACTIVE_NONE: none).  Has any? */
#define CLIENT_ACTIVE_NONE UINT64_MAX
bool client_active_ask(uint64_t but);
/* Does what is posted to the stream come behind a host function in the other?  Both are keys;
 * 0: a graph's. */
bool client_active_behind(uint64_t stream, uint64_t other);

#endif
