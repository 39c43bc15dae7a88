/* quota.h - the memory of a lease: one account for all that its servers allocate.
 *
 * Each server counts in its slot of the status memory; the account is the sum of all slots,
 * so that what a server held is given back when it ends, however it ends.  The functions of
 * the driver that take and give memory have others in their place in the server's table:
 * whoever calls the driver, on whichever path, is counted.
 *
 * Counted is what is asked for.  Not counted are code, variables of modules, and what the
 * driver needs for itself.
 */
#ifndef FARBUS_SERVER_QUOTA_H
#define FARBUS_SERVER_QUOTA_H

#include "../server_ops.h"

#define QUOTA_BUCKETS 4096u

enum charge_kind { MEMORY, POOLED, OBJECT, MAPPING, ARRAY, MIPMAP, NODE, EXECUTABLE };

struct charge {
	struct charge *next;
	enum charge_kind kind;
	uint64_t key;			/* address or handle */
	uint64_t bytes;
	uint64_t owner;			/* a context; of a node its graph */
	unsigned references;		/* of an object: handles, mappings and exports */
	struct charge *object;		/* of a mapping, of what is bound; of an object that was imported here, too: the first */
	struct charge *bound;		/* of a multicast object: memory that it keeps */
	uint64_t offset;		/* of what is bound: there */
	CUdevice device;		/* and whose it is */
	bool freed;			/* a node's memory, within its graph */
	struct charge *outlive;		/* of an executable: nodes whose memory stays behind a launch */
};

/* One per process, as the driver is. */
extern struct quota {
	struct server_driver real;
	struct server *server;
	uint64_t limit;
	pthread_mutex_t lock;
	struct charge *buckets[QUOTA_BUCKETS];
	CUcontext primaries[64];	/* by ordinal, as retained */
} quota;

/* The account: what all servers of the lease have.  Take bytes of it, if they are there, and give them back. */
uint64_t quota_used(void);
bool quota_take(uint64_t bytes);
void quota_give(uint64_t bytes);

/* The table, with the lock: where what has that key begins; what was put last comes first. */
struct charge **quota_bucket(enum charge_kind kind, uint64_t key);
struct charge **quota_find(enum charge_kind kind, uint64_t key);
struct charge **quota_find_behind(struct charge **link, enum charge_kind kind, uint64_t key);

/* Without it. */
void quota_put(struct charge *charge);
struct charge *quota_out(enum charge_kind kind, uint64_t key);

/* Before the driver is asked for bytes, NULL where they are not there; and behind it, by its `result`, which is returned. */
struct charge *quota_charge_begin(enum charge_kind kind, uint64_t bytes);
CUresult quota_charge_end(struct charge *charge, CUresult result, uint64_t key);
void quota_charge_free(struct charge *charge);
void quota_list_free(struct charge *list);

/* Does it end with the context that it was taken in? */
bool quota_is_of_context(enum charge_kind kind);
/* Everything of one owner; of what a pool has given, as much as has gone with it. */
void quota_drop_owner(bool (*is_of)(enum charge_kind kind), uint64_t owner);

/* Out of the table before the driver gives the address to somebody else. */
#define QUOTA_GIVE_BACK(kind, key, call)				\
	do {								\
		struct charge *charge_ = quota_out(kind, (uint64_t)(key));	\
		CUresult result_ = call;				\
									\
		if (charge_ && result_ == CUDA_SUCCESS) {		\
			quota_give(charge_->bytes);			\
			quota_charge_free(charge_);			\
		} else if (charge_) {					\
			quota_put(charge_);				\
		}							\
		return result_;						\
	} while (0)

/* Put functions of ours in the place of the driver's, of those that it has. */
#define QUOTA_INSTEAD(symbol, function) (driver->symbol = driver->symbol ? function : NULL)

#endif
