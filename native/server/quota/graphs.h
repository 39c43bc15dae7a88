/* graphs.h - memory of graphs (graphs.c). */
#ifndef FARBUS_SERVER_QUOTA_GRAPHS_H
#define FARBUS_SERVER_QUOTA_GRAPHS_H

#include "quota.h"

/* Put functions of ours in the place of the driver's. */
void quota_graphs_install(struct server_driver *driver);
/* Nodes of graphs that take memory and free it; and the graph that what is put into the stream becomes a part
 * of, NULL where it is executed. */
bool quota_node_fits(uint64_t bytes);
void quota_node_note(CUgraph graph, CUdeviceptr address, uint64_t bytes);
void quota_node_freed(CUgraph graph, CUdeviceptr address);
CUgraph quota_captured(CUstream stream);

#endif
