// Votes and matches of a warp: ballot, any, all, activemask, match_any, match_all, in whole and
// diverged warps, against a simulation lane by lane.
#define PROGRAM "warp_vote"
#include "check.h"

struct Votes {
	unsigned ballot, any, all, half_ballot, active, match, match_all, predicate, match64;
};

__global__ void vote(const unsigned *values, Votes *votes)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
	const unsigned value = values[i];
	Votes v = {};
	v.ballot = __ballot_sync(0xffffffffu, value & 1);
	v.any = __any_sync(0xffffffffu, value % 16 == 3);
	v.all = __all_sync(0xffffffffu, value % 16 != 5);
	const unsigned odd_lanes = 0xaaaaaaaau;
	if (lane % 2) {
		v.half_ballot = __ballot_sync(odd_lanes, value & 2);
		v.active = __activemask() & odd_lanes; // hardware may run fewer lanes at a time, never others
	}
	v.match = __match_any_sync(0xffffffffu, value % 4);
	int predicate;
	v.match_all = __match_all_sync(0xffffffffu, value / 1000000000, &predicate);
	v.predicate = predicate;
	v.match64 = __match_any_sync(0xffffffffu, static_cast<unsigned long long>(value % 3) << 40);
	votes[i] = v;
}

int main(int argc, char **argv)
{
	const int threads = 128, count = threads * size_option(argc, argv, 4, 1, 1 << 20);
	std::vector<unsigned> values(count);
	for (int i = 0; i < count; i++)
		values[i] = i / 32 % 2 ? hash(i) : hash(i) % 1000; // quotients agree in every other warp
	unsigned *device_values = to_device(values);
	Votes *device_votes = device_array<Votes>(count);
	vote<<<count / threads, threads>>>(device_values, device_votes);
	CUDA(cudaGetLastError());
	const std::vector<Votes> votes = to_host(device_votes, count);
	for (int i = 0; i < count; i++) {
		const int first = i / 32 * 32, lane = i % 32;
		Votes e = {};
		e.all = e.predicate = 1;
		for (int k = 0; k < 32; k++) {
			const unsigned value = values[first + k], bit = 1u << k;
			e.ballot |= value & 1 ? bit : 0;
			e.any |= value % 16 == 3;
			e.all &= value % 16 != 5;
			e.half_ballot |= k % 2 && value & 2 ? bit : 0;
			e.match |= value % 4 == values[i] % 4 ? bit : 0;
			e.match64 |= value % 3 == values[i] % 3 ? bit : 0;
			e.predicate &= value / 1000000000 == values[i] / 1000000000;
		}
		e.match_all = e.predicate ? 0xffffffffu : 0;
		const Votes &v = votes[i];
		if (v.ballot != e.ballot || v.any != e.any || v.all != e.all)
			FAIL("lane %d: ballot %08x any %u all %u instead of %08x %u %u", i, v.ballot, v.any, v.all,
			     e.ballot, e.any, e.all);
		if (lane % 2 && (v.half_ballot != e.half_ballot || !(v.active >> lane & 1)))
			FAIL("lane %d: ballot of odd lanes %08x (active %08x) instead of %08x", i, v.half_ballot,
			     v.active, e.half_ballot);
		if (v.match != e.match || v.match64 != e.match64)
			FAIL("lane %d: matches %08x %08x instead of %08x %08x", i, v.match, v.match64, e.match,
			     e.match64);
		if (v.match_all != e.match_all || v.predicate != e.predicate)
			FAIL("lane %d: match of all %08x %u instead of %08x %u", i, v.match_all, v.predicate,
			     e.match_all, e.predicate);
	}
	CUDA(cudaFree(device_values));
	CUDA(cudaFree(device_votes));
	std::printf("ok warp_vote of %d lanes\n", count);
}
