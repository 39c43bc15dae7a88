/* multimem.c - where the operations on multicast addresses go. */
#include "../running.h"
#include "state.h"

uint64_t multimem_offset(struct warp *w, const struct instruction *i, uint64_t address, uint32_t bytes,
			 struct engine_replicas *found)
{
	const struct engine_multicast *multicast = w->block->launch->request->multicast;
	const char *why;

	if (address & (bytes - 1) & w->alignment_checked)
		warp_fail(w, ENGINE_MISALIGNED, "misaligned address %#llx (PTX line %u)",
			  (unsigned long long)address, i->line);
	if (address - found->base < found->bytes && found->bytes - (address - found->base) >= bytes)
		return address - found->base;
	why = multicast ? multicast->find(multicast->opaque, address, found) : "no multicast object is mapped there";
	if (!why && found->bytes - (address - found->base) < bytes)
		why = "it lies at an edge of what is bound";
	if (why)
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS, "multimem at %#llx: %s (PTX line %u)",
			  (unsigned long long)address, why, i->line);
	return address - found->base;
}

bool multimem_is_at(const struct launch *launch, uint64_t address)
{
	const struct engine_multicast *multicast = launch->request->multicast;
	struct engine_replicas found;

	return multicast && !multicast->find(multicast->opaque, address, &found);
}
