/* function.h - functions of modules, and what kernels of libraries mean in a context. */
#ifndef FARBUS_SOFTGPU_DRIVER_FUNCTION_H
#define FARBUS_SOFTGPU_DRIVER_FUNCTION_H

#include "module.h"

/* The function that a handle, also a kernel's, means in a context.
 * CUDA_ERROR_INVALID_HANDLE if it is neither. */
CUresult driver_function_of(CUfunction handle, struct CUctx_st *context,
			    struct CUfunc_st **function);
/* Most threads of one block that the function can run with. */
uint32_t driver_function_threads(const struct CUfunc_st *function);
/* The kernel that a function is of, or NULL where its module is of no library. */
CUresult driver_library_kernel_of(const struct CUfunc_st *function, CUkernel *kernel);
/* Call visit for every kernel of a module.  How many there are, or -1. */
int driver_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function),
			void *opaque);

/* With the guard: the function of this code in a module, made where it was not asked for before; or
 * only looked for, else NULL; and a library's kernel of that name, made as well. */
CUresult driver_module_function(struct CUmod_st *module, struct engine_function *code,
				struct CUfunc_st **out);
struct CUfunc_st *driver_module_find(struct CUmod_st *module, struct engine_function *code);
CUresult driver_library_kernel(struct CUlib_st *library, const char *name, CUkernel *out);

#endif
