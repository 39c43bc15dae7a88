// 300 threads wait for streams that a host function holds: what the host function
// answers still gets through.
#include "check.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

static std::mutex lock;
static std::condition_variable changed;
static int arrived;
static bool open_gate;

static void gate(void *)
{
	std::unique_lock<std::mutex> held(lock);
	changed.wait(held, [] { return open_gate; });
}

int main()
{
	const int count = 300;
	cudaStream_t stream;
	std::vector<std::thread> threads;

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaLaunchHostFunc(stream, gate, nullptr));
	for (int i = 0; i < count; i++)
		threads.emplace_back([stream] {
			CUDA(cudaSetDevice(0));
			{
				std::lock_guard<std::mutex> held(lock);
				arrived++;
				changed.notify_all();
			}
			CUDA(cudaStreamSynchronize(stream));
		});
	{
		std::unique_lock<std::mutex> held(lock);
		changed.wait(held, [] { return arrived == count; });
	}
	/* They have told that they come; let them get there, too. */
	for (int i = 0; i < 2000; i++)
		EXPECT_ERROR(cudaStreamQuery(stream), cudaErrorNotReady);
	{
		std::lock_guard<std::mutex> held(lock);
		open_gate = true;
		changed.notify_all();
	}
	for (auto &thread : threads)
		thread.join();
	return passed();
}
