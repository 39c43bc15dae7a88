/* engine.h - the PTX engine of the software GPU: load, link, execute.
 *
 * The engine knows PTX and nothing of the CUDA driver API: no handles, no
 * contexts, no streams.  The libcuda look-alike (native/softgpu/driver and api) stands
 * on it.  Device addresses are host pointers of this process.
 *
 * Threads: every function may be called from any thread; functions that take
 * the same module must not run at the same time as engine_module_unload.
 */
#ifndef FARBUS_SOFTGPU_ENGINE_H
#define FARBUS_SOFTGPU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Visible to a library that is linked from the engine's objects and wants it so
 * (version script); everything else of the engine is hidden. */
#pragma GCC visibility push(default)

struct engine_module;
struct engine_function;

enum engine_status {
	ENGINE_OK = 0,
	ENGINE_NO_MEMORY,
	ENGINE_INVALID_IMAGE,	/* neither fatbin, PTX nor cubin */
	ENGINE_NO_BINARY,	/* no PTX that this device can run */
	ENGINE_INVALID_PTX,	/* malformed PTX */
	ENGINE_UNSUPPORTED_VERSION,	/* PTX of a later .version */
	ENGINE_UNSUPPORTED,	/* the function uses an instruction that is not there */
	ENGINE_UNRESOLVED,	/* a symbol is declared and defined nowhere */
	ENGINE_NOT_FOUND,
	/* what a launch can end with */
	ENGINE_ILLEGAL_ADDRESS,
	ENGINE_MISALIGNED,
	ENGINE_ASSERT,
	ENGINE_TRAP,		/* trap, brkpt */
	ENGINE_LAUNCH_FAILED,	/* shared out of bounds, barrier deadlock, stack overflow */
	ENGINE_TIMEOUT,		/* watchdog */
	ENGINE_CANCELLED,
};

/* One line for a person: what failed, on what, where. */
struct engine_diagnostic {
	char text[512];
};

/* For printf: as much as lines show of a function's name, which templates make thousands of
 * characters long.  All of a line must say what is wrong. */
#define ENGINE_NAME "%.200s"

/* Where the engine gets memory that the device sees (module variables), so
 * that it counts against the device's memory.  Returns NULL when full. */
struct engine_memory {
	void *(*alloc)(void *opaque, size_t bytes, size_t align);
	void (*free)(void *opaque, void *ptr);
	void *opaque;
};

struct engine_load_options {
	unsigned sm;			/* 75, 80, 90, 100, 120, ...: newest PTX target accepted */
	struct engine_memory memory;
	bool asks_reach;		/* launches say what memory may be used (engine_launch.reach) */
	/* Of a thread, for kernels that say nothing of it; 0: as the image has it. */
	uint32_t max_registers;
};

/* Load what cuModuleLoadData and cuLibraryLoadData get: a fatbin wrapper
 * (version 1 or 2), a fatbin container, an ELF object with containers (what the
 * linker makes is one) or NUL-terminated PTX.  A function
 * that uses an instruction the engine lacks is refused alone: its info says
 * ENGINE_UNSUPPORTED and a launch returns that.  *out is set on success. */
enum engine_status engine_module_load(struct engine_module **out, const void *image,
				      const struct engine_load_options *options,
				      struct engine_diagnostic *why);
void engine_module_unload(struct engine_module *module);

/* How many bytes an ELF object has that starts at `image`; 0 when it is damaged, or longer
 * than `limit` (SIZE_MAX: not known). */
size_t engine_image_bytes(const void *image, size_t limit);

/* ---- linking at run time ---- */

struct engine_linker;

/* NULL without memory.  `sm`: the device that the result is for. */
struct engine_linker *engine_linker_create(unsigned sm);
void engine_linker_destroy(struct engine_linker *linker);
/* Add PTX, a fatbin container, an object or an archive of objects; what it is is seen.  Names
 * that are defined nowhere are no error yet.  `max_registers` as in engine_load_options.  After
 * an error nothing was added. */
enum engine_status engine_linker_add(struct engine_linker *linker, const void *data, size_t bytes,
				     uint32_t max_registers, struct engine_diagnostic *why);
/* The image for engine_module_load, which lives as long as the linker.  Once. */
enum engine_status engine_linker_complete(struct engine_linker *linker, const void **image,
					  size_t *bytes, struct engine_diagnostic *why);

struct engine_param {
	uint32_t offset;		/* bytes, in the kernel's parameter buffer */
	uint32_t size;			/* bytes */
};

struct engine_function_info {
	const char *name;		/* mangled, lives as long as the module */
	enum engine_status status;	/* ENGINE_OK or ENGINE_UNSUPPORTED */
	const char *unsupported;	/* the missing instruction, or NULL */
	bool is_entry;
	uint32_t param_count;
	const struct engine_param *params;
	uint32_t param_bytes;		/* size of the whole parameter buffer */
	uint32_t registers;		/* per thread, an estimate of what ptxas would use */
	uint32_t static_shared_bytes;
	uint32_t const_bytes;		/* of the module */
	uint32_t local_bytes;		/* per thread */
	uint32_t max_threads_per_block;	/* .maxntid product, or 1024 */
	uint32_t required_cluster[3];	/* .reqnctapercluster, or 0 */
	uint32_t ptx_version;		/* 90 for .target sm_90 */
};

struct engine_variable_info {
	const char *name;
	void *address;
	size_t size;
	bool is_const;
	bool is_managed;
};

/* A texture or surface reference (.texref, .surfref): a name in the module that stands for what
 * each launch says. */
struct engine_reference_info {
	const char *name;
	bool is_surface;
};

size_t engine_module_function_count(const struct engine_module *module);
struct engine_function *engine_module_function_at(const struct engine_module *module, size_t index);
/* Entry functions and device functions by mangled name; NULL if not there. */
struct engine_function *engine_module_function(const struct engine_module *module, const char *name);
void engine_function_info(const struct engine_function *function, struct engine_function_info *info);
size_t engine_module_variable_count(const struct engine_module *module);
enum engine_status engine_module_variable(const struct engine_module *module, const char *name,
					  struct engine_variable_info *info);
void engine_module_variable_at(const struct engine_module *module, size_t index,
			       struct engine_variable_info *info);

size_t engine_module_reference_count(const struct engine_module *module);
void engine_module_reference_at(const struct engine_module *module, size_t index,
				struct engine_reference_info *info);

/* The memory that a kernel may use.  Loads, stores, atomics and cp.async by pointer are
 * looked at in modules that were loaded with asks_reach, other accesses always. */
struct engine_reach {
	uint64_t own_base, own_bytes;	/* which needs no question */
	/* May it use this address?  *base and *bytes become the memory around it for
	 * which that is the answer, as long as the launch runs. */
	bool (*may)(void *opaque, uint64_t address, uint64_t *base, uint64_t *bytes);
	void *opaque;
};

#define ENGINE_REPLICAS_MAX 16

/* What lies behind multicast addresses: the memory that each device of the team has bound. */
struct engine_replicas {
	uint64_t base, bytes;		/* the addresses that this is the answer for */
	unsigned count;
	char *memory[ENGINE_REPLICAS_MAX];	/* behind `base`, in the order of the team's devices */
};

struct engine_multicast {
	/* NULL, or why multimem can't be done there. */
	const char *(*find)(void *opaque, uint64_t address, struct engine_replicas *found);
	void *opaque;
};

struct engine_launch {
	const struct engine_function *function;
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t cluster[3];		/* 1,1,1 or 0 when none */
	uint32_t dynamic_shared_bytes;
	const void *params;		/* info.param_bytes bytes, read during the call */
	/* Handles of textures and surfaces for the references of the function's module, in
	 * their order; 0: bound to nothing.  NULL where the module has none. */
	const uint64_t *references;
	bool cooperative;		/* all blocks resident together; grid sync works */
	uint32_t multiprocessors;	/* of the device; 0: one */
	/* Those that the blocks may use, a bit each: they get that share of the workers.
	 * NULL: all. */
	const uint64_t *partition;
	/* Set from another thread to stop the launch early; may be NULL. */
	const volatile int *cancel;
	uint64_t timeout_ns;		/* 0: none */
	/* Device printf: complete formatted text, called under a lock. */
	void (*print)(void *opaque, const char *text, size_t length);
	void *print_opaque;
	/* cudaGraphSetConditional: false when there is no such handle.  NULL: there is none. */
	bool (*set_condition)(void *opaque, uint64_t handle, uint32_t value);
	void *condition_opaque;
	const struct engine_reach *reach;	/* NULL: all memory */
	const struct engine_multicast *multicast;	/* NULL: there are no such addresses */
};

/* Run the kernel to its end; blocks the calling thread, spreads the blocks
 * over the engine's worker pool.  Geometry has been checked by the caller. */
enum engine_status engine_launch(const struct engine_launch *launch,
				 struct engine_diagnostic *why);

struct engine_options {
	unsigned workers;		/* 0: one per online processor */
	bool deterministic;		/* one worker, blocks in order */
	bool strict;			/* check alignment, bounds, initialisation, races; one worker */
};

/* Once per process, before the first module is loaded; later calls are ignored. */
void engine_configure(const struct engine_options *options);

/* ---- strict mode ---- */

/* What is known of a byte of device memory. */
enum engine_memory_state { ENGINE_MEMORY_FREE, ENGINE_MEMORY_UNWRITTEN, ENGINE_MEMORY_WRITTEN };

/* Address space in which device memory lies, all of it free at first; false when
 * there is no room to follow it.  Memory outside of all regions is not followed. */
bool engine_strict_region(void *base, size_t bytes);
void engine_strict_mark(const void *memory, size_t bytes, enum engine_memory_state state);
/* `bytes` have been copied, and what is known of them goes with them. */
void engine_strict_copy(void *to, const void *from, size_t bytes);

/* ---- textures and surfaces ---- */

enum engine_texel {
	ENGINE_TEXEL_U8, ENGINE_TEXEL_U16, ENGINE_TEXEL_U32,
	ENGINE_TEXEL_S8, ENGINE_TEXEL_S16, ENGINE_TEXEL_S32,
	ENGINE_TEXEL_F16, ENGINE_TEXEL_F32,
};

struct engine_image {
	void *memory;			/* outlives every launch that may use it */
	enum engine_texel texel;
	uint32_t channels;		/* 1, 2 or 4 */
	uint32_t dimensions;		/* of a layer: 1, 2 or 3; faces of a cube have 2 */
	uint32_t width, height, depth;	/* texels; 1 where there is no such dimension */
	uint32_t layers;		/* 1; six for each cube */
	uint64_t pitch, slice;		/* bytes from row to row, from slice or layer to the next */
};

enum engine_address_mode {
	ENGINE_ADDRESS_WRAP, ENGINE_ADDRESS_CLAMP, ENGINE_ADDRESS_MIRROR, ENGINE_ADDRESS_BORDER,
};

struct engine_sampler {
	enum engine_address_mode address_mode[3];
	bool linear;			/* interpolates; else the nearest texel */
	bool normalized_coordinates;	/* from 0 to 1 */
	bool normalized_values;		/* integers of 8 and 16 bits become 0 to 1 or -1 to 1 */
	bool srgb;			/* the first three channels of 8 bits are sRGB */
	float border[4];
};

#define ENGINE_LEVELS_MAX 18		/* of the largest image, 131072 texels wide */

struct engine_mipmap {
	const struct engine_image *levels;	/* the largest first; read during the call */
	uint32_t level_count;		/* 1 to ENGINE_LEVELS_MAX */
	bool linear;			/* interpolates between two levels; else the nearest */
	float bias, least, most;	/* levels: added to what is asked for, which is then clamped */
};

/* The handle that a kernel gets for a texture, or without a sampler for a
 * surface; ENGINE_NO_MEMORY when there are too many. */
enum engine_status engine_texture_add(const struct engine_image *image,
				      const struct engine_sampler *sampler, uint64_t *handle);
/* The same for a texture of several levels. */
enum engine_status engine_mipmap_add(const struct engine_mipmap *mipmap,
				     const struct engine_sampler *sampler, uint64_t *handle);
/* No launch that uses it may be running.  Handles are not used again soon. */
void engine_texture_remove(uint64_t handle);

/* Every instruction form that the engine executes, from the tables that it
 * decodes by: `names` are its spellings, separated by spaces (".rn", ".sync" and
 * ".aligned" left out; those with '@' are steps into which the decoder breaks
 * ld, st, atom, bar, mma and their kind), `operands` its operand list or NULL. */
void engine_forms_visit(void (*visit)(void *opaque, const char *names, const char *operands),
			void *opaque);

#pragma GCC visibility pop

#endif
