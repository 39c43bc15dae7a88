// What the workloads have in common beyond what every program has: their options, and the time that
// their kernels take.
#pragma once

#include "../suite/check.h"

struct Options {
	int size, iterations;
	bool json = false;
};

/// The options of the command line, and `defaults` where it has none.
static Options parse(int argc, char **argv, const Options &defaults, long least_size, long most_size)
{
	Options options = defaults;
	for (int i = 1; i < argc; i++) {
		const bool size = !std::strcmp(argv[i], "--size"), iterations = !std::strcmp(argv[i], "--iterations");
		if (!std::strcmp(argv[i], "--json")) {
			options.json = true;
		} else if ((size || iterations) && i + 1 < argc) {
			char *end;
			const long value = std::strtol(argv[++i], &end, 10);
			const long least = size ? least_size : 1, most = size ? most_size : 1000000;
			if (*end || end == argv[i] || value < least || value > most)
				FAIL("%s %s: must be from %ld to %ld", argv[i - 1], argv[i], least, most);
			(size ? options.size : options.iterations) = static_cast<int>(value);
		} else {
			FAIL("does not know %s; usage: %s [--size N] [--iterations N] [--json]", argv[i], argv[0]);
		}
	}
	return options;
}

/// Adds up the time that the device spends between start() and stop().
class Stopwatch {
public:
	Stopwatch()
	{
		CUDA(cudaEventCreate(&begin_));
		CUDA(cudaEventCreate(&end_));
	}

	void start() { CUDA(cudaEventRecord(begin_)); }

	void stop()
	{
		float milliseconds = 0;
		CUDA(cudaEventRecord(end_));
		CUDA(cudaEventSynchronize(end_));
		CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
		seconds_ += milliseconds / 1000.0;
	}

	double seconds() const { return seconds_; }

private:
	cudaEvent_t begin_ = nullptr, end_ = nullptr;
	double seconds_ = 0;
};

static void report(const Options &options, const Stopwatch &watch)
{
	if (options.json)
		std::printf("{\"name\": \"" PROGRAM "\", \"size\": %d, \"iterations\": %d, \"kernel_seconds\": %.9f, "
			    "\"ok\": true}\n",
			    options.size, options.iterations, watch.seconds());
	else
		std::printf("ok " PROGRAM " of size %d, %d iterations, kernels took %.6f s\n", options.size,
			    options.iterations, watch.seconds());
}
