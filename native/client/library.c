/* Libraries, modules, kernels.
 *
 * An image travels once; the reply describes every kernel (name, parameter
 * layout, attributes), so that all later questions are answered here.  A library
 * and a module are one kind of object, and so are CUkernel and CUfunction: CUDA
 * accepts either where it takes a function.
 */
#include "managed.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../wire/digest.h"
#include "../wire/image.h"
#include "../wire/jit.h"
#include "../wire/kernel.h"

/* An image of at least so many bytes is asked for by its digest first, where servers keep
 * images: with less, the bytes cost less than the answer that they are not there. */
#define OFFER_BYTES (64u << 10)

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client_library *libraries;

static struct client_library *library_get(const void *handle)
{
	return handle_get(&farbus_client.handles, HANDLE_LIBRARY, (uint64_t)(uintptr_t)handle);
}

CUresult client_function_get(CUfunction handle, struct client_function **function)
{
	*function = handle_get(&farbus_client.handles, HANDLE_FUNCTION, (uint64_t)(uintptr_t)handle);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int client_session_device(const struct client_session *session)
{
	/* Only servers of devices are asked for anything (session_home). */
	for (int i = 0; i < farbus_client.device_count; i++)
		if (farbus_client.devices[i].session == session)
			return i;
	return 0;
}

static CUresult function_bring(struct client_function *function, struct client_session *session);
static CUresult function_describe(struct client_function *function, int device);

CUresult client_function_name(struct client_function *function, struct client_session *session,
			      uint64_t *wire)
{
	const struct client_kernel *kernel =
		&function->on[client_alone() ? 0 : client_session_device(session)];
	CUresult result = CUDA_SUCCESS;

	if (!atomic_load_explicit(&kernel->wire, memory_order_acquire))
		result = function_bring(function, session);
	*wire = kernel->wire;
	return result;
}

CUresult client_function_on(struct client_function *function, int device,
			    struct client_kernel **kernel)
{
	*kernel = &function->on[device];
	return atomic_load_explicit(&(*kernel)->described, memory_order_acquire)
		       ? CUDA_SUCCESS
		       : function_describe(function, device);
}

CUresult client_function_wire(CUfunction handle, uint64_t *wire)
{
	struct client_function *function;
	CUresult result = client_function_get(handle, &function);

	if (result == CUDA_SUCCESS)
		result = client_function_name(function, client_route_current().session, wire);
	return result;
}

/* Modules of libraries are the libraries to the server, which knows modules alone as theirs. */
CUresult client_module_find(CUmodule handle, const struct client_library **library)
{
	*library = library_get(handle);
	if (!*library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!(*library)->context) {
		client_message("texture and surface references are found in modules that "
			       "cuModuleLoad loads, not in libraries");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

size_t client_library_bytes(const void *handle)
{
	const struct client_library *library = library_get(handle);

	return library ? library->image_bytes : 0;
}

/* ---- descriptions from the server ---- */

static void function_free(struct client_function *function)
{
	handle_close(&farbus_client.handles, HANDLE_FUNCTION,
		     (uint64_t)(uintptr_t)function->handle);
	free(function->pieces);
	free(function->occupancy);
	free(function->fits);
	free(function->parameters);
	free(function->name);
	free(function);
}

static void kernel_describe(struct client_kernel *on, uint32_t known, const int32_t *attributes)
{
	for (int i = 0; i < CLIENT_FUNCTION_ATTRIBUTES; i++)
		on->attributes[i] = known >> i & 1 ? attributes[i] : -1;
	on->attributes_known = known;
	atomic_store_explicit(&on->described, true, memory_order_release);
}

/* What a server says of a kernel: its name there, and what is so on one of its devices. */
static void kernel_fill(struct client_function *function, int device, const struct wire_kernel *kernel)
{
	const struct client *client = &farbus_client;

	for (int i = 0; i < client->device_count; i++)
		if (client->devices[i].session == client->devices[device].session)
			atomic_store_explicit(&function->on[i].wire, kernel->handle,
					      memory_order_release);
	kernel_describe(&function->on[device], kernel->attributes_known, kernel->attributes);
}

static struct client_function *function_make(struct client_library *library, int device,
					     const struct wire_kernel *kernel,
					     const struct wire_parameter *parameters,
					     const char *name)
{
	struct client_function *function =
		calloc(1, sizeof(*function) + (size_t)farbus_client.device_count * sizeof(function->on[0]));
	uint64_t handle;

	if (!function)
		return NULL;
	function->library = library;
	function->name = strndup(name, kernel->name_bytes);
	function->parameters = calloc(kernel->parameter_count ? kernel->parameter_count : 1,
				      sizeof(*function->parameters));
	if (!function->name || !function->parameters ||
	    handle_open(&farbus_client.handles, HANDLE_FUNCTION, function, &handle)) {
		free(function->parameters);
		free(function->name);
		free(function);
		return NULL;
	}
	function->handle = (CUfunction)(uintptr_t)handle;
	function->parameter_count = kernel->parameters_known ? kernel->parameter_count : UINT32_MAX;
	for (uint32_t i = 0; i < kernel->parameter_count; i++) {
		function->parameters[i].offset = parameters[i].offset;
		function->parameters[i].bytes = parameters[i].bytes;
		if (parameters[i].offset + parameters[i].bytes > function->parameter_bytes)
			function->parameter_bytes = parameters[i].offset + parameters[i].bytes;
	}
	kernel_fill(function, device, kernel);
	return function;
}

static bool parameters_sane(const struct wire_kernel *kernel, const struct wire_parameter *parameters)
{
	for (uint32_t i = 0; i < kernel->parameter_count; i++)
		if (parameters[i].offset > WIRE_KERNEL_PARAMETERS ||
		    parameters[i].bytes > WIRE_KERNEL_PARAMETERS - parameters[i].offset)
			return false;
	return true;
}

/* A kernel that another server has described; `hint` is where it probably is. */
static struct client_function *function_same(const struct client_library *library, const char *name,
					     size_t bytes, uint32_t hint)
{
	for (uint32_t i = 0; i < library->function_count; i++) {
		struct client_function *function =
			library->functions[(hint + i) % library->function_count];

		if (strncmp(function->name, name, bytes) == 0 && !function->name[bytes])
			return function;
	}
	return NULL;
}

/* Two servers' drivers must see the same parameters, for they are sent to either. */
static CUresult function_agree(const struct client_function *function, const struct wire_kernel *kernel,
			       const struct wire_parameter *parameters)
{
	bool agree = true;

	if (!kernel->parameters_known || function->parameter_count == UINT32_MAX)
		return CUDA_SUCCESS;
	agree = function->parameter_count == kernel->parameter_count;
	for (uint32_t i = 0; agree && i < kernel->parameter_count; i++)
		agree = function->parameters[i].offset == parameters[i].offset &&
			function->parameters[i].bytes == parameters[i].bytes;
	if (agree)
		return CUDA_SUCCESS;
	client_message("two servers' drivers describe the parameters of %s differently",
		       function->name);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* Add one kernel that a server describes as it is on a device, the `index`th of this answer;
 * the library's lock is held or it is not yet public. */
static CUresult library_add(struct client_library *library, int device, struct wire_reader *reader,
			    uint32_t index)
{
	const struct wire_parameter *parameters;
	struct client_function *function;
	struct wire_kernel kernel;
	const void *head = wire_read_bytes(reader, sizeof(kernel));
	const char *name;

	if (!head)
		return CUDA_ERROR_UNKNOWN;
	memcpy(&kernel, head, sizeof(kernel));
	if (kernel.parameter_count > WIRE_KERNEL_PARAMETERS ||
	    kernel.name_bytes > WIRE_KERNEL_NAME_BYTES)
		return CUDA_ERROR_UNKNOWN;
	parameters = wire_read_bytes(reader, kernel.parameter_count * sizeof(*parameters));
	name = wire_read_bytes(reader, (kernel.name_bytes + 7u) & ~7u);
	if (reader->failed || !parameters_sane(&kernel, parameters))
		return CUDA_ERROR_UNKNOWN;
	function = function_same(library, name, strnlen(name, kernel.name_bytes), index);
	if (function) {
		CUresult result = function_agree(function, &kernel, parameters);

		if (result == CUDA_SUCCESS)
			kernel_fill(function, device, &kernel);
		return result;
	}
	if (library->function_count == library->function_room) {
		uint32_t room = library->function_room ? 2 * library->function_room : 16;
		void *functions = realloc(library->functions, room * sizeof(*library->functions));

		if (!functions)
			return CUDA_ERROR_OUT_OF_MEMORY;
		library->functions = functions;
		library->function_room = room;
	}
	function = function_make(library, device, &kernel, parameters, name);
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->functions[library->function_count++] = function;
	return CUDA_SUCCESS;
}

/* `count` kernels were described before, and are more then. */
static CUresult library_add_all(struct client_library *library, int device, const void *described,
				size_t bytes, uint32_t *count)
{
	struct wire_reader reader = { .at = described, .left = bytes };
	CUresult result = CUDA_SUCCESS;

	while (reader.left && result == CUDA_SUCCESS)
		result = library_add(library, device, &reader, (*count)++);
	if (result == CUDA_ERROR_UNKNOWN)
		client_message("the server's description of a kernel is malformed");
	return result;
}

static void library_free(struct client_library *library)
{
	for (uint32_t i = 0; i < library->function_count; i++)
		function_free(library->functions[i]);
	free(library->functions);
	free(library->options);
	free(library->image);
	free(library);
}

/* ---- loading ---- */

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

CUresult client_blob_send(const struct client_route *route, uint64_t blob, const void *data,
			  size_t bytes)
{
	const uint8_t *from = data;

	for (size_t at = 0; at < bytes;) {
		const struct wire_blob_part part = { .blob = blob, .total = bytes, .offset = at };
		size_t now = bytes - at < WIRE_BULK_BYTES ? bytes - at : WIRE_BULK_BYTES;
		const struct client_request request = {
			.op = WIRE_OP_BLOB_PART,
			.fixed = &part,
			.fixed_bytes = sizeof(part),
			.tail = from + at,
			.tail_bytes = now,
		};
		CUresult result = client_post_to(route, &request);

		if (result != CUDA_SUCCESS)
			return result;
		at += now;
	}
	return CUDA_SUCCESS;
}

/* The device that a server describes kernels on where it is not told: the current context's,
 * or its first. */
static int route_device(const struct client_route *route)
{
	const struct client *client = &farbus_client;
	const struct client_context *context =
		client_context_get((CUcontext)(uintptr_t)route->context);
	int device = client_session_device(route->session);

	if (context && context->session == route->session)
		return context->device;
	for (int i = 0; i < client->device_count; i++)
		if (client->devices[i].session == route->session &&
		    client->devices[i].server_ordinal < client->devices[device].server_ordinal)
			device = i;
	return device;
}

/* The kernels that one reply could not hold. */
static CUresult library_rest(struct client_library *library, struct client_session *session,
			     uint32_t count, uint32_t total)
{
	const struct client_route route = client_route_session(session);
	CUresult result = CUDA_SUCCESS;

	while (count < total && result == CUDA_SUCCESS) {
		const struct wire_library_kernels fixed = {
			.library = (uint64_t)(uintptr_t)library->handle,
			.first = count,
		};
		const struct client_request request = {
			.op = WIRE_OP_LIBRARY_KERNELS,
			.fixed = &fixed,
			.fixed_bytes = sizeof(fixed),
		};
		struct wire_library_kernels_reply reply;
		struct client_wait wait = {
			.reply = &reply,
			.reply_bytes = sizeof(reply),
			.want_tail = true,
		};
		uint32_t before = count;

		result = client_call_to(&route, &request, &wait);
		if (result == CUDA_SUCCESS)
			result = library_add_all(library, route_device(&route), wait.tail,
						 wait.tail_bytes, &count);
		free(wait.tail);
		if (result == CUDA_SUCCESS && count == before)
			result = CUDA_ERROR_UNKNOWN;
	}
	return result;
}

/* Most that is shown of what a driver says. */
#define REASON_BYTES 320u

/* What a server has answered to the loading of an image. */
struct loaded {
	CUresult result;
	bool absent;			/* it was to be there, and is not */
	uint32_t kernel_count;
	bool enumerated;
	int device;			/* that the kernels are described on */
	void *tail;			/* malloc'ed, with the descriptions in it */
	const uint8_t *described;
	size_t described_bytes;
	char reason[REASON_BYTES];	/* why not, in the driver's words, where the program has not asked */
};

/* As older servers do it: without logs, and with the image alone. */
static CUresult load_plainly(struct client_library *library, const struct client_route *route,
			     uint64_t blob, size_t bytes, const struct client_jit_options *options,
			     struct loaded *loaded)
{
	const struct wire_library_load fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
		.blob = blob,
		.blob_bytes = bytes,
		.is_module = library->context != NULL,
		.jit_count = options->count,
	};
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_LOAD,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = options->pairs,
		.tail_bytes = options->count * sizeof(options->pairs[0]),
	};
	struct wire_library_load_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	CUresult result = client_call_to(route, &request, &wait);

	if (result != CUDA_SUCCESS) {
		free(wait.tail);
		return result;
	}
	*loaded = (struct loaded){
		.kernel_count = reply.kernel_count,
		.enumerated = reply.enumerated,
		.device = route_device(route),
		.tail = wait.tail,
		.described = wait.tail,
		.described_bytes = wait.tail_bytes,
	};
	return CUDA_SUCCESS;
}

/* By its blob, or with 0 as what is kept at the server under that digest. */
static CUresult load_image(struct client_library *library, const struct client_route *route,
			   uint64_t blob, const uint8_t digest[WIRE_DIGEST_BYTES], size_t bytes,
			   const struct client_jit_options *options, struct loaded *loaded)
{
	int device = library->context ? library->context->device : route_device(route);
	struct wire_image_load fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
		.blob = blob,
		.bytes = bytes,
		.device = farbus_client.devices[device].server_ordinal,
		.is_module = library->context != NULL,
		.jit_count = options->count,
		.info_bytes = options->info.room,
		.error_bytes = options->error.room ? options->error.room : REASON_BYTES,
	};
	const struct client_request request = {
		.op = WIRE_OP_IMAGE_LOAD,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = options->pairs,
		.tail_bytes = options->count * sizeof(options->pairs[0]),
	};
	struct wire_image_load_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	struct wire_reader reader;
	const void *info, *error;
	CUresult result;

	_Static_assert(sizeof(fixed.digest) == WIRE_DIGEST_BYTES, "wire layout");
	memcpy(fixed.digest, digest, WIRE_DIGEST_BYTES);
	result = client_call_to(route, &request, &wait);
	if (result != CUDA_SUCCESS) {
		free(wait.tail);
		return result;
	}
	reader = (struct wire_reader){ .at = wait.tail, .left = wait.tail_bytes };
	info = wire_read_bytes(&reader, reply.info_bytes);
	error = wire_read_bytes(&reader, reply.error_bytes);
	wire_read_bytes(&reader, -(reply.info_bytes + reply.error_bytes) & 7u);
	if (reader.failed) {
		free(wait.tail);
		return CUDA_ERROR_UNKNOWN;
	}
	if (!reply.is_absent) {
		client_jit_log_write(&options->info, info, reply.info_bytes);
		client_jit_log_write(&options->error, error, reply.error_bytes);
	}
	*loaded = (struct loaded){
		.result = (CUresult)reply.result,
		.absent = reply.is_absent,
		.kernel_count = reply.kernel_count,
		.enumerated = reply.enumerated,
		.device = device,
		.tail = wait.tail,
		.described = reader.at,
		.described_bytes = reader.left,
	};
	if (!options->error.room)
		snprintf(loaded->reason, sizeof(loaded->reason), "%.*s", (int)reply.error_bytes,
			 (const char *)error);
	return CUDA_SUCCESS;
}

/* Have a server load the image: by its digest, if it may be there and is worth the question,
 * or by its bytes. */
static CUresult load_anyhow(struct client_library *library, const struct client_route *route,
			    const void *packed, size_t bytes,
			    const struct client_jit_options *options, struct loaded *loaded)
{
	uint8_t digest[WIRE_DIGEST_BYTES] = { 0 };
	bool newer = client_session_has(route->session, WIRE_OP_IMAGE_LOAD);
	uint64_t blob;
	CUresult result;

	if (newer && route->session->keeps_images && bytes >= OFFER_BYTES) {
		wire_digest(packed, bytes, digest);
		result = load_image(library, route, 0, digest, bytes, options, loaded);
		if (result != CUDA_SUCCESS || !loaded->absent)
			return result;
		free(loaded->tail);
	}
	if (handle_open(&farbus_client.handles, HANDLE_BLOB, library, &blob))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = client_blob_send(route, blob, packed, bytes);
	if (result == CUDA_SUCCESS)
		result = newer ? load_image(library, route, blob, digest, bytes, options, loaded)
			       : load_plainly(library, route, blob, bytes, options, loaded);
	handle_close(&farbus_client.handles, HANDLE_BLOB, blob);
	return result;
}

/* Programs often check no error, and then compute with what was there before: pass on what a
 * software GPU says, once for each image in turn.  NVIDIA's driver says nothing. */
static void image_refused(const struct client_library *library, const struct loaded *loaded,
			  size_t bytes)
{
	static _Atomic(const void *) last;
	const struct wire_device *device = &farbus_client.devices[loaded->device].snapshot;
	int major = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
	int minor = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
	Dl_info file;

	if (!loaded->reason[0])
		return;
	if (!dladdr(library->origin, &file) || !file.dli_fname)
		file.dli_fname = "memory";
	else if (atomic_exchange(&last, library->origin) == library->origin)
		return;
	client_message("the kernel image of %zu bytes in %s can't run on %s (compute capability %d.%d): %s",
		       bytes, file.dli_fname, device->name, major, minor, loaded->reason);
}

static CUresult library_send(struct client_library *library, struct client_session *session,
			     const void *packed, size_t bytes,
			     const struct client_jit_options *options)
{
	const struct client_route route = client_route_session(session);
	struct loaded loaded = { 0 };
	uint32_t count = 0;
	CUresult result = load_anyhow(library, &route, packed, bytes, options, &loaded);

	if (result == CUDA_SUCCESS)
		result = loaded.result;
	if (loaded.result == CUDA_ERROR_NO_BINARY_FOR_GPU)
		image_refused(library, &loaded, bytes);
	if (result == CUDA_SUCCESS) {
		/* From here on it is to be unloaded there, too. */
		atomic_fetch_or(&library->loaded, 1u << session->index);
		result = library_add_all(library, loaded.device, loaded.described,
					 loaded.described_bytes, &count);
	}
	if (result == CUDA_SUCCESS)
		result = library_rest(library, session, count, loaded.kernel_count);
	if (result == CUDA_SUCCESS && loaded.enumerated)
		library->listed |= 1u << session->index;
	free(loaded.tail);
	return result;
}

static bool library_on(const struct client_library *library, const struct client_session *session)
{
	return atomic_load(&library->loaded) >> session->index & 1;
}

/* Load it at a server where it is not yet. */
static CUresult library_bring(struct client_library *library, struct client_session *session)
{
	CUresult result = CUDA_SUCCESS;

	if (library_on(library, session))
		return CUDA_SUCCESS;
	if (!library->image)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&library->lock);
	if (!library_on(library, session))
		result = library_send(library, session, library->image, library->image_bytes,
				      library->options);
	pthread_mutex_unlock(&library->lock);
	return result;
}

/* Keep what other servers will be sent. */
static int library_keep(struct client_library *library, void *packed,
			const struct client_jit_options *options)
{
	if (client_alone() || library->context) {
		free(packed);
		return 0;
	}
	library->image = packed;
	library->options = malloc(sizeof(*options));
	if (!library->options)
		return -ENOMEM;
	*library->options = *options;
	/* The buffers are the program's again. */
	library->options->info = library->options->error = (struct client_jit_log){ 0 };
	return 0;
}

static CUresult library_load(const void *image, uint64_t left, bool module,
			     const struct client_jit_options *options, struct client_library **out)
{
	const struct client_context *context = module ? client_context_current() : NULL;
	uint32_t architectures[WIRE_DEVICES + 1];
	/* A module is its context's; a library may be used on every device. */
	uint32_t architecture_count =
		client_architectures(context ? context->device : -1, options, architectures);
	struct client_library *library;
	CUresult result;
	uint64_t handle;
	void *packed;
	size_t bytes;
	int rc;

	rc = image_pack(image, left, architectures, architecture_count, &packed, &bytes);
	if (rc)
		return rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_IMAGE;
	library = calloc(1, sizeof(*library));
	if (!library || handle_open(&farbus_client.handles, HANDLE_LIBRARY, library, &handle)) {
		free(library);
		free(packed);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	library->handle = (CUlibrary)(uintptr_t)handle;
	library->context = module ? client_context_current() : NULL;
	library->session = client_route_current().session;
	library->origin = image;
	library->image_bytes = bytes;
	pthread_mutex_init(&library->lock, NULL);
	result = library_send(library, library->session, packed, bytes, options);
	if (library_keep(library, packed, options) && result == CUDA_SUCCESS)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_LIBRARY, handle);
		library_free(library);
		return result;
	}
	pthread_mutex_lock(&libraries_lock);
	library->next = libraries;
	libraries = library;
	pthread_mutex_unlock(&libraries_lock);
	*out = library;
	return CUDA_SUCCESS;
}

static void library_unlink(struct client_library *library)
{
	struct client_library **link = &libraries;

	while (*link && *link != library)
		link = &(*link)->next;
	if (*link)
		*link = library->next;
}

static CUresult library_unload(const void *handle, bool module)
{
	const struct wire_library_unload fixed = { .library = (uint64_t)(uintptr_t)handle };
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_UNLOAD,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_library *library = library_get(handle);
	CUresult result = CUDA_SUCCESS;

	if (!library || module != (library->context != NULL))
		return CUDA_ERROR_INVALID_HANDLE;
	/* Before the server does it: its variables' addresses may be another thread's before this one hears. */
	client_managed_forget_library(library);
	client_memory_forget_library(library);
	for (unsigned i = 0; i < farbus_client.session_count; i++) {
		const struct client_route route = client_route_session(&farbus_client.sessions[i]);
		struct client_wait wait = { 0 };
		CUresult unloaded;

		/* It went with a server that is lost, unless that was its only one. */
		if (!library_on(library, route.session) ||
		    (atomic_load(&route.session->dead) && route.session != library->session))
			continue;
		unloaded = client_call_to(&route, &request, &wait);
		if (result == CUDA_SUCCESS)
			result = unloaded;
	}
	client_graphs_changed();
	pthread_mutex_lock(&libraries_lock);
	library_unlink(library);
	pthread_mutex_unlock(&libraries_lock);
	handle_close(&farbus_client.handles, HANDLE_LIBRARY, fixed.library);
	library_free(library);
	return result;
}

/* A context takes its modules with it. */
void client_libraries_forget(struct client_context *context)
{
	struct client_library **link = &libraries;

	pthread_mutex_lock(&libraries_lock);
	while (*link) {
		struct client_library *library = *link;

		if (library->context == context) {
			*link = library->next;
			handle_close(&farbus_client.handles, HANDLE_LIBRARY,
				     (uint64_t)(uintptr_t)library->handle);
			library_free(library);
		} else {
			link = &library->next;
		}
	}
	pthread_mutex_unlock(&libraries_lock);
}

/* The bytes of a file and a NUL behind them. */
CUresult client_file_read(const char *path, void **data, size_t *length)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	size_t at = 0;
	char *bytes;

	if (descriptor < 0)
		return CUDA_ERROR_FILE_NOT_FOUND;
	if (fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode) ||
	    !(bytes = malloc((size_t)status.st_size + 1))) {
		close(descriptor);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	while (at < (size_t)status.st_size) {
		ssize_t got = read(descriptor, bytes + at, (size_t)status.st_size - at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		at += (size_t)got;
	}
	close(descriptor);
	bytes[at] = 0;
	*data = bytes;
	*length = at;
	return CUDA_SUCCESS;
}

/* ---- modules ---- */

static CUresult module_load(CUmodule *module, const void *image, uint64_t left,
			    const struct client_jit_options *options)
{
	struct client_library *library;
	CUresult result = library_load(image, left, true, options, &library);

	if (result == CUDA_SUCCESS)
		*module = (CUmodule)library->handle;
	return result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
			    CUjit_option *options, void **optionValues)
{
	struct client_jit_options collected;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	client_jit_collect(&collected, options, optionValues, numOptions);
	return module_load(module, image, WIRE_IMAGE_ENDLESS, &collected);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return cuModuleLoadDataEx(module, fatCubin, 0, NULL, NULL);
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	const struct client_jit_options none = { 0 };
	CUresult result = client_enter();
	void *image;
	size_t length;

	if (result != CUDA_SUCCESS)
		return result;
	if (!module || !fname)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_file_read(fname, &image, &length);
	if (result != CUDA_SUCCESS)
		return result;
	result = module_load(module, image, length + 1, &none);
	free(image);
	return result;
}

CUresult client_module_load(CUmodule *module, const void *image)
{
	return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule hmod)
{
	CUresult result = client_enter_any();

	return result == CUDA_SUCCESS ? library_unload(hmod, true) : result;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

/* ---- kernels by name ---- */

static struct client_function *function_known(const struct client_library *library, const char *name)
{
	for (uint32_t i = 0; i < library->function_count; i++)
		if (strcmp(library->functions[i]->name, name) == 0)
			return library->functions[i];
	return NULL;
}

/* Drivers before 12.4 cannot list the kernels of a library: ask for this one. */
static CUresult function_ask(struct client_library *library, struct client_session *session,
			     const char *name)
{
	const struct wire_library_function fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
	};
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_FUNCTION,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = name,
		.tail_bytes = strlen(name) + 1,
	};
	struct wire_library_function_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	const struct client_route route = client_route_session(session);
	uint32_t count = 0;
	CUresult result;

	if (request.tail_bytes > 4096)
		return CUDA_ERROR_NOT_FOUND;
	result = client_call_to(&route, &request, &wait);
	if (result == CUDA_SUCCESS)
		result = library_add_all(library, route_device(&route), wait.tail, wait.tail_bytes,
					 &count);
	free(wait.tail);
	return result;
}

static bool library_listed(const struct client_library *library, const struct client_session *session)
{
	return library->listed >> session->index & 1;
}

/* A kernel that is not known to be on that server: a module's is on one alone. */
static CUresult function_bring(struct client_function *function, struct client_session *session)
{
	struct client_library *library = function->library;
	CUresult result = CUDA_ERROR_INVALID_HANDLE;
	int device = client_session_device(session);

	if (!library->context)
		result = library_bring(library, session);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&library->lock);
	if (!function->on[device].wire && !library_listed(library, session))
		result = function_ask(library, session, function->name);
	if (result == CUDA_SUCCESS && !function->on[device].wire)
		result = CUDA_ERROR_NOT_FOUND;
	pthread_mutex_unlock(&library->lock);
	return result;
}

/* The kernel of that name at the device's server, found where it probably is. */
static struct client_function *function_named(const struct client_library *library, int device,
					      uint64_t wire, uint32_t hint)
{
	for (uint32_t i = 0; i < library->function_count; i++) {
		struct client_function *function =
			library->functions[(hint + i) % library->function_count];

		if (function->on[device].wire == wire)
			return function;
	}
	return NULL;
}

/* Take descriptions of kernels as they are on a device; how many there were. */
static CUresult library_describe_some(struct client_library *library, int device, uint32_t first,
				      uint32_t *count)
{
	const struct client_route route = client_route_session(farbus_client.devices[device].session);
	const struct wire_library_attributes fixed = {
		.library = (uint64_t)(uintptr_t)library->handle,
		.device = farbus_client.devices[device].server_ordinal,
		.first = first,
	};
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_ATTRIBUTES,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_library_attributes_reply reply;
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.want_tail = true,
	};
	CUresult result = client_call_to(&route, &request, &wait);
	struct wire_kernel_attributes one;

	*count = 0;
	for (size_t at = 0; result == CUDA_SUCCESS && wait.tail_bytes - at >= sizeof(one);
	     at += sizeof(one)) {
		struct client_function *function;

		memcpy(&one, (const uint8_t *)wait.tail + at, sizeof(one));
		function = function_named(library, device, one.handle, first + (*count)++);
		if (function && !function->on[device].described)
			kernel_describe(&function->on[device], one.known, one.attributes);
	}
	free(wait.tail);
	return result;
}

/* An older server does not say it again: what is so on another of its devices. */
static void function_describe_alike(struct client_function *function, int device)
{
	const struct client *client = &farbus_client;
	const struct client_kernel *other;
	int32_t attributes[CLIENT_FUNCTION_ATTRIBUTES];

	for (int i = 0; i < client->device_count; i++) {
		other = &function->on[i];
		if (client->devices[i].session != client->devices[device].session || !other->described)
			continue;
		for (int k = 0; k < CLIENT_FUNCTION_ATTRIBUTES; k++)
			attributes[k] = other->attributes[k];
		kernel_describe(&function->on[device], other->attributes_known, attributes);
		return;
	}
}

/* Learn how the kernels of a library are on a device: all at once, when the first is used there. */
static CUresult function_describe(struct client_function *function, int device)
{
	struct client_session *session = farbus_client.devices[device].session;
	struct client_library *library = function->library;
	struct client_kernel *kernel = &function->on[device];
	uint32_t first = 0, count = 1;
	CUresult result = CUDA_SUCCESS;

	if (!atomic_load_explicit(&kernel->wire, memory_order_acquire))
		result = function_bring(function, session);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&library->lock);
	if (!client_session_has(session, WIRE_OP_LIBRARY_ATTRIBUTES) && !kernel->described)
		function_describe_alike(function, device);
	for (; result == CUDA_SUCCESS && count && !kernel->described; first += count)
		result = library_describe_some(library, device, first, &count);
	if (result == CUDA_SUCCESS && !kernel->described)
		result = CUDA_ERROR_UNKNOWN;
	pthread_mutex_unlock(&library->lock);
	return result;
}

static CUresult function_find(const void *handle, const char *name, CUfunction *function)
{
	CUresult result = client_enter_any();
	struct client_library *library;
	struct client_function *found;

	if (result != CUDA_SUCCESS)
		return result;
	if (!function || !name)
		return CUDA_ERROR_INVALID_VALUE;
	library = library_get(handle);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&library->lock);
	found = function_known(library, name);
	if (!found && !library_listed(library, library->session)) {
		result = function_ask(library, library->session, name);
		found = function_known(library, name);
	}
	pthread_mutex_unlock(&library->lock);
	if (found)
		*function = found->handle;
	else if (result == CUDA_SUCCESS)
		result = CUDA_ERROR_NOT_FOUND;
	/* Not before: several threads may ask for one function into one place. */
	if (result == CUDA_ERROR_NOT_FOUND)
		*function = NULL;
	return result;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	return function_find(hmod, name, hfunc);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
	return function_find(library, name, (CUfunction *)pKernel);
}

/* How many kernels there are; only where the server could list them. */
static CUresult function_count(const void *handle, unsigned *count, struct client_library **library)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	*library = library_get(handle);
	if (!*library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!library_listed(*library, (*library)->session))
		return CUDA_ERROR_NOT_SUPPORTED;
	*count = (*library)->function_count;
	return CUDA_SUCCESS;
}

static CUresult function_list(const void *handle, CUfunction *functions, unsigned room)
{
	struct client_library *library;
	unsigned count;
	CUresult result = function_count(handle, &count, &library);

	if (result != CUDA_SUCCESS)
		return result;
	if (!functions)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && i < room; i++)
		functions[i] = library->functions[i]->handle;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
	struct client_library *library;

	return count ? function_count(mod, count, &library) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
	return function_list(mod, functions, numFunctions);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
	struct client_library *library;

	return count ? function_count(lib, count, &library) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
	return function_list(lib, (CUfunction *)kernels, numKernels);
}

int client_module_visit(CUmodule module, void (*visit)(void *opaque, CUfunction function),
			void *opaque)
{
	struct client_library *library;
	unsigned count;

	if (function_count(module, &count, &library) != CUDA_SUCCESS)
		return -1;
	for (unsigned i = 0; i < count; i++)
		visit(opaque, library->functions[i]->handle);
	return (int)count;
}

/* ---- libraries ---- */

static CUresult library_load_bounded(CUlibrary *library, const void *code, uint64_t left,
				     CUjit_option *options, void **values, unsigned count)
{
	struct client_library *loaded;
	struct client_jit_options collected;
	CUresult result;

	client_jit_collect(&collected, options, values, count);
	result = library_load(code, left, false, &collected, &loaded);
	if (result == CUDA_SUCCESS)
		*library = loaded->handle;
	return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
			   void **jitOptionsValues, unsigned int numJitOptions,
			   CUlibraryOption *libraryOptions, void **libraryOptionValues,
			   unsigned int numLibraryOptions)
{
	CUresult result = client_enter_any();

	/* Both library options are about memory of this process: the image is
	 * packed before the call returns, so neither changes anything. */
	(void)libraryOptions;
	(void)libraryOptionValues;
	(void)numLibraryOptions;
	if (result != CUDA_SUCCESS)
		return result;
	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	return library_load_bounded(library, code, WIRE_IMAGE_ENDLESS, jitOptions, jitOptionsValues,
				    numJitOptions);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
			       void **jitOptionsValues, unsigned int numJitOptions,
			       CUlibraryOption *libraryOptions, void **libraryOptionValues,
			       unsigned int numLibraryOptions)
{
	CUresult result = client_enter_any();
	void *image;
	size_t length;

	(void)libraryOptions;
	(void)libraryOptionValues;
	(void)numLibraryOptions;
	if (result != CUDA_SUCCESS)
		return result;
	if (!library || !fileName)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_file_read(fileName, &image, &length);
	if (result != CUDA_SUCCESS)
		return result;
	result = library_load_bounded(library, image, length + 1, jitOptions, jitOptionsValues,
				      numJitOptions);
	free(image);
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result = client_enter_any();

	return result == CUDA_SUCCESS ? library_unload(library, false) : result;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!pMod)
		return CUDA_ERROR_INVALID_VALUE;
	if (!library_get(library))
		return CUDA_ERROR_INVALID_HANDLE;
	*pMod = (CUmodule)library;
	return CUDA_SUCCESS;
}

/* ---- variables ---- */

/* A server of protocol 2.1 does not say what is managed: there nothing is. */
CUresult client_global_find(const void *handle, const char *name, bool managed, CUdeviceptr *address,
			    size_t *bytes)
{
	const struct wire_library_variable fixed = { .library = (uint64_t)(uintptr_t)handle };
	struct client_request request = {
		.op = client_managed_offered() ? WIRE_OP_LIBRARY_VARIABLE : WIRE_OP_LIBRARY_GLOBAL,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail = name,
	};
	struct wire_library_variable_reply reply = { 0 };
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = request.op == WIRE_OP_LIBRARY_VARIABLE
				       ? sizeof(reply)
				       : sizeof(struct wire_library_global_reply),
	};
	struct client_range range = { .kind = MEMORY_DEVICE, .global = true };
	struct client_route route;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || (!address && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	range.library = library_get(handle);
	if (!range.library)
		return CUDA_ERROR_INVALID_HANDLE;
	/* A library has one in each context; a module is of one. */
	range.context = range.library->context ? range.library->context : client_context_current();
	route = client_route_context(range.context);
	result = library_bring(range.library, route.session);
	if (result != CUDA_SUCCESS)
		return result;
	request.tail_bytes = strlen(name) + 1;
	if (request.tail_bytes > 4096)
		return CUDA_ERROR_NOT_FOUND;
	result = client_call_to(&route, &request, &wait);
	if (result != CUDA_SUCCESS)
		return result;
	if (managed && !reply.managed)
		return CUDA_ERROR_NOT_FOUND;
	range.base = reply.address;
	range.bytes = reply.bytes;
	range.managed = reply.managed;
	if (reply.bytes && client_memory_add(&range)) {
		struct client_range known;

		/* Asked for before; or its addresses are taken in this process. */
		if (!client_memory_find(reply.address, &known) || known.base != reply.address ||
		    known.bytes != reply.bytes) {
			client_message("the variable %s lies at an address that this process uses; "
				       "start the program again", name);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (reply.managed && reply.bytes) {
		result = client_managed_variable(range.library, range.context, reply.address,
						 reply.bytes);
		if (result != CUDA_SUCCESS)
			return result;
	}
	if (address)
		*address = reply.address;
	if (bytes)
		*bytes = reply.bytes;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
	return client_global_find(hmod, name, false, dptr, bytes);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	return client_global_find(library, name, false, dptr, bytes);
}
