// For programs that call the driver beside the runtime, without being linked to it: DRIVER(cuFunction, arguments).
#pragma once

#include "check.h"

#include <cuda.h>

static void check(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS)
		FAIL("%s: error %d", call, static_cast<int>(result));
}

// As it is since CUDA 12.1, which has all that is asked for here.
template <typename Function> static Function driver(const char *name, Function)
{
	cudaDriverEntryPointQueryResult found;
	void *function = nullptr;
	CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12010, cudaEnableDefault, &found));
	if (!function)
		FAIL("the driver has no %s", name);
	return reinterpret_cast<Function>(function);
}

#define DRIVER(function, ...) check(driver(#function, &function)(__VA_ARGS__), #function)
