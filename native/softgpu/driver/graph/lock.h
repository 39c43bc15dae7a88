/* lock.h - the lock of all graphs, nodes, executables and captures.
 *
 * It is taken before the locks of handles, memory and queues, and never held while something
 * is submitted or waited for: what ends an operation takes it too.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_LOCK_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_LOCK_H

void driver_graph_lock(void);
void driver_graph_unlock(void);

#endif
