// Clusters, barriers and bulk copies as CUDA's own headers use them.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;
using block_barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" __global__ void barrier_copy(const int *in, int *out)
{
	__shared__ alignas(128) int values[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ block_barrier barrier;

	if (threadIdx.x == 0)
		init(&barrier, blockDim.x);
	__syncthreads();
	for (int round = 0; round < 3; round++) {
#if __CUDA_ARCH__ >= 900
		block_barrier::arrival_token token;

		if (threadIdx.x == 0) {
			cuda::device::memcpy_async_tx(values, in + 256 * round,
						      cuda::aligned_size_t<16>(sizeof(values)), barrier);
			token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(values));
		} else {
			token = barrier.arrive();
		}
		barrier.wait(std::move(token));
#else
		cuda::memcpy_async(cg::this_thread_block(), values, in + 256 * round, sizeof(values),
				   barrier);
		barrier.arrive_and_wait();
#endif
		out[256 * round + threadIdx.x] = values[255 - threadIdx.x];
		barrier.arrive_and_wait();
	}
}

extern "C" __global__ void producers_and_consumers(int *out)
{
	__shared__ int slots[2];
	__shared__ block_barrier full[2], empty[2];
	int half = blockDim.x / 2, sum = 0;

	if (threadIdx.x < 2) {
		init(&full[threadIdx.x], blockDim.x);
		init(&empty[threadIdx.x], blockDim.x);
		slots[threadIdx.x] = 0;
	}
	__syncthreads();
	for (int k = 0; k < 10; k++) {
		int slot = k % 2;

		if ((int)threadIdx.x < half) {	// producers
			if (k >= 2)
				empty[slot].arrive_and_wait();
			atomicAdd(&slots[slot], k);
			(void)full[slot].arrive();
		} else {
			full[slot].arrive_and_wait();
			sum += slots[slot];
			if (k < 8)
				(void)empty[slot].arrive();
		}
	}
	out[threadIdx.x] = sum;
}

extern "C" __global__ void drop_out(int *out)
{
	__shared__ block_barrier barrier;
	__shared__ int count;

	if (threadIdx.x == 0) {
		init(&barrier, blockDim.x);
		count = 0;
	}
	__syncthreads();
	atomicAdd(&count, 1);
	if (threadIdx.x % 2) {
		barrier.arrive_and_drop();
		return;
	}
	barrier.arrive_and_wait();
	out[threadIdx.x] = count;
	barrier.arrive_and_wait();
	if (threadIdx.x == 0)
		count = 7;
	barrier.arrive_and_wait();
	out[threadIdx.x] += 1000 * count;
}

extern "C" __global__ void pipeline_copy(const int *in, int *out, int batches)
{
	constexpr int stages = 2;
	__shared__ int values[stages][128];
	__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
	auto group = cg::this_thread_block();
	auto pipeline = cuda::make_pipeline(group, &state);
	int sum = 0;

	for (int batch = 0, fetched = 0; batch < batches; batch++) {
		for (; fetched < batches && fetched < batch + stages; fetched++) {
			pipeline.producer_acquire();
			cuda::memcpy_async(group, values[fetched % stages], in + fetched * 128,
					   sizeof(values[0]), pipeline);
			pipeline.producer_commit();
		}
		pipeline.consumer_wait();
		sum += values[batch % stages][threadIdx.x ^ 1];
		pipeline.consumer_release();
	}
	out[threadIdx.x] = sum;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

extern "C" __global__ void __cluster_dims__(2, 1, 1) neighbours(int *out)
{
	__shared__ int values[64];
	auto cluster = cg::this_cluster();
	unsigned rank = cluster.block_rank();

	values[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
	cluster.sync();
	int *other = cluster.map_shared_rank(values, rank ^ 1);
	int seen = other[threadIdx.x];
	cluster.sync();
	atomicAdd(&other[63 - threadIdx.x], 1000 * (rank + 1));
	cluster.sync();
	out[blockIdx.x * 64 + threadIdx.x] = seen + 10000 * values[threadIdx.x];
}

// A histogram that is spread over the shared memory of a cluster.
extern "C" __global__ void cluster_histogram(const unsigned *in, unsigned *out, int n, int bins)
{
	extern __shared__ unsigned part[];
	auto cluster = cg::this_cluster();
	int per_block = bins / cluster.num_blocks();

	for (int k = threadIdx.x; k < per_block; k += blockDim.x)
		part[k] = 0;
	cluster.sync();
	for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
		unsigned bin = in[k] % bins;

		atomicAdd(cluster.map_shared_rank(part, bin / per_block) + bin % per_block, 1u);
	}
	cluster.sync();
	for (int k = threadIdx.x; k < per_block; k += blockDim.x)
		atomicAdd(&out[cluster.block_rank() * per_block + k], part[k]);
}

extern "C" __global__ void places(unsigned *out)
{
	auto cluster = cg::this_cluster();
	dim3 index = cluster.block_index(), dims = cluster.dim_blocks();
	unsigned *row = out + 8 * (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
	unsigned cluster_x, clusters_x;

	asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster_x));
	asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters_x));
	row[0] = index.x; row[1] = index.y; row[2] = index.z;
	row[3] = cluster.block_rank();
	row[4] = dims.x * 100 + dims.y * 10 + dims.z;
	row[5] = cluster.num_blocks();
	row[6] = cluster_x;
	row[7] = clusters_x;
}

// Every block copies a share to all blocks of its cluster and waits for the whole.
extern "C" __global__ void __cluster_dims__(4, 1, 1) multicast(const int *in, int *out)
{
	__shared__ alignas(128) int values[4][32];
	__shared__ alignas(8) unsigned long long barrier;
	unsigned at = __cvta_generic_to_shared(&barrier), rank, done;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
			     :: "r"(at), "r"((int)sizeof(values)) : "memory");
	}
	cg::this_cluster().sync();
	if (threadIdx.x == 0)
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
			     ".multicast::cluster [%0], [%1], 128, [%2], %3;"
			     :: "r"((unsigned)__cvta_generic_to_shared(values[rank])),
				"l"(in + 32 * rank), "r"(at), "h"((short)15) : "memory");
	do
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
			     " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
	while (!done);
	out[blockIdx.x * 128 + threadIdx.x] = values[threadIdx.x / 32][threadIdx.x % 32];
}

// A value and its arrival at the next block's barrier.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring(int *out)
{
	__shared__ alignas(16) int inbox[4];
	__shared__ alignas(8) unsigned long long barrier;
	unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(inbox);
	unsigned rank, done;

	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" :: "r"(at) : "memory");
	cg::this_cluster().sync();
	asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to) : "r"((rank + 1) % 4));
	unsigned remote;
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"((rank + 1) % 4));
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1, %2, %3, %4}, [%5];"
		     :: "r"(to), "r"(rank), "r"(rank * 2), "r"(rank * 3), "r"(rank * 4), "r"(remote) : "memory");
	do
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
			     " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
	while (!done);
	for (int k = 0; k < 4; k++)
		out[blockIdx.x * 4 + k] = inbox[k];
	cg::this_cluster().sync();
}

extern "C" __global__ void bulk_reduce(const unsigned *in, unsigned *sums)
{
	__shared__ alignas(128) unsigned values[64];

	values[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	__syncthreads();
	if (threadIdx.x == 0) {
		asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;"
			     :: "l"(sums), "r"((unsigned)__cvta_generic_to_shared(values)), "r"(256)
			     : "memory");
		asm volatile("cp.async.bulk.commit_group;");
		asm volatile("cp.async.bulk.wait_group 0;");
	}
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) one_block_leaves()
{
	if (blockIdx.x % 2)
		return;
	__shared__ int never;
	if (threadIdx.x == 0)
		cg::this_cluster().sync();
	else
		__syncthreads();
	never = 1;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) beyond_the_cluster(int *out)
{
	__shared__ int value;
	unsigned at = __cvta_generic_to_shared(&value), got;

	asm volatile("mapa.shared::cluster.u32 %0, %0, 5;" : "+r"(at));
	asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(at));
	*out = got;
}

#endif
