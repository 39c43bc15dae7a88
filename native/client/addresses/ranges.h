/* ranges.h - whose an address is and what lies there (ranges.c). */
#ifndef FARBUS_CLIENT_RANGES_H
#define FARBUS_CLIENT_RANGES_H

#include "../client.h"

enum client_memory_kind { MEMORY_PAGEABLE, MEMORY_DEVICE, MEMORY_PINNED };

struct client_range {
	uint64_t base;
	uint64_t bytes;
	enum client_memory_kind kind;
	struct client_context *context;
	struct client_session *session;	/* whose addresses they are; NULL: pinned memory */
	unsigned flags;
	bool registered;		/* pinned by cuMemHostRegister */
	uint64_t shared;		/* pinned memory that the server has too (pinned.c); or 0 */
	bool global;			/* a module's variable */
	CUmemoryPool pool;		/* it comes from; NULL: no pool, or the device's own */
	bool accessible;		/* of what is mapped at reserved addresses */
	bool reserved;			/* addresses alone: cuMemAddressReserve */
	bool sync;			/* its copies wait: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
	int opened;			/* another process's memory: how often it was opened */
	bool graph;			/* a graph's: freed and allocated again by its runs */
	bool going;			/* the server is asked to free it */
	bool managed;			/* managed memory (managed.c) */
	bool mapped;			/* pinned memory that kernels use by its address */
	bool apart;			/* of a pool that is named, or at reserved addresses: not its context's device's */
	struct client_library *library;
	unsigned long long id;
};

/* Addresses are reserved in blocks of so many. */
#define CLIENT_BLOCK_BYTES (2ull << 20)

/* The range that holds the address; false: the driver does not know it. */
bool client_memory_find(uint64_t address, struct client_range *range);
/* Is a side of a copy memory of this process?  A unified address (cudaMemcpyDefault) says itself whose it is. */
bool client_memory_is_host(CUmemorytype type, uint64_t unified);
/* The addresses that were reserved and hold it, mapped or not. */
bool client_memory_find_reserved(uint64_t address, struct client_range *range);
/* CUDA_SUCCESS if [address, address + bytes) is in one allocation on the device. */
CUresult client_memory_check(uint64_t address, uint64_t bytes);
/* Take a device range into the table, reserving its addresses here.
 * A range there that the server is asked to free has been freed, and makes way.
 * -EEXIST: this process uses them; -ENOMEM. */
int client_memory_add(const struct client_range *range);
/* Change how often another process's memory is open; 0: it is not open any more, or never was. */
int client_memory_opened(uint64_t base, int change);
/* What lies at reserved addresses, and whether kernels and copies may touch it. */
int client_memory_map(const struct client_range *range);
void client_memory_unmap(uint64_t base, uint64_t bytes);
void client_memory_access(uint64_t base, uint64_t bytes, bool accessible);
bool client_memory_set_sync(uint64_t address, bool sync);
bool client_memory_remove(uint64_t base, enum client_memory_kind kind, struct client_range *range);
/* Mark a range that the server is asked to free, and say which it was.  From then on
 * an allocation that gets its addresses takes its place. */
bool client_memory_leave(uint64_t base, struct client_range *range);
/* The server has answered: the range goes, or stays after all; unless another is there. */
void client_memory_left(const struct client_range *range, bool freed);
/* A graph has it: whether it is allocated the server knows. */
void client_memory_set_graph(uint64_t address);
void client_memory_forget_library(struct client_library *library);
void client_memory_forget_context(struct client_context *context);
/* The context in which to reach a device's memory; NULL: its server has none. */
struct client_context *client_memory_context(const struct client_range *range);

#endif
