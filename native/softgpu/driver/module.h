/* module.h - modules, libraries, kernels, functions.
 *
 *   library  an image, of no context; its kernels have names only
 *   module   an image loaded into one context, with the variables there
 *   kernel   a name in a library, of no context
 *   function code in a module, of one context
 *
 * A library becomes a module in every context that uses it, when it first
 * does.  Wherever the API takes a function it takes a kernel too, meaning the
 * kernel's function in the context at hand.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_MODULE_H
#define FARBUS_SOFTGPU_DRIVER_MODULE_H

#include "../engine/engine.h"
#include "context.h"

/* What cuFuncSetAttribute can change. */
struct driver_function_settings {
	int max_dynamic_shared;		/* bytes */
	int carveout;			/* percent, -1: default */
	int cluster[3];			/* required, 0: none */
	int non_portable_cluster;
	int cluster_policy;
};

struct CUfunc_st {
	uint64_t id;			/* unique in this process: the handle may come again */
	struct CUmod_st *module;
	struct CUfunc_st *next;		/* of the module */
	struct engine_function *code;
	struct engine_function_info info;
	struct driver_function_settings settings;
	bool told_unsupported;
	struct driver_pieces *pieces;	/* api/launch_old.c; NULL: none were set */
};

struct CUmod_st {
	struct CUctx_st *context;
	struct CUmod_st *next;		/* of the context */
	struct CUlib_st *library;	/* or NULL */
	struct engine_module *engine;
	struct CUfunc_st *functions;	/* those that were asked for */
	struct driver_references *references;	/* reference.c; NULL: it has none */
};

struct CUkern_st {
	struct CUlib_st *library;
	struct CUkern_st *next;		/* of the library */
	const char *name;		/* lives in the allocation */
	/* What cuKernelSetAttribute set, for functions that are yet to be made. */
	bool is_set[BOARD_COUNT_MAX];
	struct driver_function_settings settings[BOARD_COUNT_MAX];
};

struct CUlib_st {
	void *image;
	const void *origin;		/* where the program had it: for messages alone */
	uint32_t max_registers;		/* as in engine_load_options */
	struct CUkern_st *kernels;
};

/* CUDA's number for what the engine says. */
CUresult driver_engine_result(enum engine_status status);
/* Ready, and a module? */
CUresult driver_module_of(CUmodule module);
/* The context in which names are looked up: the current one, or the first
 * device's primary one when there is none. */
CUresult driver_module_context(struct CUctx_st **context);
/* The guard of all lists of modules, functions and kernels. */
void driver_module_lock(void);
void driver_module_unlock(void);

/* The first three with the guard. */
CUresult driver_module_load(struct CUctx_st *context, struct CUlib_st *library,
			    const void *image, uint32_t max_registers, struct engine_diagnostic *why,
			    struct CUmod_st **out);
void driver_module_unload(struct CUmod_st *module);
/* The library's module in a context, loaded if it is not there yet. */
CUresult driver_module_of_library(struct CUlib_st *library, struct CUctx_st *context,
				  struct CUmod_st **out);
/* The next entry function from *at on, which is 0 for the first; NULL behind the last. */
struct engine_function *driver_module_next_entry(const struct CUmod_st *module, size_t *at);
unsigned driver_module_entry_count(const struct CUmod_st *module);
CUresult driver_module_variable(struct CUmod_st *module, const char *name, bool only_managed,
				CUdeviceptr *address, size_t *bytes);
/* What CU_JIT_MAX_REGISTERS says; 0 without it. */
uint32_t driver_module_max_registers(unsigned count, const CUjit_option *options, void *const *values);
/* Write a message where the options of a load want it, and its length to the option that
 * has the buffer's. */
void driver_module_write_log(unsigned count, const CUjit_option *options, void **values,
			     const char *text);
/* Unload all modules of a context that was drained. */
void driver_module_end_context(struct CUctx_st *context);

#endif
