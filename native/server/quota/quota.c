/* quota.c - the account of a lease's memory, and what is charged to it (quota.h). */
#include "quota.h"

#include <stdlib.h>

struct quota quota = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the account ---- */

uint64_t quota_used(void)
{
	const uint8_t *slots = quota.server->sessions;
	uint64_t sum = 0;

	if (!slots)
		return atomic_load(&quota.server->status->memory_bytes);
	for (uint32_t i = 0; i < quota.server->session_count; i++) {
		const struct server_status *status = (const void *)(slots + i * SERVER_STATUS_STRIDE);

		sum += atomic_load(&status->memory_bytes);
	}
	return sum;
}

/* Taken first and looked at then: of two servers that ask for the last of it at one time
 * both may be refused, but never both served. */
bool quota_take(uint64_t bytes)
{
	_Atomic uint64_t *own = &quota.server->status->memory_bytes;

	if (bytes > quota.limit)
		return false;
	atomic_fetch_add(own, bytes);
	if (quota_used() <= quota.limit)
		return true;
	atomic_fetch_sub(own, bytes);
	return false;
}

void quota_give(uint64_t bytes)
{
	atomic_fetch_sub(&quota.server->status->memory_bytes, bytes);
}

/* ---- what is charged ---- */

struct charge **quota_bucket(enum charge_kind kind, uint64_t key)
{
	uint64_t mixed = (key >> 4 ^ key << 7) * 0x9e3779b97f4a7c15ull + (uint64_t)kind;

	return &quota.buckets[mixed >> 40 & (QUOTA_BUCKETS - 1)];
}

struct charge **quota_find_behind(struct charge **link, enum charge_kind kind, uint64_t key)
{
	while (*link && ((*link)->key != key || (*link)->kind != kind))
		link = &(*link)->next;
	return link;
}

struct charge **quota_find(enum charge_kind kind, uint64_t key)
{
	return quota_find_behind(quota_bucket(kind, key), kind, key);
}

void quota_put(struct charge *charge)
{
	struct charge **link = quota_bucket(charge->kind, charge->key);

	pthread_mutex_lock(&quota.lock);
	charge->next = *link;
	*link = charge;
	pthread_mutex_unlock(&quota.lock);
}

struct charge *quota_out(enum charge_kind kind, uint64_t key)
{
	struct charge **link, *charge;

	pthread_mutex_lock(&quota.lock);
	link = quota_find(kind, key);
	charge = *link;
	if (charge)
		*link = charge->next;
	pthread_mutex_unlock(&quota.lock);
	return charge;
}

bool quota_is_of_context(enum charge_kind kind)
{
	return kind == MEMORY || kind == POOLED || kind == ARRAY || kind == MIPMAP || kind == EXECUTABLE;
}

struct charge *quota_charge_begin(enum charge_kind kind, uint64_t bytes)
{
	struct charge *charge;
	CUcontext context = NULL;

	if (!quota_take(bytes))
		return NULL;
	charge = calloc(1, sizeof(*charge));
	if (!charge) {
		quota_give(bytes);
		return NULL;
	}
	charge->kind = kind;
	charge->bytes = bytes;
	charge->references = 1;
	if (quota_is_of_context(kind)) {
		quota.real.cuCtxGetCurrent(&context);
		charge->owner = (uint64_t)(uintptr_t)context;
	}
	return charge;
}

void quota_list_free(struct charge *list)
{
	while (list) {
		struct charge *next = list->next;

		free(list);
		list = next;
	}
}

void quota_charge_free(struct charge *charge)
{
	quota_list_free(charge->outlive);
	free(charge);
}

CUresult quota_charge_end(struct charge *charge, CUresult result, uint64_t key)
{
	if (result == CUDA_SUCCESS) {
		charge->key = key;
		quota_put(charge);
	} else {
		quota_give(charge->bytes);
		quota_charge_free(charge);
	}
	return result;
}

/* Has the driver no such address any more? */
static bool is_gone(CUdeviceptr address)
{
	unsigned int type;

	return quota.real.cuPointerGetAttribute &&
	       quota.real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
		       CUDA_ERROR_INVALID_VALUE;
}

void quota_drop_owner(bool (*is_of)(enum charge_kind kind), uint64_t owner)
{
	pthread_mutex_lock(&quota.lock);
	for (unsigned i = 0; i < QUOTA_BUCKETS && owner; i++) {
		struct charge **link = &quota.buckets[i];

		while (*link) {
			struct charge *charge = *link;

			if (charge->owner != owner || !is_of(charge->kind) ||
			    (charge->kind == POOLED && !is_gone(charge->key))) {
				link = &charge->next;
				continue;
			}
			*link = charge->next;
			if (charge->kind != NODE)
				quota_give(charge->bytes);
			quota_charge_free(charge);
		}
	}
	pthread_mutex_unlock(&quota.lock);
}
