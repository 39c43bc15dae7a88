// What every program here ends with: exit status 0 and "ok", or one line that says
// what differs.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FAIL(...)                                                                        \
	do {                                                                             \
		std::printf("%s:%d: ", __FILE__, __LINE__);                              \
		std::printf(__VA_ARGS__);                                                \
		std::printf("\n");                                                       \
		std::exit(1);                                                            \
	} while (0)

#define CUDA(call)                                                                       \
	do {                                                                             \
		const cudaError_t error_ = (call);                                       \
		if (error_ != cudaSuccess)                                               \
			FAIL("%s: %s", #call, cudaGetErrorName(error_));                 \
	} while (0)

#define EXPECT_ERROR(call, wanted)                                                       \
	do {                                                                             \
		const cudaError_t error_ = (call);                                       \
		if (error_ != (wanted))                                                  \
			FAIL("%s: %s instead of %s", #call, cudaGetErrorName(error_),    \
			     cudaGetErrorName(wanted));                                  \
	} while (0)

#define EXPECT(condition)                                                                \
	do {                                                                             \
		if (!(condition))                                                        \
			FAIL("not so: %s", #condition);                                  \
	} while (0)

inline int passed()
{
	std::printf("ok\n");
	return 0;
}
