/* user.h - user objects: what graphs keep of the program's, which is told when nobody needs it.
 *
 * With the graph lock, unless it says otherwise.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GRAPH_USER_H
#define FARBUS_SOFTGPU_DRIVER_GRAPH_USER_H

#include "graph.h"

struct CUuserObject_st;
/* Without the lock; it has a handle, and `count` references.  CUDA_ERROR_OUT_OF_MEMORY. */
CUresult driver_user_object_make(void *pointer, CUhostFn destructor, unsigned count, CUuserObject *out);
void driver_user_object_hold(struct CUuserObject_st *object, uint64_t count);
/* False: it has not so many. */
bool driver_user_object_release(struct CUuserObject_st *object, uint64_t count);
/* References that are the graph's from now on; false without memory. */
bool driver_graph_users_keep(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count);
/* They are no longer; false: the graph has not so many. */
bool driver_graph_users_release(struct CUgraph_st *graph, struct CUuserObject_st *object, uint64_t count);

bool driver_graph_users_copy(struct CUgraph_st *to, const struct CUgraph_st *from);
void driver_graph_users_drop(struct user_reference **users);
void driver_graph_users_add(struct user_reference **users, struct user_reference *more);
/* References as `from` has them; its own are added to *former.  false: no memory, and all is as it was. */
bool driver_graph_users_replace(struct CUgraph_st *into, const struct CUgraph_st *from,
				struct user_reference **former);

#endif
