/* What programs tell the just-in-time compiler, and what it says. */
#include "jit.h"

#include <string.h>

#include "../../wire/jit.h"

/* A program may have either option without the other: then nothing is written. */
static void jit_log_find(struct client_jit_log *log, const CUjit_option *options,
			 void *const *values, unsigned count, CUjit_option buffer, CUjit_option room)
{
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == buffer)
			log->buffer = values[i];
		if (options[i] == room) {
			uintptr_t bytes = (uintptr_t)values[i] & UINT32_MAX;

			log->room = bytes < WIRE_JIT_LOG_BYTES ? (uint32_t)bytes : WIRE_JIT_LOG_BYTES;
			log->filled = (void **)(uintptr_t)&values[i];
			*log->filled = NULL;
		}
	}
	if (!log->buffer || !log->filled)
		log->room = 0;
}

void client_jit_log_write(const struct client_jit_log *log, const void *text, size_t bytes)
{
	if (!log->room)
		return;
	if (bytes > log->room - 1)
		bytes = log->room - 1;
	/* An empty text may be nowhere. */
	if (bytes)
		memcpy(log->buffer, text, bytes);
	log->buffer[bytes] = 0;
	*log->filled = (void *)bytes;
}

void client_jit_collect(struct client_jit_options *out, const CUjit_option *options,
			void *const *values, unsigned count)
{
	memset(out, 0, sizeof(*out));
	if (!options || !values)
		return;
	jit_log_find(&out->info, options, values, count, CU_JIT_INFO_LOG_BUFFER,
		     CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
	jit_log_find(&out->error, options, values, count, CU_JIT_ERROR_LOG_BUFFER,
		     CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == CU_JIT_TARGET)
			/* Above are what its code may use that others have not (90a, 100f). */
			out->target = (uint32_t)(uintptr_t)values[i] & 0xffff;
		if (!wire_jit_option_travels(options[i]) || out->count == CLIENT_JIT_OPTIONS)
			continue;
		out->pairs[out->count][0] = (uint64_t)options[i];
		out->pairs[out->count][1] = (uint64_t)(uintptr_t)values[i];
		out->count++;
	}
}

static void architecture_add(uint32_t architecture, uint32_t *out, uint32_t *count)
{
	for (uint32_t i = 0; i < *count; i++)
		if (out[i] == architecture)
			return;
	out[(*count)++] = architecture;
}

uint32_t client_architectures(int only, const struct client_jit_options *options, uint32_t *out)
{
	const struct client *client = &farbus_client;
	uint32_t count = 0;

	for (int i = 0; i < client->device_count && count < WIRE_DEVICES; i++) {
		const int32_t *attributes = client->devices[i].snapshot.attributes;

		if (only < 0 || only == i)
			architecture_add(
				(uint32_t)attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] * 10 +
				(uint32_t)attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR],
				out, &count);
	}
	if (options->target)
		architecture_add(options->target, out, &count);
	return count;
}
