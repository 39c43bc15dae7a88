// A CUDA error in main is printed, and ends the program with 1.
#pragma once

#include <cstdio>

#define CHECK(call)                                                                         \
	do {                                                                                \
		cudaError_t error_ = (call);                                                \
		if (error_ != cudaSuccess) {                                                \
			printf("%s: %s\n", #call, cudaGetErrorString(error_));              \
			return 1;                                                           \
		}                                                                           \
	} while (0)
