/* A driver with a GPU's times that computes nothing: for what remoting costs a program's threads, where no GPU is at hand.
 *
 * Launches, and copies of memory in streams, take the time of their calls on the caller's thread, and end when a GPU would
 * have ended them: no kernel runs, no byte moves.  Machine code for compute capability 9.0 is taken as well: kernels
 * of the same names and parameters stand for its own, so that libraries choose what they choose on such a GPU.
 * All else is the software GPU's, which this is linked to.
 *
 * The times are those of the H100 in docs/performance.md: near enough to find what a change is worth, and no measurement. */
#define _GNU_SOURCE
#include "../../native/softgpu/engine/images/fatbin_layout.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define NEXT(name) dlsym(RTLD_NEXT, name)

enum { SUCCESS = 0, NOT_READY = 600, PER_THREAD_STREAMS = 2 };

/* Nanoseconds: of a call, from then until the device begins, and of the work. */
enum {
	LAUNCH_CALL = 2500, LAUNCH_START = 4000, KERNEL = 2500,
	GRAPH_CALL = 9000, GRAPH_START = 6000, GRAPH = 500000,
	COPY_CALL = 1500, COPY_START = 5000, COPY_LEAST = 500, COPY_BYTES_PER_NS = 50,
	PAGEABLE_BYTES_PER_NS = 12,	/* which the driver copies to memory of its own first */
	RECORD_CALL = 600, ASK_CALL = 400, WAIT_CALL = 700,
};

/* ---- times ---- */

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void spin_until(uint64_t end)
{
	while (now_ns() < end)
		;
}

static void spend(uint64_t ns)
{
	spin_until(now_ns() + ns);
}

/* When the work of a stream, or up to an event, ends.  Many more than a program has. */
#define OBJECTS 4096u

static struct {
	pthread_mutex_t lock;
	struct { const void *object; uint64_t end; } slots[OBJECTS];
	uint64_t engines[2];		/* the copies of each direction follow one another */
	uint64_t last;			/* of all work */
} times = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static uint64_t *end_of(const void *object)
{
	size_t at = (uintptr_t)object / 16 % OBJECTS;

	object = object ? object : &times;	/* the legacy stream */
	while (times.slots[at].object && times.slots[at].object != object)
		at = (at + 1) % OBJECTS;
	times.slots[at].object = object;
	return &times.slots[at].end;
}

static uint64_t ends(const void *object)
{
	uint64_t end;

	pthread_mutex_lock(&times.lock);
	end = *end_of(object);
	pthread_mutex_unlock(&times.lock);
	return end;
}

/* Work in a stream that begins in so long at the earliest; copies wait for their engine, too. */
static int work(const void *stream, uint64_t call, uint64_t start, uint64_t lasts, uint64_t *engine)
{
	uint64_t begin, *end;

	spend(call);
	begin = now_ns() + start;
	pthread_mutex_lock(&times.lock);
	end = end_of(stream);
	if (begin < *end)
		begin = *end;
	if (engine && begin < *engine)
		begin = *engine;
	*end = begin + lasts;
	if (engine)
		*engine = *end;
	if (times.last < *end)
		times.last = *end;
	pthread_mutex_unlock(&times.lock);
	return SUCCESS;
}

static int wait_for(uint64_t end)
{
	spin_until(end);
	spend(WAIT_CALL);
	return SUCCESS;
}

static int ask(const void *object)
{
	spend(ASK_CALL);
	return now_ns() < ends(object) ? NOT_READY : SUCCESS;
}

/* ---- calls that take time ---- */

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			  unsigned shared, void *stream, void **parameters, void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
	(void)parameters, (void)extra;
	return work(stream, LAUNCH_CALL, LAUNCH_START, KERNEL, NULL);
}

/* As CUlaunchConfig begins. */
struct launch_config {
	unsigned grid[3], block[3], shared;
	void *stream;
};

EXPORT int cuLaunchKernelEx(const struct launch_config *config, void *function, void **parameters, void **extra)
{
	(void)function, (void)parameters, (void)extra;
	return work(config->stream, LAUNCH_CALL, LAUNCH_START, KERNEL, NULL);
}

/* Any number of blocks is there at once. */
EXPORT int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
				     unsigned bz, unsigned shared, void *stream, void **parameters)
{
	return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

EXPORT int cuGraphLaunch(void *executable, void *stream)
{
	(void)executable;
	return work(stream, GRAPH_CALL, GRAPH_START, GRAPH, NULL);
}

static int copy(void *stream, size_t bytes, int direction)
{
	return work(stream, COPY_CALL, COPY_START, COPY_LEAST + bytes / COPY_BYTES_PER_NS, &times.engines[direction]);
}

EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long device, const void *host, size_t bytes, void *stream)
{
	(void)device, (void)host;
	return copy(stream, bytes, 0);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *host, unsigned long long device, size_t bytes, void *stream)
{
	(void)device, (void)host;
	return copy(stream, bytes, 1);
}

/* Waited for, from memory of any kind. */
static int copy_now(const void *host, size_t bytes, int direction)
{
	enum { MEMORY_TYPE = 2 };
	int (*attribute)(void *, int, unsigned long long) = NEXT("cuPointerGetAttribute");
	unsigned type = 0;
	size_t rate = attribute(&type, MEMORY_TYPE, (uintptr_t)host) ? PAGEABLE_BYTES_PER_NS : COPY_BYTES_PER_NS;

	work(NULL, COPY_CALL, COPY_START, COPY_LEAST + bytes / rate, &times.engines[direction]);
	return wait_for(ends(NULL));
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long device, const void *host, size_t bytes)
{
	(void)device;
	return copy_now(host, bytes, 0);
}

EXPORT int cuMemcpyDtoH_v2(void *host, unsigned long long device, size_t bytes)
{
	(void)device;
	return copy_now(host, bytes, 1);
}

EXPORT int cuEventRecord(void *event, void *stream)
{
	uint64_t now, end;

	spend(RECORD_CALL);
	now = now_ns();
	pthread_mutex_lock(&times.lock);
	end = *end_of(stream);
	*end_of(event) = end < now ? now : end;
	pthread_mutex_unlock(&times.lock);
	return SUCCESS;
}

EXPORT int cuEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
	(void)flags;
	return cuEventRecord(event, stream);
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
	if (now_ns() < ends(start) || now_ns() < ends(end))
		return NOT_READY;
	*milliseconds = (float)((double)(int64_t)(ends(end) - ends(start)) * 1e-6);
	return SUCCESS;
}

EXPORT int cuEventElapsedTime_v2(float *milliseconds, void *start, void *end)
{
	return cuEventElapsedTime(milliseconds, start, end);
}

EXPORT int cuEventQuery(void *event)
{
	return ask(event);
}

EXPORT int cuStreamQuery(void *stream)
{
	return ask(stream);
}

EXPORT int cuEventSynchronize(void *event)
{
	return wait_for(ends(event));
}

EXPORT int cuStreamSynchronize(void *stream)
{
	return wait_for(ends(stream));
}

EXPORT int cuCtxSynchronize(void)
{
	uint64_t last;

	pthread_mutex_lock(&times.lock);
	last = times.last;
	pthread_mutex_unlock(&times.lock);
	return wait_for(last);
}

/* ---- machine code ---- */

enum { MAJOR = 9 };
/* Of the sections .nv.info.*: an attribute with a size, and the one that tells of a parameter. */
enum { SIZED = 4, PARAMETER = 0x17, PARAMETERS = 512 };
enum { KERNEL_SYMBOL = 0x10 };

static char *unpacked(const struct entry *entry, const char *data)
{
	size_t (*zstd)(void *, size_t, const void *, size_t);
	int (*lz4)(const char *, char *, int, int);
	size_t bytes = entry->flags & (ENTRY_LZ4 | ENTRY_ZSTD) ? entry->uncompressed_bytes : entry->padded_bytes;
	char *out = malloc(bytes);

	*(void **)&zstd = entry->flags & ENTRY_ZSTD ? dlsym(dlopen("libzstd.so.1", RTLD_NOW), "ZSTD_decompress") : NULL;
	*(void **)&lz4 = entry->flags & ENTRY_LZ4 ? dlsym(dlopen("liblz4.so.1", RTLD_NOW), "LZ4_decompress_safe") : NULL;
	if (zstd)
		zstd(out, bytes, data, entry->compressed_bytes);
	else if (lz4)
		lz4(data, out, (int)entry->compressed_bytes, (int)bytes);
	else
		memcpy(out, data, bytes);
	return out;
}

/* An entry that takes what the kernel takes, at the same offsets. */
static void write_kernel(FILE *out, const char *cubin, const Elf64_Shdr *sections, unsigned count, const char *names,
			 const char *kernel)
{
	struct { unsigned offset, bytes; } parameters[PARAMETERS] = { 0 };
	unsigned parameter_count = 0;
	const size_t prefix = strlen(".nv.info.");

	for (unsigned i = 0; i < count; i++) {
		const char *name = names + sections[i].sh_name;
		const unsigned char *at = (const unsigned char *)cubin + sections[i].sh_offset;
		const unsigned char *end = at + sections[i].sh_size;

		if (strncmp(name, ".nv.info.", prefix) != 0 || strcmp(name + prefix, kernel) != 0)
			continue;
		for (; at + 4 <= end; at += 4 + (at[0] == SIZED ? at[2] | at[3] << 8 : 0)) {
			uint32_t words[3];
			unsigned number;

			if (at[0] != SIZED || at[1] != PARAMETER)
				continue;
			memcpy(words, at + 4, sizeof(words));
			number = words[1] & 0xffff;
			if (number >= PARAMETERS)
				continue;
			parameters[number].offset = words[1] >> 16;
			parameters[number].bytes = words[2] >> 18 & 0x3fff;
			if (parameter_count <= number)
				parameter_count = number + 1;
		}
	}
	fprintf(out, ".visible .entry %s(", kernel);
	for (unsigned i = 0; i < parameter_count; i++) {
		unsigned offset = parameters[i].offset, alignment = offset ? offset & -offset : 16;

		fprintf(out, "%s.param .align %u .b8 p%u[%u]", i ? ", " : "", alignment < 16 ? alignment : 16, i,
			parameters[i].bytes ? parameters[i].bytes : 1);
	}
	fprintf(out, ") { ret; }\n");
}

/* PTX with the kernels and variables of a cubin. */
static char *stand_in(const char *cubin)
{
	const Elf64_Ehdr *header = (const void *)cubin;
	const Elf64_Shdr *sections = (const void *)(cubin + header->e_shoff);
	const char *names = cubin + sections[header->e_shstrndx].sh_offset;
	char *text;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	fprintf(out, ".version 8.0\n.target sm_90\n.address_size 64\n");
	for (unsigned i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbol = (const void *)(cubin + sections[i].sh_offset);
		const char *strings = cubin + sections[sections[i].sh_link].sh_offset;

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		for (size_t left = sections[i].sh_size / sizeof(*symbol); left--; symbol++) {
			const char *name = strings + symbol->st_name, *section;

			if (symbol->st_shndx == SHN_UNDEF || symbol->st_shndx >= header->e_shnum)
				continue;
			section = names + sections[symbol->st_shndx].sh_name;
			if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_other & KERNEL_SYMBOL)
				write_kernel(out, cubin, sections, header->e_shnum, names, name);
			else if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_size &&
				 symbol->st_size < 60000 && !strchr(name, '.') &&
				 (!strncmp(section, ".nv.global", 10) || !strncmp(section, ".nv.constant3", 13)))
				fprintf(out, ".visible %s .align 16 .b8 %s[%llu];\n",
					section[4] == 'g' ? ".global" : ".const", name,
					(unsigned long long)symbol->st_size);
		}
	}
	fclose(out);
	return text;
}

/* NULL: it is PTX.  Code for other devices alone is a module without kernels: NVIDIA's driver, which loads a kernel
 * when it is used, takes that too. */
static char *stand_in_for(const void *image)
{
	const char *at = image, *end;
	struct container container;
	uint32_t magic;
	char *cubin, *text;

	memcpy(&magic, at, sizeof(magic));
	if (magic == WRAPPER_MAGIC)
		memcpy(&at, at + 8, sizeof(at));
	if (memcmp(at, ELFMAG, SELFMAG) == 0)
		return stand_in(at);
	memcpy(&container, at, sizeof(container));
	if (container.magic != CONTAINER_MAGIC)
		return NULL;
	at += container.header_bytes;
	for (end = at + container.payload_bytes; (size_t)(end - at) >= sizeof(struct entry);) {
		struct entry entry;

		memcpy(&entry, at, sizeof(entry));
		if (entry.kind == ENTRY_KIND_CUBIN && entry.arch / 10 == MAJOR) {
			cubin = unpacked(&entry, at + entry.header_bytes);
			text = stand_in(cubin);
			free(cubin);
			return text;
		}
		at += entry.header_bytes + entry.padded_bytes;
	}
	return strdup(".version 8.0\n.target sm_90\n.address_size 64\n");
}

EXPORT int cuModuleLoadData(void **module, const void *image)
{
	int (*next)(void **, const void *) = NEXT("cuModuleLoadData");
	char *text = stand_in_for(image);
	int result = next(module, text ? text : image);

	free(text);
	return result;
}

EXPORT int cuModuleLoadFatBinary(void **module, const void *image)
{
	return cuModuleLoadData(module, image);
}

EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void *values)
{
	int (*next)(void **, const void *, unsigned, void *, void *) = NEXT("cuModuleLoadDataEx");
	char *text = stand_in_for(image);
	int result = text ? next(module, text, 0, NULL, NULL) : next(module, image, count, options, values);

	free(text);
	return result;
}

EXPORT int cuLibraryLoadData(void **library, const void *image, void *options, void *values, unsigned count, void *others,
			     void *other_values, unsigned other_count)
{
	int (*next)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned) = NEXT("cuLibraryLoadData");
	char *text = stand_in_for(image);
	int result = text ? next(library, text, NULL, NULL, 0, NULL, NULL, 0)
			  : next(library, image, options, values, count, others, other_values, other_count);

	free(text);
	return result;
}

/* ---- who asks the driver where its functions are ---- */

static void replace(const char *name, void **function, uint64_t flags)
{
	Dl_info own, found;
	char symbol[128];
	void *self, *ours = NULL;

	if (!function || !*function || flags & PER_THREAD_STREAMS || !dladdr((void *)replace, &own))
		return;
	self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	snprintf(symbol, sizeof(symbol), "%s_v2", name);
	for (int i = 0; i < 2 && !ours; i++) {
		ours = dlsym(self, i ? name : symbol);
		if (ours && (!dladdr(ours, &found) || found.dli_fbase != own.dli_fbase))
			ours = NULL;
	}
	if (ours)
		*function = ours;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, void *status)
{
	int (*next)(const char *, void **, int, uint64_t, void *) = NEXT("cuGetProcAddress_v2");
	int result = next(name, function, version, flags, status);

	if (result == SUCCESS)
		replace(name, function, flags);
	return result;
}
