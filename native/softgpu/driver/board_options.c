#define _GNU_SOURCE
#include "board_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- options ---- */

/* Long enough for kernels that a program only forgot to wait for. */
#define GRACE_DEFAULT_NS 30000000000ull

static int parse_unsigned(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
	char *end;
	unsigned long long number;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end || number < low || number > high)
		return -EINVAL;
	*value = number;
	return 0;
}

/* 512MiB, 8GiB, or plain bytes. */
static int parse_bytes(const char *text, uint64_t *bytes)
{
	static const struct {
		const char *suffix;
		unsigned shift;
	} units[] = { { "", 0 }, { "KiB", 10 }, { "MiB", 20 }, { "GiB", 30 }, { "TiB", 40 } };
	char *end;
	unsigned long long number;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcmp(end, units[i].suffix))
			continue;
		if (number > (UINT64_MAX >> units[i].shift))
			return -EINVAL;
		*bytes = (uint64_t)number << units[i].shift;
		/* Between one allocation granule and what fits an address arena. */
		return *bytes >= 16ull << 20 && *bytes <= 1ull << 40 ? 0 : -EINVAL;
	}
	return -EINVAL;
}

static int parse_capability(const char *text, uint32_t *sm)
{
	static const uint32_t known[] = { 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130 };
	unsigned major, minor;
	int used = 0;

	if (sscanf(text, "%2u.%1u%n", &major, &minor, &used) != 2 || text[used])
		return -EINVAL;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (known[i] == major * 10 + minor) {
			*sm = known[i];
			return 0;
		}
	}
	return -EINVAL;
}

static int options_set(struct board_options *options, const char *key, const char *value)
{
	uint64_t number;

	if (!strcmp(key, "cc"))
		return parse_capability(value, &options->model.sm);
	if (!strcmp(key, "mem"))
		return parse_bytes(value, &options->model.memory_bytes);
	if (!strcmp(key, "count")) {
		if (parse_unsigned(value, 0, BOARD_COUNT_MAX, &number))
			return -EINVAL;
		options->count = (unsigned)number;
		return 0;
	}
	if (!strcmp(key, "sms")) {
		if (parse_unsigned(value, 1, 256, &number))
			return -EINVAL;
		options->model.multiprocessors = (uint32_t)number;
		return 0;
	}
	if (!strcmp(key, "workers")) {
		if (parse_unsigned(value, 0, 1024, &number))
			return -EINVAL;
		options->workers = (unsigned)number;
		return 0;
	}
	if (!strcmp(key, "watchdog_s")) {
		if (parse_unsigned(value, 0, 86400, &number))
			return -EINVAL;
		options->watchdog_ns = number * 1000000000ull;
		return 0;
	}
	if (!strcmp(key, "grace_s")) {
		if (parse_unsigned(value, 0, 86400, &number))
			return -EINVAL;
		options->grace_ns = number * 1000000000ull;
		return 0;
	}
	if (!strcmp(key, "strict") || !strcmp(key, "deterministic")) {
		if (parse_unsigned(value, 0, 1, &number))
			return -EINVAL;
		*(*key == 's' ? &options->strict : &options->deterministic) = number;
		return 0;
	}
	return -ENOENT;
}

int board_options_read(struct board_options *options, struct board_diagnostic *why)
{
	struct board_options read = {
		.count = 1,
		.grace_ns = GRACE_DEFAULT_NS,
		.model = { .sm = 90, .multiprocessors = 16, .memory_bytes = 4ull << 30 },
	};
	const char *text = getenv("FARBUS_SOFTGPU");
	char copy[256], *rest = copy, *item;

	if (text && strlen(text) >= sizeof copy) {
		snprintf(why->text, sizeof why->text,
			 "FARBUS_SOFTGPU is longer than %zu characters", sizeof copy - 1);
		return -EINVAL;
	}
	strcpy(copy, text ? text : "");
	while ((item = strsep(&rest, ","))) {
		char *value = strchr(item, '=');
		int error;

		if (!*item)
			continue;
		if (value)
			*value++ = '\0';
		error = value ? options_set(&read, item, value) : -ENOENT;
		if (!error)
			continue;
		if (error == -ENOENT)
			snprintf(why->text, sizeof why->text,
				 "FARBUS_SOFTGPU: unknown setting %.40s; write for instance "
				 "count=2,cc=9.0,mem=8GiB,sms=16", item);
		else
			snprintf(why->text, sizeof why->text,
				 "FARBUS_SOFTGPU: %.20s=%.40s is not a value that it can have "
				 "(count 0-%d, cc 7.5-13.0, mem 16MiB-1TiB, sms 1-256, "
				 "workers 0-1024, watchdog_s and grace_s 0-86400, "
				 "strict and deterministic 0 or 1)",
				 item, value, BOARD_COUNT_MAX);
		return -EINVAL;
	}
	*options = read;
	return 0;
}

/* ---- identity ---- */

/* FNV-1a in 64 bits, then the finaliser of SplitMix64 so that neighbouring
 * inputs differ in every byte.  Identity needs spread, not secrecy. */
static uint64_t hash_text(const char *text, uint64_t seed)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ seed;

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
	return hash ^ (hash >> 31);
}

static void read_machine_id(char *text, size_t room)
{
	FILE *file = fopen("/etc/machine-id", "re");

	text[0] = '\0';
	if (file) {
		if (!fgets(text, (int)room, file))
			text[0] = '\0';
		fclose(file);
	}
	text[strcspn(text, "\n")] = '\0';
	/* A minimal container has no machine id; its name is the next best. */
	if (!text[0] && gethostname(text, room))
		text[0] = '\0';
	text[room - 1] = '\0';
}

void board_identity_of(unsigned index, struct board_identity *identity)
{
	const char *node = getenv("FARBUS_SOFTGPU_NODE");
	char machine[80], number[16];
	uint64_t place, high, low;

	read_machine_id(machine, sizeof machine);
	snprintf(number, sizeof number, "%u", index);
	place = hash_text(node ? node : "", hash_text(machine, 0));
	high = hash_text(number, place);
	low = hash_text(number, high ^ 0x9e3779b97f4a7c15ull);
	memset(identity, 0, sizeof *identity);
	for (unsigned i = 0; i < 8; i++) {
		identity->uuid[i] = (uint8_t)(high >> (8 * i));
		identity->uuid[8 + i] = (uint8_t)(low >> (8 * i));
	}
	/* Version 8 (vendor specific) and the variant of RFC 9562. */
	identity->uuid[6] = (uint8_t)((identity->uuid[6] & 0x0f) | 0x80);
	identity->uuid[8] = (uint8_t)((identity->uuid[8] & 0x3f) | 0x80);
	snprintf(identity->name, sizeof identity->name, "Farbus Software GPU");
	/* A PCI domain per node, far above those that machines have, so that a
	 * program that sees the boards of two nodes sees no address twice. */
	identity->pci_domain = 0x8000u + (uint32_t)(place % 0x7000u);
	identity->pci_bus = 1 + index;
}

void board_uuid_format(const uint8_t uuid[16], char text[41])
{
	const uint8_t *b = uuid;

	snprintf(text, 41,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
		 b[12], b[13], b[14], b[15]);
}
