/* Core dumps of a remote GPU are never written: they are off and can't be switched on. */
#include "../ground/message.h"
#include "../ground/thread.h"

#include <string.h>

static size_t coredump_bytes(CUcoredumpSettings attribute)
{
	switch (attribute) {
	case CU_COREDUMP_ENABLE_ON_EXCEPTION:
	case CU_COREDUMP_TRIGGER_HOST:
	case CU_COREDUMP_LIGHTWEIGHT:
	case CU_COREDUMP_ENABLE_USER_TRIGGER:
		return sizeof(bool);
	case CU_COREDUMP_FILE:
	case CU_COREDUMP_PIPE:
		return 1;		/* the end of no name */
	case CU_COREDUMP_GENERATION_FLAGS:
		return sizeof(int);
	default:
		return 0;
	}
}

CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
	size_t bytes = coredump_bytes(attrib);

	if (!bytes || !size || (value && *size < bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (value)
		memset(value, 0, bytes);
	*size = bytes;
	return CUDA_SUCCESS;
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
	size_t bytes = coredump_bytes(attrib);

	if (!bytes || !value || !size || *size < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < bytes; i++) {
		if (((const char *)value)[i]) {
			client_message("core dumps of a remote GPU are not written: they can't be "
				       "switched on");
			return CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
	CUresult result = client_enter();

	return result == CUDA_SUCCESS ? cuCoredumpGetAttributeGlobal(attrib, value, size) : result;
}

CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
	CUresult result = client_enter();

	return result == CUDA_SUCCESS ? cuCoredumpSetAttributeGlobal(attrib, value, size) : result;
}
