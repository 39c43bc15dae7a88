// LavaMD: potential and forces between the particles of neighbouring boxes in three dimensions; a
// block per box, which stages one neighbour's particles at a time in shared memory.  The kernel is
// exp(-A r^2) in double.  exp differs between libraries in the last bits, so results are compared
// to 1e-12 relative to the sum of the terms' magnitudes (some 3000 terms of 1e-16 each, at most).
// `--size` is the number of boxes along an edge, `--iterations` how often the forces are worked out.
#define PROGRAM "lavamd"
#include "workload.h"

#include <cmath>

static const int PER_BOX = 32;
static const double STEEPNESS = 0.5;

struct Particle {
	double x, y, z, charge;
};

struct Force {
	double potential, x, y, z;
};

__host__ __device__ static void interact(const Particle &here, const Particle &there, Force &force)
{
	const double dx = here.x - there.x, dy = here.y - there.y, dz = here.z - there.z;
	const double potential = there.charge * exp(-STEEPNESS * (dx * dx + dy * dy + dz * dz));
	const double pull = 2.0 * STEEPNESS * potential;
	force.potential += potential;
	force.x += pull * dx;
	force.y += pull * dy;
	force.z += pull * dz;
}

/// The grid's boxes are the boxes of space; the space has no neighbours beyond its faces.
__global__ void compute_forces(const Particle *particles, Force *forces)
{
	__shared__ Particle neighbours[PER_BOX];
	const int edge = gridDim.x;
	const int box = (blockIdx.z * edge + blockIdx.y) * edge + blockIdx.x;
	const Particle here = particles[box * PER_BOX + threadIdx.x];
	Force force = {};
	for (int z = max(0, static_cast<int>(blockIdx.z) - 1); z <= min(edge - 1, static_cast<int>(blockIdx.z) + 1); z++)
		for (int y = max(0, static_cast<int>(blockIdx.y) - 1); y <= min(edge - 1, static_cast<int>(blockIdx.y) + 1); y++)
			for (int x = max(0, static_cast<int>(blockIdx.x) - 1);
			     x <= min(edge - 1, static_cast<int>(blockIdx.x) + 1); x++) {
				__syncthreads();
				neighbours[threadIdx.x] = particles[((z * edge + y) * edge + x) * PER_BOX + threadIdx.x];
				__syncthreads();
				for (int k = 0; k < PER_BOX; k++)
					interact(here, neighbours[k], force);
			}
	forces[box * PER_BOX + threadIdx.x] = force;
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 3, 1 }, 1, 64);
	const int edge = options.size, boxes = edge * edge * edge, count = boxes * PER_BOX;
	std::vector<Particle> particles(count);
	for (int i = 0; i < count; i++) {
		const int box = i / PER_BOX;
		particles[i] = {box % edge + hash(4 * i) * 0x1p-32, box / edge % edge + hash(4 * i + 1) * 0x1p-32,
				box / edge / edge + hash(4 * i + 2) * 0x1p-32, 0.5 + hash(4 * i + 3) * 0x1p-32};
	}
	Stopwatch watch;
	Particle *device_particles = to_device(particles);
	Force *device_forces = device_array<Force>(count);
	watch.start();
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		compute_forces<<<dim3(edge, edge, edge), PER_BOX>>>(device_particles, device_forces);
		CUDA(cudaGetLastError());
	}
	watch.stop();

	const std::vector<Force> forces = to_host(device_forces, count);
	for (int i = 0; i < count; i++) {
		const int box = i / PER_BOX, bx = box % edge, by = box / edge % edge, bz = box / edge / edge;
		Force expected = {};
		for (int z = bz ? bz - 1 : 0; z <= bz + 1 && z < edge; z++)
			for (int y = by ? by - 1 : 0; y <= by + 1 && y < edge; y++)
				for (int x = bx ? bx - 1 : 0; x <= bx + 1 && x < edge; x++)
					for (int k = 0; k < PER_BOX; k++)
						interact(particles[i],
							 particles[((z * edge + y) * edge + x) * PER_BOX + k], expected);
		// All potentials are positive: their sum bounds every term, and |pull dx| <= 2 potential.
		const double allowed = 1e-12 * 2 * expected.potential;
		const Force &found = forces[i];
		if (!(std::fabs(found.potential - expected.potential) <= allowed &&
		      std::fabs(found.x - expected.x) <= allowed && std::fabs(found.y - expected.y) <= allowed &&
		      std::fabs(found.z - expected.z) <= allowed))
			FAIL("particle %d: %.17g (%.17g, %.17g, %.17g) instead of %.17g (%.17g, %.17g, %.17g)", i,
			     found.potential, found.x, found.y, found.z, expected.potential, expected.x, expected.y,
			     expected.z);
	}
	CUDA(cudaFree(device_particles));
	CUDA(cudaFree(device_forces));
	report(options, watch);
}
