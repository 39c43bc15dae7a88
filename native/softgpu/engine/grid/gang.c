/* gang.c - blocks that run together: clusters, and cooperative launches as a whole.
 *
 * The blocks of a cluster take turns on one thread, so nothing of a cluster needs a
 * lock.  The clusters (or blocks) of a cooperative launch are units that a crew of
 * threads shares out.  Whoever runs out of units is hungry and gets half of another
 * thread's; every unit is some thread's all the time, or offered to one that is
 * awake, so a grid barrier always ends.
 */
#include <sched.h>
#include <stdlib.h>

#include "../running.h"

/* ---- memory ---- */

void gang_release(struct slot *slot)
{
	for (uint64_t k = 0; k < slot->member_count; k++)
		slot_release(&slot->members[k]);
	free(slot->members);
	free(slot->clusters);
	free(slot->units);
	slot->members = NULL;
	slot->clusters = NULL;
	slot->units = NULL;
	slot->member_count = 0;
}

static bool reserve_members(struct slot *slot, const struct launch *launch)
{
	if (slot->member_count >= launch->gang_blocks)
		return true;
	gang_release(slot);
	slot->members = calloc(launch->gang_blocks, sizeof(*slot->members));
	slot->clusters = calloc(launch->gang_blocks, sizeof(*slot->clusters));
	slot->units = calloc(launch->gang_blocks, sizeof(*slot->units));
	if (!slot->members || !slot->clusters || !slot->units) {
		gang_release(slot);
		return false;
	}
	slot->member_count = launch->gang_blocks;
	return true;
}

bool gang_prepare(struct slot *slot, const struct launch *launch)
{
	if (!reserve_members(slot, launch))
		return false;
	for (uint64_t k = 0; k < launch->gang_blocks; k++) {
		struct block *block = &slot->members[k].block;
		struct cluster *cluster = &slot->clusters[k / launch->cluster_blocks];

		if (!slot_prepare_block(&slot->members[k], launch))
			return false;
		block->slot = slot;	/* errors unwind to the driving slot */
		if (launch->cluster_blocks == 1)
			continue;
		block->rank = (uint32_t)(k % launch->cluster_blocks);
		block->cluster = cluster;
		cluster->count = launch->cluster_blocks;
		cluster->blocks[block->rank] = block;
	}
	return true;
}

/* ---- the crew ---- */

static bool is_over(const struct launch *launch)
{
	return !atomic_load(&launch->crew.live) || atomic_load(&launch->status) != ENGINE_OK;
}

bool gang_wants_help(const struct launch *launch)
{
	return atomic_load(&launch->crew.live) > launch->helpers + 1 && !is_over(launch);
}

/* Give every other unit to whoever is hungry. */
static void offer_half(struct crew *crew, struct unit **units)
{
	struct slot *armed = fault_disarm();

	pthread_mutex_lock(&crew->mutex);
	if (!crew->offered && atomic_load(&crew->hungry)) {
		for (struct unit **link = &(*units)->next; *link; ) {
			struct unit *given = *link;

			*link = given->next;
			given->next = crew->offered;
			crew->offered = given;
			if (*link)
				link = &(*link)->next;
		}
		pthread_cond_broadcast(&crew->changed);
	}
	pthread_mutex_unlock(&crew->mutex);
	fault_arm(armed);
}

/* Units that another thread gives away; NULL when there is no more to do.  A helper
 * also goes when there are threads enough. */
static struct unit *await_units(struct slot *slot, struct launch *launch, bool is_helper)
{
	struct crew *crew = &launch->crew;
	struct unit *units;

	pthread_mutex_lock(&crew->mutex);
	atomic_fetch_add(&crew->hungry, 1);
	while (!crew->offered && !is_over(launch) &&
	       !(is_helper && atomic_load(&crew->live) < crew->threads))
		pthread_cond_wait(&crew->changed, &crew->mutex);
	atomic_fetch_sub(&crew->hungry, 1);
	units = crew->offered;
	crew->offered = NULL;
	if (!units && is_helper)
		crew->threads--;
	pthread_mutex_unlock(&crew->mutex);
	for (struct unit *unit = units; unit; unit = unit->next)
		for (uint32_t k = 0; k < launch->cluster_blocks; k++)
			unit->members[k].block.slot = slot;
	return units;
}

static void wake_crew(struct crew *crew)
{
	pthread_mutex_lock(&crew->mutex);
	pthread_cond_broadcast(&crew->changed);
	pthread_mutex_unlock(&crew->mutex);
}

/* Also hungry threads look whether they are still wanted. */
static void unit_ended(struct launch *launch)
{
	struct crew *crew = &launch->crew;
	struct slot *armed;

	if (!launch->request->cooperative)
		return;
	atomic_fetch_sub(&crew->live, 1);
	if (!atomic_load(&crew->hungry))
		return;
	armed = fault_disarm();
	wake_crew(crew);
	fault_arm(armed);
}

void gang_leave(struct launch *launch)
{
	if (launch->request->cooperative)
		wake_crew(&launch->crew);
}

/* ---- running ---- */

/* A turn for each block of a unit. */
static enum step_result unit_step(struct slot *slot, struct launch *launch, struct unit *unit,
				  void (*run)(struct warp *warp))
{
	struct block *waiting = NULL;
	bool progress = false, live = false;

	for (uint32_t k = 0; k < launch->cluster_blocks; k++) {
		struct block *block = &unit->members[k].block;
		enum step_result result;

		if (!block->live)
			continue;
		result = block_step(slot, block, run);
		if (result == STEP_STOP || launch_must_stop(launch, block))
			return STEP_STOP;
		if (result == STEP_WAITS)
			waiting = block;
		else
			progress = true;
		live |= result != STEP_DONE;
	}
	if (!live)
		return STEP_DONE;
	if (!progress)
		block_fail_deadlocked(waiting);
	return STEP_AGAIN;
}

/* Turns for all units until they are done, or others have them. */
static enum step_result run_units(struct slot *slot, struct launch *launch, struct unit *units)
{
	void (*run)(struct warp *warp) = isa_selected()->run;
	struct crew *crew = &launch->crew;

	while (units) {
		struct unit **link = &units, *unit;

		while ((unit = *link)) {
			switch (unit_step(slot, launch, unit, run)) {
			case STEP_STOP:
				return STEP_STOP;
			case STEP_DONE:
				*link = unit->next;
				unit_ended(launch);
				break;
			default:
				link = &unit->next;
			}
		}
		/* What these blocks wait for in a loop may be a block of a thread that is
		 * not running: the other cores can be anybody's. */
		if (units && atomic_load_explicit(&crew->threads, memory_order_relaxed) > 1)
			sched_yield();
		if (units && units->next && atomic_load_explicit(&crew->hungry, memory_order_relaxed))
			offer_half(crew, &units);
	}
	return STEP_DONE;
}

static void run_crew(struct slot *slot, struct launch *launch)
{
	uint64_t count = launch->gang_blocks / launch->cluster_blocks;
	struct unit *units = slot->units;

	for (uint64_t k = 0; k < count; k++)
		units[k] = (struct unit){ k + 1 < count ? &units[k + 1] : NULL,
					  &slot->members[k * launch->cluster_blocks] };
	for (uint64_t k = 0; k < launch->gang_blocks; k++)
		block_start(&slot->members[k].block, launch, k);
	launch->crew.threads = 1;
	atomic_store(&launch->crew.live, count);
	while (units && run_units(slot, launch, units) == STEP_DONE)
		units = await_units(slot, launch, false);
}

static void run_clusters(struct slot *slot, struct launch *launch)
{
	for (;;) {
		uint64_t gang = atomic_fetch_add_explicit(&launch->next_gang, 1,
							  memory_order_relaxed);
		struct unit unit = { .members = slot->members };

		if (gang >= launch->gang_total || launch_must_stop(launch, &slot->members[0].block))
			return;
		for (uint64_t k = 0; k < launch->gang_blocks; k++)
			block_start(&slot->members[k].block, launch, gang * launch->gang_blocks + k);
		if (run_units(slot, launch, &unit) == STEP_STOP)
			return;
	}
}

static void help_crew(struct slot *slot, struct launch *launch)
{
	struct unit *units;

	pthread_mutex_lock(&launch->crew.mutex);
	launch->crew.threads++;
	pthread_mutex_unlock(&launch->crew.mutex);
	while ((units = await_units(slot, launch, true)))
		if (run_units(slot, launch, units) == STEP_STOP)
			return;
}

void gang_run(struct slot *slot, struct launch *launch, bool is_helper)
{
	if (!launch->request->cooperative)
		run_clusters(slot, launch);
	else if (is_helper)
		help_crew(slot, launch);
	else
		run_crew(slot, launch);
}
