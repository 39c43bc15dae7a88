/* nvrtc.c - an NVRTC that hands out PTX as the machine code of a software GPU.
 *
 * Programs that compile CUDA C++ while they run (PyTorch, CuPy) name the device's real
 * architecture (sm_90) and load the cubin that comes of it.  The software GPU executes PTX,
 * which NVRTC makes on the way, so this library stands in NVRTC's place (LD_PRELOAD: its
 * SONAME is NVRTC's), passes every call on to the real one, which FARBUS_NVRTC names, and
 *
 *	nvrtcCompileProgram	compiles for the newest architecture that NVRTC knows where the
 *				program names one that it does not know
 *	nvrtcGetCUBIN, ...Size	give the PTX where there is machine code
 *
 * Prototypes and the meaning of the results: NVRTC's documentation (CUDA toolkit). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvrtcResult;
typedef struct nvrtc_program *nvrtcProgram;

enum {
	NVRTC_SUCCESS = 0,
	NVRTC_ERROR_INTERNAL_ERROR = 11,
};

#define EXPORT __attribute__((visibility("default")))
#define OPTIONS_MAX 4096
#define ARCHITECTURES_MAX 256

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;

static void open_library(void)
{
	const char *path = getenv("FARBUS_NVRTC");

	if (!path)
		fprintf(stderr, "softgpu: FARBUS_NVRTC does not name NVRTC's library\n");
	else if (!(library = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
		fprintf(stderr, "softgpu: NVRTC not opened: %s\n", dlerror());
}

/* NULL where the real library lacks it. */
static void *real(const char *name)
{
	pthread_once(&once, open_library);
	return library ? dlsym(library, name) : NULL;
}

#define PASS(type, missing, name, parameters, arguments)                                           \
	EXPORT type name parameters                                                                \
	{                                                                                          \
		type(*function) parameters = real(#name);                                          \
                                                                                                   \
		return function ? function arguments : (missing);                                  \
	}

#define PASS_RESULT(name, parameters, arguments)                                                   \
	PASS(nvrtcResult, NVRTC_ERROR_INTERNAL_ERROR, name, parameters, arguments)

PASS(const char *, "NVRTC is missing", nvrtcGetErrorString, (nvrtcResult result), (result))
PASS_RESULT(nvrtcVersion, (int *major, int *minor), (major, minor))
PASS_RESULT(nvrtcGetNumSupportedArchs, (int *count), (count))
PASS_RESULT(nvrtcGetSupportedArchs, (int *architectures), (architectures))
PASS_RESULT(nvrtcCreateProgram,
	    (nvrtcProgram *program, const char *source, const char *name, int count,
	     const char *const *headers, const char *const *names),
	    (program, source, name, count, headers, names))
PASS_RESULT(nvrtcDestroyProgram, (nvrtcProgram *program), (program))
PASS_RESULT(nvrtcAddNameExpression, (nvrtcProgram program, const char *name), (program, name))
PASS_RESULT(nvrtcGetLoweredName, (nvrtcProgram program, const char *name, const char **lowered),
	    (program, name, lowered))
PASS_RESULT(nvrtcGetPTXSize, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcGetPTX, (nvrtcProgram program, char *text), (program, text))
PASS_RESULT(nvrtcGetLTOIRSize, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcGetLTOIR, (nvrtcProgram program, char *code), (program, code))
PASS_RESULT(nvrtcGetTileIRSize, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcGetTileIR, (nvrtcProgram program, char *code), (program, code))
PASS_RESULT(nvrtcGetOptiXIRSize, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcGetOptiXIR, (nvrtcProgram program, char *code), (program, code))
PASS_RESULT(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcGetProgramLog, (nvrtcProgram program, char *text), (program, text))
PASS_RESULT(nvrtcGetPCHCreateStatus, (nvrtcProgram program), (program))
PASS_RESULT(nvrtcGetPCHHeapSize, (size_t *bytes), (bytes))
PASS_RESULT(nvrtcSetPCHHeapSize, (size_t bytes), (bytes))
PASS_RESULT(nvrtcGetPCHHeapSizeRequired, (nvrtcProgram program, size_t *bytes), (program, bytes))
PASS_RESULT(nvrtcSetFlowCallback,
	    (nvrtcProgram program, int (*callback)(void *, void *), void *payload),
	    (program, callback, payload))

/* The newest architecture that NVRTC knows, or 0 when `wanted` is one of them. */
static int replacement(int wanted)
{
	int architectures[ARCHITECTURES_MAX], count, newest = 0;

	if (nvrtcGetNumSupportedArchs(&count) || count > ARCHITECTURES_MAX ||
	    nvrtcGetSupportedArchs(architectures))
		return 0;
	for (int i = 0; i < count; i++) {
		if (architectures[i] == wanted)
			return 0;
		if (architectures[i] > newest)
			newest = architectures[i];
	}
	/* A device runs what is older than it; what is too old for NVRTC stays its error. */
	return newest < wanted ? newest : 0;
}

/* Where the number begins in "sm_130" or "compute_130", alone or behind the option's name;
 * NULL where the option names no architecture. */
static const char *architecture_number(const char *option)
{
	static const char *const names[] = { "--gpu-architecture=", "-arch=", "" };
	static const char *const kinds[] = { "sm_", "compute_" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = option + strlen(names[i]);

		if (strncmp(option, names[i], strlen(names[i])))
			continue;
		for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
			if (!strncmp(value, kinds[k], strlen(kinds[k])))
				return value + strlen(kinds[k]);
	}
	return NULL;
}

/* The option for an architecture that NVRTC knows, allocated; NULL to leave it as it is. */
static char *rewritten(const char *option)
{
	const char *number = architecture_number(option);
	int newest = number ? replacement(atoi(number)) : 0;
	char *copy = NULL;

	if (newest && asprintf(&copy, "%.*s%d", (int)(number - option), option, newest) < 0)
		copy = NULL;
	return copy;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options)
{
	nvrtcResult (*compile)(nvrtcProgram, int, const char *const *) = real(__func__);
	char *changed[OPTIONS_MAX] = { NULL };
	const char *all[OPTIONS_MAX];
	nvrtcResult result;

	if (!compile)
		return NVRTC_ERROR_INTERNAL_ERROR;
	if (count < 0 || count > OPTIONS_MAX || (count && !options))
		return compile(program, count, options);
	for (int i = 0; i < count; i++) {
		if (options[i])
			changed[i] = rewritten(options[i]);
		all[i] = changed[i] ? changed[i] : options[i];
	}
	result = compile(program, count, count ? all : options);
	for (int i = 0; i < count; i++)
		free(changed[i]);
	return result;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
	nvrtcResult (*size)(nvrtcProgram, size_t *) = real(__func__);
	nvrtcResult result = size ? size(program, bytes) : NVRTC_ERROR_INTERNAL_ERROR;

	/* Nothing: the program asked for a virtual architecture, and then for no cubin. */
	return result || !*bytes ? result : nvrtcGetPTXSize(program, bytes);
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *code)
{
	size_t bytes;
	nvrtcResult result = nvrtcGetCUBINSize(program, &bytes);

	return result || !bytes ? result : nvrtcGetPTX(program, code);
}
