/* graphs.h - executable graphs (graphs.c). */
#ifndef FARBUS_CLIENT_GRAPHS_H
#define FARBUS_CLIENT_GRAPHS_H

#include "../client.h"

/* The next launch of an executable graph is asked about again; of all of them: something that their kernels
 * need has gone. */
void client_graph_changed(CUgraphExec executable);
void client_graphs_changed(void);
/* Are its launches posted in streams of that context?  How often something has changed until now; and with that from before
 * it was asked: they are from here on. */
bool client_graph_repeats(CUgraphExec executable, const struct client_context *context, uint64_t *changes);
void client_graph_keep(CUgraphExec executable, const struct client_context *context, uint64_t changes);

#endif
