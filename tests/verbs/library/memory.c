/* Registered memory, and how bytes get into it and out of it. */
#define _GNU_SOURCE
#include "fake_verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

struct region {
	struct ibv_mr mr;
	uint64_t iova;
	unsigned access;
};

/* A key tells its slot and how often that was taken before, and for whom it is. */
#define KEY_SLOT 0xfffu
#define KEY_REMOTE 0x80000000u

static struct region *regions[MOST_REGIONS];
static uint32_t generations[MOST_REGIONS];
static uint64_t locked;
static unsigned registrations;
/* Held while bytes are copied, so that nobody touches the memory once it is deregistered. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

_Static_assert(MOST_REGIONS == KEY_SLOT + 1, "a key has room for each slot");

/* Has every page there, as a device needs it; kernels before 5.14 can't. */
static int memory_populate(void *addr, size_t length, unsigned access)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), begin = (uintptr_t)addr & -page;

	if (!length || !madvise((void *)begin, (uintptr_t)addr + length - begin,
				access & IBV_ACCESS_LOCAL_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return 0;
	return errno == EINVAL ? 0 : EFAULT;
}

static struct ibv_mr *memory_register(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	struct region *region = NULL;
	uint32_t slot;
	int error = EINVAL;

	if (pairs_are_gone()) {
		errno = EIO;
		return NULL;
	}
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
		goto refuse;
	if (length > setting("FAKE_VERBS_MAX_MR_SIZE", UINT64_MAX))
		goto refuse;
	error = ENOMEM;
	if (setting_fails("FAKE_VERBS_REG_MR_FAILS", &registrations))
		goto refuse;
	error = memory_populate(addr, length, access);
	if (error)
		goto refuse;
	error = ENOMEM;
	region = calloc(1, sizeof(*region));
	if (!region)
		goto refuse;
	pthread_mutex_lock(&lock);
	for (slot = 0; slot < MOST_REGIONS && regions[slot]; slot++)
		;
	if (slot == MOST_REGIONS || locked + length > setting("FAKE_VERBS_MAX_LOCKED", UINT64_MAX)) {
		pthread_mutex_unlock(&lock);
		goto refuse;
	}
	locked += length;
	generations[slot]++;
	region->iova = iova;
	region->access = access;
	region->mr = (struct ibv_mr){
		.context = pd->context,
		.pd = pd,
		.addr = addr,
		.length = length,
		.handle = slot,
		.lkey = (generations[slot] << 12 & ~KEY_REMOTE) | slot,
	};
	region->mr.rkey = region->mr.lkey | KEY_REMOTE;
	regions[slot] = region;
	pthread_mutex_unlock(&lock);
	users_add(&FAKE_OUTER(pd, struct domain, pd)->users, 1);
	return &region->mr;
refuse:
	free(region);
	errno = error;
	return NULL;
}

FAKE_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return memory_register(pd, addr, length, (uintptr_t)addr, access);
}

FAKE_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return memory_register(pd, addr, length, iova, access);
}

FAKE_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					    unsigned access)
{
	return memory_register(pd, addr, length, iova, access);
}

FAKE_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct region *region = FAKE_OUTER(mr, struct region, mr);

	pthread_mutex_lock(&lock);
	regions[mr->handle] = NULL;
	locked -= mr->length;
	pthread_mutex_unlock(&lock);
	users_add(&FAKE_OUTER(mr->pd, struct domain, pd)->users, -1);
	free(region);
	return 0;
}

/* The memory that a key is for, or NULL; the lock is held. */
static unsigned char *memory_find(const struct ibv_pd *pd, uint64_t begin, uint64_t size, uint32_t key, unsigned access)
{
	const struct region *region = regions[key & KEY_SLOT];

	if (!region || region->mr.pd != pd || (region->access & access) != access)
		return NULL;
	if (key != (access & IBV_ACCESS_REMOTE_WRITE ? region->mr.rkey : region->mr.lkey))
		return NULL;
	if (begin < region->iova || size > region->mr.length || begin - region->iova > region->mr.length - size)
		return NULL;
	return (unsigned char *)region->mr.addr + (begin - region->iova);
}

/* By atomic parts, which a sanitizer does not see: a device's doing is no race of the program's.  None overtakes one
 * before it.  What is small comes byte by byte, as soft-RoCE's memcpy has it: a word is not seen whole. */
#define BYTEWISE_BYTES 64

__attribute__((noinline, no_sanitize("thread")))
static void memory_copy(unsigned char *to, const unsigned char *from, size_t size, bool lands)
{
	const unsigned char *shared = lands ? to : from;
	bool bytewise = size <= BYTEWISE_BYTES;

	while (size) {
		if (size >= 8 && (uintptr_t)shared % 8 == 0 && !bytewise) {
			uint64_t word;

			if (lands) {
				memcpy(&word, from, 8);
				__atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
			} else {
				word = __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
				memcpy(to, &word, 8);
			}
			to += 8, from += 8, shared += 8, size -= 8;
		} else {
			if (lands)
				__atomic_store_n(to, *from, __ATOMIC_RELEASE);
			else
				*to = __atomic_load_n(from, __ATOMIC_RELAXED);
			to++, from++, shared++, size--;
		}
	}
}

bool memory_fetch(const struct ibv_pd *pd, const struct ibv_sge *from, uint64_t offset, void *to, size_t size)
{
	unsigned char *memory;

	pthread_mutex_lock(&lock);
	memory = memory_find(pd, from->addr, from->length, from->lkey, 0);
	if (memory)
		memory_copy(to, memory + offset, size, false);
	pthread_mutex_unlock(&lock);
	return memory != NULL;
}

bool memory_land(const struct ibv_pd *pd, uint64_t to, uint32_t rkey, const void *from, size_t size)
{
	unsigned char *memory;

	pthread_mutex_lock(&lock);
	memory = memory_find(pd, to, size, rkey, IBV_ACCESS_REMOTE_WRITE);
	if (memory)
		memory_copy(memory, from, size, true);
	pthread_mutex_unlock(&lock);
	return memory != NULL;
}

bool memory_permits(const struct ibv_pd *pd, uint64_t to, uint32_t rkey, uint64_t size)
{
	bool permits;

	pthread_mutex_lock(&lock);
	permits = !size || memory_find(pd, to, size, rkey, IBV_ACCESS_REMOTE_WRITE);
	pthread_mutex_unlock(&lock);
	return permits;
}
