/* reach.c - memory of other devices: may this one use it?
 *
 * Where a program has several devices, the decoder puts a step "@reach" in front of
 * accesses by pointer; elsewhere nothing here costs anything.  Matrix transfers, bulk
 * copies, textures and surfaces learn what they touch when they are executed and call
 * reach_memory themselves.  Memory of the launch's own device needs no question, and the
 * last answer is good for all that it covers.
 */
#include "handler.h"

#include "../running.h"

static void ask(struct warp *w, const struct instruction *i, u64 pointer)
{
	const struct engine_reach *reach = w->block->launch->request->reach;

	if (pointer - w->reach_base < w->reach_bytes)
		return;
	if (reach->may(reach->opaque, pointer, &w->reach_base, &w->reach_bytes))
		return;
	w->reach_bytes = 0;
	warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
		  "%#llx is another device's memory, and peer access is not enabled (PTX line %u)",
		  (unsigned long long)pointer, i->line);
}

void reach_memory(struct warp *w, const struct instruction *i, uint64_t pointer, uint64_t bytes)
{
	const struct engine_reach *reach = w->block->launch->request->reach;

	while (reach && bytes) {
		u64 base = reach->own_base, size = reach->own_bytes, covered;

		if (pointer - base >= size) {
			ask(w, i, pointer);
			base = w->reach_base;
			size = w->reach_bytes;
		}
		covered = base + size - pointer;
		if (covered >= bytes)
			return;
		pointer += covered;
		bytes -= covered;
	}
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
