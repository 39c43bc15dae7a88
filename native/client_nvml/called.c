/* What has only a shape: passed to the server's NVML as it is (NVML_QUERIES), refused, or
 * not supported.  remoting/spec/management.py says what is what. */
#include "nvml.h"

#include <string.h>

/* ---- called ---- */

/* Of the current one and the pending one nvidia-smi (535) asks for one alone, without a place for the other. */
static bool is_of_two_alone(enum nvml_query query)
{
	return query == QUERY_nvmlDeviceGetGpuOperationMode;
}

/* The values of an answer, as many as there are places for them. */
static nvmlReturn_t ask_numbers(nvmlDevice_t device, enum nvml_query query, unsigned a, unsigned b,
				unsigned *const out[], int count)
{
	const struct nvml_question question = { .query = query, .arguments = { a, b } };
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_up();
	int places = 0;

	for (int i = 0; i < count; i++)
		places += out[i] != NULL;
	if (!result && places < (is_of_two_alone(query) ? 1 : count))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (!result)
		result = nvml_ask(device, &question, &answer);
	for (int i = 0; !result && i < count; i++)
		if (out[i])
			*out[i] = (unsigned)answer.values[i];
	return result;
}

static nvmlReturn_t ask_wide(nvmlDevice_t device, enum nvml_query query, unsigned a, unsigned b,
			     unsigned c, unsigned long long *out)
{
	const struct nvml_question question = { .query = query, .arguments = { a, b, c } };
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_ask(device, &question, &answer);
	if (!result)
		*out = answer.values[0];
	return result;
}

static nvmlReturn_t ask_text(nvmlDevice_t device, enum nvml_query query, unsigned a, char *out,
			     unsigned room)
{
	const struct nvml_question question = { .query = query, .arguments = { a } };
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_ask(device, &question, &answer);
	return result ? result : nvml_give_text(out, room, (const char *)answer.tail,
						answer.tail_bytes);
}

/* A structure of `bytes` bytes, of which `sent` go with the question. */
static nvmlReturn_t ask_bytes(nvmlDevice_t device, enum nvml_query query, unsigned a, void *out,
			      size_t bytes, size_t sent)
{
	const struct nvml_question question = {
		.query = query, .arguments = { a }, .tail = out, .tail_bytes = sent,
	};
	struct nvml_answer answer;
	nvmlReturn_t result = nvml_ask(device, &question, &answer);

	if (result)
		return result;
	/* Never more than the caller has. */
	if (answer.tail_bytes != bytes)
		return NVML_ERROR_UNKNOWN;
	memcpy(out, answer.tail, bytes);
	return NVML_SUCCESS;
}

static nvmlReturn_t ask_structure(nvmlDevice_t device, enum nvml_query query, unsigned a, void *out,
				  size_t bytes)
{
	nvmlReturn_t result = nvml_up();

	if (result)
		return result;
	return out ? ask_bytes(device, query, a, out, bytes, 0) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t ask_versioned(nvmlDevice_t device, enum nvml_query query, void *out)
{
	nvmlReturn_t result = nvml_up();
	unsigned version;

	if (result)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(&version, out, sizeof(version));
	if (NVML_VERSION_BYTES(version) < sizeof(version) ||
	    NVML_VERSION_BYTES(version) > NVML_TAIL_BYTES)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return ask_bytes(device, query, 0, out, NVML_VERSION_BYTES(version),
			 NVML_VERSION_BYTES(version));
}

nvmlReturn_t nvml_ask_list(nvmlDevice_t device, const struct nvml_question *question,
			   unsigned *count, void *out, size_t entry, size_t given)
{
	nvmlReturn_t result = nvml_up();
	struct nvml_answer answer;
	unsigned room;

	if (result)
		return result;
	if (!count || (*count && !out))
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_ask(device, question, &answer);
	if (result)
		return result;
	room = *count;
	*count = (unsigned)(answer.tail_bytes / entry);
	if (*count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *count; i++)
		memcpy((uint8_t *)out + i * given, answer.tail + i * entry, given);
	return NVML_SUCCESS;
}

static nvmlReturn_t ask_list(nvmlDevice_t device, enum nvml_query query, unsigned a,
			     unsigned *count, unsigned *out)
{
	const struct nvml_question question = { .query = query, .arguments = { a } };

	return nvml_ask_list(device, &question, count, out, sizeof(*out), sizeof(*out));
}

/* A function of that shape; -Wmissing-prototypes is of no use for what a program looks up. */
#define DEFINE(name, parameters, call) \
	NVML_EXPORT nvmlReturn_t name parameters; \
	NVML_EXPORT nvmlReturn_t name parameters \
	{ \
		return call; \
	}
#define OUT(...) (unsigned *const[]){ __VA_ARGS__ }

#define CALLED_NUMBER(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned *out), \
	       ask_numbers(device, QUERY_##name, 0, 0, OUT(out), 1))
#define CALLED_NUMBER_A(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, unsigned *out), \
	       ask_numbers(device, QUERY_##name, a, 0, OUT(out), 1))
#define CALLED_NUMBER_AB(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, unsigned b, unsigned *out), \
	       ask_numbers(device, QUERY_##name, a, b, OUT(out), 1))
#define CALLED_NUMBERS_2(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned *first, unsigned *second), \
	       ask_numbers(device, QUERY_##name, 0, 0, OUT(first, second), 2))
#define CALLED_NUMBERS_4(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned *first, unsigned *second, unsigned *third, \
		      unsigned *fourth), \
	       ask_numbers(device, QUERY_##name, 0, 0, OUT(first, second, third, fourth), 4))
#define CALLED_WIDE(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned long long *out), \
	       ask_wide(device, QUERY_##name, 0, 0, 0, out))
#define CALLED_WIDE_AB(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, unsigned b, unsigned long long *out), \
	       ask_wide(device, QUERY_##name, a, b, 0, out))
#define CALLED_WIDE_ABC(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, unsigned b, unsigned c, \
		      unsigned long long *out), \
	       ask_wide(device, QUERY_##name, a, b, c, out))
#define CALLED_TEXT(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, char *out, unsigned room), \
	       ask_text(device, QUERY_##name, 0, out, room))
#define CALLED_TEXT_A(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, char *out, unsigned room), \
	       ask_text(device, QUERY_##name, a, out, room))
#define CALLED_BYTES(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, void *out), \
	       ask_structure(device, QUERY_##name, 0, out, bytes))
#define CALLED_BYTES_A(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, void *out), \
	       ask_structure(device, QUERY_##name, a, out, bytes))
#define CALLED_VERSIONED(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, void *out), ask_versioned(device, QUERY_##name, out))
#define CALLED_LIST(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned *count, unsigned *out), \
	       ask_list(device, QUERY_##name, 0, count, out))
#define CALLED_LIST_A(name, bytes) \
	DEFINE(name, (nvmlDevice_t device, unsigned a, unsigned *count, unsigned *out), \
	       ask_list(device, QUERY_##name, a, count, out))
/* Elsewhere. */
#define CALLED_PEER(name, bytes)
#define CALLED_PEER_A(name, bytes)
#define CALLED_OWN(name, bytes)

#define CALLED(name, shape, bytes) CALLED_##shape(name, bytes)
NVML_QUERIES(CALLED)

/* ---- refused and not supported: whatever the arguments ---- */

static nvmlReturn_t answer_always(nvmlReturn_t answer)
{
	nvmlReturn_t result = nvml_up();

	return result ? result : answer;
}

#define REFUSED(name) DEFINE(name, (void), answer_always(NVML_ERROR_NO_PERMISSION))
NVML_REFUSED(REFUSED)

#define NOT_SUPPORTED(name) DEFINE(name, (void), answer_always(NVML_ERROR_NOT_SUPPORTED))
NVML_UNSUPPORTED(NOT_SUPPORTED)
