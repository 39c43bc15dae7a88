/* The devices, and what belongs to no queue. */
#define _GNU_SOURCE
#include "fake_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct device devices[MOST_DEVICES];
static unsigned device_count;
static pthread_once_t found = PTHREAD_ONCE_INIT;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;	/* all of the process */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	char *end;
	uint64_t value;

	if (!text || !*text)
		return otherwise;
	value = strtoull(text, &end, 0);
	if (*end) {
		fprintf(stderr, "fake verbs: %s=%s is no number\n", name, text);
		abort();
	}
	return value;
}

bool setting_fails(const char *name, unsigned *count)
{
	const char *text = getenv(name);
	unsigned now = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
	char *end;
	unsigned long first;

	if (!text || !*text)
		return false;
	first = strtoul(text, &end, 10);
	return *end == '+' ? now >= first : now == first;
}

void say(const char *format, ...)
{
	const char *path = getenv("FAKE_VERBS_LOG");
	char line[256];
	va_list arguments;
	int file, size;

	if (!path)
		return;
	va_start(arguments, format);
	size = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0 || write(file, line, size) != size)
		abort();
	close(file);
}

int unseen(int descriptor)
{
	int high = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, UNSEEN_LOWEST);

	if (high < 0)
		return descriptor;
	close(descriptor);
	return high;
}

void users_add(unsigned *users, int change)
{
	pthread_mutex_lock(&users_lock);
	*users += change;
	pthread_mutex_unlock(&users_lock);
}

bool users_none(const unsigned *users)
{
	bool none;

	pthread_mutex_lock(&users_lock);
	none = *users == 0;
	pthread_mutex_unlock(&users_lock);
	return none;
}

static void device_add_gids(struct device *device, char *text)
{
	char *interface = strchr(text, '%');
	struct ibv_gid_entry entry = {.port_num = 1};
	struct in_addr four;

	if (interface)
		*interface++ = 0;
	entry.ndev_ifindex = if_nametoindex(interface ? interface : "lo");
	if (inet_pton(AF_INET, text, &four) == 1) {
		entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
		memcpy(&entry.gid.raw[12], &four, 4);
	} else if (inet_pton(AF_INET6, text, entry.gid.raw) != 1) {
		fprintf(stderr, "fake verbs: FAKE_VERBS_GIDS: %s is no address\n", text);
		abort();
	}
	for (unsigned type = IBV_GID_TYPE_ROCE_V1; type <= IBV_GID_TYPE_ROCE_V2; type++) {
		if (device->gid_count == MOST_GIDS)
			abort();
		entry.gid_type = type;
		entry.gid_index = device->gid_count;
		device->gids[device->gid_count++] = entry;
	}
}

static void devices_find(void)
{
	const char *set = getenv("FAKE_VERBS_GIDS");
	char *text = strdup(set ? set : "127.0.0.1,::1"), *rest = text, *part;

	while ((part = strsep(&rest, ";")) && *text) {
		struct device *device = &devices[device_count];
		char *gid;

		if (device_count == MOST_DEVICES)
			abort();
		snprintf(device->device.name, sizeof(device->device.name), "fake%u", device_count);
		snprintf(device->device.dev_name, sizeof(device->device.dev_name), "uverbs%u", device_count);
		device->device.node_type = IBV_NODE_CA;
		device->device.transport_type = IBV_TRANSPORT_IB;
		while ((gid = strsep(&part, ",")))
			if (*gid)
				device_add_gids(device, gid);
		device_count++;
	}
	free(text);
}

FAKE_EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	const char *set = getenv("FAKE_VERBS_GIDS");
	struct ibv_device **list;
	unsigned there;

	if (count)
		*count = 0;
	if (set && !strcmp(set, "none")) {
		errno = ENOSYS;
		return NULL;
	}
	pthread_once(&found, devices_find);
	there = pairs_are_gone() ? 0 : device_count;
	list = calloc(there + 1, sizeof(*list));
	if (!list)
		return NULL;
	for (unsigned index = 0; index < there; index++)
		list[index] = &devices[index].device;
	if (count)
		*count = there;
	return list;
}

FAKE_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

FAKE_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

FAKE_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(0xfa4e000000000001 + (uint64_t)(FAKE_OUTER(device, struct device, device) - devices));
}

static int context_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct ibv_port_attr full = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_1024,
		.gid_tbl_len = MOST_GIDS,
		.max_msg_sz = setting("FAKE_VERBS_MAX_MESSAGE", 8 << 20),
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.active_width = 1,
		.active_speed = 1,
		.phys_state = 5,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	(void)context;
	if (port != 1)
		return EINVAL;
	memcpy(attr, &full, size < sizeof(full) ? size : sizeof(full));
	return 0;
}

/* For those who found it by its name: what programs of older headers pass has no port_cap_flags2. */
FAKE_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return context_query_port(context, port, (struct ibv_port_attr *)attr,
				  offsetof(struct ibv_port_attr, port_cap_flags2));
}

struct context *context_of(struct ibv_context *context)
{
	return FAKE_OUTER(context, struct context, verbs.context);
}

FAKE_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct context *context;

	if (pairs_are_gone()) {
		errno = ENODEV;
		return NULL;
	}
	context = calloc(1, sizeof(*context));
	if (!context)
		return NULL;
	context->verbs.sz = sizeof(context->verbs);
	context->verbs.query_port = context_query_port;
	context->verbs.context = (struct ibv_context){
		.device = device,
		.ops = {
			.poll_cq = queue_poll,
			.req_notify_cq = queue_arm,
			.post_send = pair_post_send,
			.post_recv = pair_post_recv,
		},
		.cmd_fd = -1,
		.async_fd = eventfd(0, EFD_CLOEXEC),
		.num_comp_vectors = 1,
		.mutex = PTHREAD_MUTEX_INITIALIZER,
		.abi_compat = __VERBS_ABI_IS_EXTENDED,
	};
	if (context->verbs.context.async_fd < 0) {
		free(context);
		return NULL;
	}
	pthread_mutex_lock(&contexts_lock);
	context->next = contexts;
	contexts = context;
	pthread_mutex_unlock(&contexts_lock);
	pairs_control();
	return &context->verbs.context;
}

void contexts_tell(void)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&contexts_lock);
	for (struct context *context = contexts; context; context = context->next)
		if (write(context->verbs.context.async_fd, &one, sizeof(one)) != sizeof(one))
			abort();
	pthread_mutex_unlock(&contexts_lock);
}

FAKE_EXPORT int ibv_close_device(struct ibv_context *outer)
{
	struct context *context = context_of(outer);

	/* The kernel would free what is left; a program that leaves something has lost it. */
	if (!users_none(&context->users))
		return EBUSY;
	pthread_mutex_lock(&contexts_lock);
	for (struct context **place = &contexts; *place; place = &(*place)->next)
		if (*place == context) {
			*place = context->next;
			break;
		}
	pthread_mutex_unlock(&contexts_lock);
	close(outer->async_fd);
	free(context);
	return 0;
}

FAKE_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.fw_ver = "0",
		.max_mr_size = setting("FAKE_VERBS_MAX_MR_SIZE", UINT64_MAX),
		.page_size_cap = 4096,
		.max_qp = 1 << 16,
		.max_qp_wr = MOST_REQUESTS,
		.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN,
		.max_sge = MOST_SGE,
		.max_cq = 1 << 16,
		.max_cqe = MOST_COMPLETIONS,
		.max_mr = MOST_REGIONS,
		.max_pd = 1 << 16,
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};
	return 0;
}

FAKE_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context;
	if (port != 1 || index)
		return -1;
	*pkey = htobe16(0xffff);
	return 0;
}

static const struct device *device_of(const struct ibv_context *context)
{
	return FAKE_OUTER(context->device, struct device, device);
}

FAKE_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	const struct device *device = device_of(context);

	if (port != 1 || index < 0 || index >= MOST_GIDS) {
		errno = EINVAL;
		return -1;
	}
	if ((unsigned)index < device->gid_count)
		*gid = device->gids[index].gid;
	else
		memset(gid, 0, sizeof(*gid));
	return 0;
}

FAKE_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
				  struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	const struct device *device = device_of(context);

	if (flags || port != 1 || size < sizeof(*entry))
		return EINVAL;
	if (index >= device->gid_count)
		return ENODATA;
	*entry = device->gids[index];
	return 0;
}

FAKE_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t most,
					 uint32_t flags, size_t size)
{
	const struct device *device = device_of(context);

	if (flags || size < sizeof(*entries))
		return -EINVAL;
	if (most < device->gid_count)
		return -EINVAL;
	memcpy(entries, device->gids, device->gid_count * sizeof(*entries));
	return device->gid_count;
}

FAKE_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct domain *domain = calloc(1, sizeof(*domain));

	if (!domain)
		return NULL;
	domain->pd.context = context;
	users_add(&context_of(context)->users, 1);
	return &domain->pd;
}

FAKE_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct domain *domain = FAKE_OUTER(pd, struct domain, pd);

	if (!users_none(&domain->users))
		return EBUSY;
	users_add(&context_of(pd->context)->users, -1);
	free(domain);
	return 0;
}

/* One event comes at most; until then it waits, or says that there is none, as the program has set its descriptor. */
FAKE_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	uint64_t count;

	if (read(context->async_fd, &count, sizeof(count)) != sizeof(count))
		return -1;
	*event = (struct ibv_async_event){.event_type = IBV_EVENT_DEVICE_FATAL};
	return 0;
}

FAKE_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

FAKE_EXPORT int ibv_fork_init(void)
{
	say("%d may fork\n", getpid());
	return 0;
}

FAKE_EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const words[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "work request flushed",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_REM_OP_ERR] = "remote operation error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retries exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "receiver-not-ready retries exceeded",
	};

	return status < sizeof(words) / sizeof(*words) && words[status] ? words[status] : "another error";
}
