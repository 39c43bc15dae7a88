/* reach.c - memory of other devices: may this one use it?
 *
 * Where a program has several devices, the decoder puts a step "@reach" in front of
 * accesses by pointer; elsewhere nothing here costs anything.  Memory of the launch's
 * own device needs no question, and the last answer is good for all that it covers.
 */
#include "handlers.h"

#include "launch.h"

static void ask(struct warp *w, const struct instruction *i, u64 pointer)
{
	const struct engine_reach *reach = w->block->launch->request->reach;
	const struct block *block = w->block;

	if (pointer - w->reach_base < w->reach_bytes)
		return;
	if (reach->may(reach->opaque, pointer, &w->reach_base, &w->reach_bytes))
		return;
	w->reach_bytes = 0;
	warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
		  "%#llx in %s block (%u,%u,%u) is another device's memory that this one has no "
		  "access to (PTX line %u)", (unsigned long long)pointer,
		  block->launch->function->name, block->index[0], block->index[1], block->index[2],
		  i->line);
}

HANDLER(reach)
{
	const struct engine_reach *reach = w->block->launch->request->reach;
	const u64 *a = REGISTER(u64, i->a);
	u32 outside = 0;

	if (!reach)
		return i + 1;
	w->ip = i;
	for (u32 l = 0; l < WARP_LANES; l++)
		outside |= (u32)(a[l] + (u64)i->imm - reach->own_base >= reach->own_bytes) << l;
	FOR_ACTIVE(outside & w->mask, l) ask(w, i, a[l] + (u64)i->imm);
	return i + 1;
}

static const struct form forms[] = {
	{ "@reach", NULL, reach, NULL, 0, false },
};

const struct form_table forms_reach = { forms, sizeof(forms) / sizeof(forms[0]) };
