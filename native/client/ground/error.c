/* Results of the driver API: their names and texts. */
#include "../client.h"

static const struct {
	CUresult result;
	const char *name;
	const char *text;
} results[] = {
#define ROW(name, text) { name, #name, text },
	CUDA_ABI_RESULTS(ROW)
#undef ROW
};

#define RESULT_COUNT (sizeof(results) / sizeof(results[0]))

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < RESULT_COUNT; i++) {
		if (results[i].result == error) {
			*pStr = results[i].name;
			return CUDA_SUCCESS;
		}
	}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < RESULT_COUNT; i++) {
		if (results[i].result == error) {
			*pStr = results[i].text;
			return CUDA_SUCCESS;
		}
	}
	*pStr = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
