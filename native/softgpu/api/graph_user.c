/* User objects: things of the program's that graphs keep. */

#include "../driver/graph/user.h"

#include "../driver/handle.h"

#include <limits.h>

static bool is_count(unsigned count)
{
	return count && count <= INT_MAX;
}

/* An object with its references; on success the lock is held. */
static CUresult enter_object(CUuserObject object, unsigned count)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	driver_graph_lock();
	if (is_count(count) && driver_handle_is(object, DRIVER_KIND_USER_OBJECT))
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destructor,
					  unsigned int count, unsigned int flags)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !destructor || !is_count(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	return driver_user_object_make(pointer, destructor, count, out);
}

DRIVER_EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	DRIVER_CALL;
	CUresult result = enter_object(object, count);

	if (result)
		return result;
	driver_user_object_hold(object, count);
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	DRIVER_CALL;
	CUresult result = enter_object(object, count);

	if (result)
		return result;
	if (!driver_user_object_release(object, count))
		result = CUDA_ERROR_INVALID_VALUE;
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object,
					       unsigned int count, unsigned int flags)
{
	DRIVER_CALL;
	CUresult result = enter_object(object, count);

	if (result)
		return result;
	if (!driver_handle_is(graph, DRIVER_KIND_GRAPH) ||
	    flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!driver_graph_users_keep(graph, object, count))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!flags)
		driver_user_object_hold(object, count);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object,
						unsigned int count)
{
	DRIVER_CALL;
	CUresult result = enter_object(object, count);

	if (result)
		return result;
	if (!driver_handle_is(graph, DRIVER_KIND_GRAPH) ||
	    !driver_graph_users_release(graph, object, count))
		result = CUDA_ERROR_INVALID_VALUE;
	driver_graph_unlock();
	return result;
}
