#include "verbs.h"

#ifdef FARBUS_VERBS
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static struct verbs verbs;
static const char *verbs_missing;	/* why there is no table */

static bool verbs_load(struct verbs *table, void *library)
{
#define VERBS_NEED(result, name, parameters) \
	*(void **)&table->name = dlsym(library, #name); \
	if (!table->name) \
		return false;
	VERBS_FUNCTIONS(VERBS_NEED)
#undef VERBS_NEED
	return true;
}

static void verbs_find(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		verbs_missing = "no libibverbs.so.1 on this machine; install rdma-core's (package libibverbs1 and "
				"ibverbs-providers, or libibverbs)";
	else if (!verbs_load(&verbs, library))
		verbs_missing = "this libibverbs.so.1 is older than rdma-core 32; install a newer one";
	/* Before Linux 5.12 the pages of its queues would become the child's where a program forks, and copies the
	 * parent's, of which the adapter does not know.  It fails where the program has used the library before: it has
	 * chosen then. */
	else
		(void)verbs.ibv_fork_init();
}

const struct verbs *verbs_open(const char **why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, verbs_find);
	*why = verbs_missing;
	return verbs_missing ? 0 : &verbs;
}
#endif
