/* instruction.h - decoded instructions and the forms they are made from.
 *
 * A *form* is one spelling of a PTX instruction ("add.u32", "setp.lt.f32") and
 * the handler that executes it for a warp.  The tables of forms stand beside
 * the handlers (handlers/) and are the only list of what the engine can do:
 * the decoder looks instructions up there, and docs/softgpu.md is printed from
 * them.  Spellings that start with '@' are steps of the engine itself.
 */
#ifndef FARBUS_SOFTGPU_INSTRUCTION_H
#define FARBUS_SOFTGPU_INSTRUCTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct warp;
struct instruction;

/* Executes one instruction for the active lanes and returns what comes next;
 * NULL ends the warp's turn. */
typedef const struct instruction *(*handler_fn)(struct warp *warp,
						const struct instruction *instruction);

/* Registers are byte offsets into the warp's register window: 32 lanes side by
 * side, or one 32-bit mask for a predicate.  What the fields mean is up to the
 * handler; -1 is "absent". */
struct instruction {
	handler_fn run;
	int32_t dst, a, b, c;
	int64_t imm;
	const void *target;	/* branch target, call site, jump table, message */
	int32_t x, y;
	uint32_t line;		/* in the PTX text */
	uint32_t branch_to;	/* while decoding: index of the branch target + 1 */
};

/* How a form binds operands: one word for each operand in source order.
 *   d4 a4 b4 c4 x4 y4  register of 4 bytes a lane into dst, a, b, c, x, y
 *   k4                 like b4, or a constant into imm (run_immediate)
 *   dp ap bp cp        predicate register
 *   i                  constant into imm
 *   ix                 constant into x
 * A second destination ("d|p") goes into imm, or -1. */
struct form {
	const char *names;	/* spellings, separated by spaces */
	const char *operands;	/* NULL: bound by code in decode/ */
	handler_fn run;
	handler_fn run_immediate;
	int32_t x;		/* variant, for handlers that serve several forms */
	bool suspends;		/* may end the turn: guarded by a branch around it */
};

struct form_table {
	const struct form *forms;
	size_t count;
};

/* The handlers compiled for one instruction set level. */
struct isa {
	const char *name;
	const struct form_table *const *tables;	/* NULL-terminated */
	void (*run)(struct warp *warp);		/* one turn of a warp */
};

/* The best level that this processor has. */
const struct isa *isa_selected(void);
/* The form with this spelling, or NULL. */
const struct form *form_find(const char *name, size_t length);

#endif
