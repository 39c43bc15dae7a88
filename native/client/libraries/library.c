/* Libraries and modules: how they are loaded and unloaded.
 *
 * An image travels once; the reply describes every kernel (kernels.c), so that all later
 * questions are answered here.  A library and a module are one kind of object.
 */
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/graphs.h"
#include "../handles/route.h"
#include "../managed/managed_alloc.h"
#include "jit.h"
#include "kernels.h"
#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../wire/digest.h"
#include "../../wire/image.h"

/* An image of at least so many bytes is asked for by its digest first, where servers keep
 * images: with less, the bytes cost less than the answer that they are not there. */
#define OFFER_BYTES (64u << 10)

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct client_library *libraries;

struct client_library *client_library_get(const void *handle)
{
	return handle_get(&farbus_client.handles, HANDLE_LIBRARY, (uint64_t)(uintptr_t)handle);
}

/* Modules of libraries are the libraries to the server, which knows modules alone as theirs. */
CUresult client_module_find(CUmodule handle, const struct client_library **library)
{
	*library = client_library_get(handle);
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
	const struct client_library *library = client_library_get(handle);

	return library ? library->image_bytes : 0;
}

static void library_free(struct client_library *library)
{
	client_kernels_free(library);
	free(library->options);
	free(library->image);
	free(library);
}

/* ---- loading ---- */

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
		.device = client_route_device(route),
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
	int device = library->context ? library->context->device : client_route_device(route);
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

/* As one line. */
static void reason_flatten(char *reason)
{
	size_t length = strlen(reason);

	for (char *at = reason; *at; at++)
		if ((unsigned char)*at < ' ')
			*at = ' ';
	while (length && reason[length - 1] == ' ')
		reason[--length] = '\0';
}

/* Is the image itself why it was not loaded? */
static bool result_is_of_image(CUresult result)
{
	return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_PTX ||
	       result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

/* Programs often check no error, and then compute with what was there before: pass on what the
 * driver says, once for each image in turn.  NVIDIA's says nothing of machine code. */
static void image_refused(const struct client_library *library, struct loaded *loaded, size_t bytes)
{
	static _Atomic(const void *) last;
	const struct wire_device *device = &farbus_client.devices[loaded->device].snapshot;
	int major = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
	int minor = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
	Dl_info file;

	reason_flatten(loaded->reason);
	if (!loaded->reason[0])
		return;
	if (!dladdr(library->origin, &file) || !file.dli_fname)
		file.dli_fname = "memory";
	else if (atomic_exchange(&last, library->origin) == library->origin)
		return;
	client_message("the kernel image of %zu bytes in %s can't %s %s (compute capability %d.%d): %s", bytes,
		       file.dli_fname,
		       loaded->result == CUDA_ERROR_NO_BINARY_FOR_GPU ? "run on" : "be loaded by the driver of",
		       device->name, major, minor, loaded->reason);
}

static CUresult library_send(struct client_library *library, struct client_session *session,
			     const void *packed, size_t bytes,
			     const struct client_jit_options *options)
{
	const struct client_route route = client_route_session(session);
	struct loaded loaded = { 0 };
	CUresult result = load_anyhow(library, &route, packed, bytes, options, &loaded);

	if (result == CUDA_SUCCESS)
		result = loaded.result;
	if (result_is_of_image(loaded.result))
		image_refused(library, &loaded, bytes);
	if (result == CUDA_SUCCESS) {
		/* From here on it is to be unloaded there, too. */
		atomic_fetch_or(&library->loaded, 1u << session->index);
		result = client_kernels_take(library, session, loaded.device, loaded.described,
					     loaded.described_bytes, loaded.kernel_count);
	}
	if (result == CUDA_SUCCESS && loaded.enumerated)
		library->listed |= 1u << session->index;
	free(loaded.tail);
	return result;
}

static bool library_on(const struct client_library *library, const struct client_session *session)
{
	return atomic_load(&library->loaded) >> session->index & 1;
}

CUresult client_library_bring(struct client_library *library, struct client_session *session)
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

/* On all servers that have it. */
static CUresult library_unload_there(const struct client_library *library)
{
	const struct wire_library_unload fixed = { .library = (uint64_t)(uintptr_t)library->handle };
	const struct client_request request = {
		.op = WIRE_OP_LIBRARY_UNLOAD,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	CUresult result = CUDA_SUCCESS;

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
	return result;
}

/* Add it to those that contexts take with them.  CUDA_ERROR_CONTEXT_IS_DESTROYED: its own has done so meanwhile, and
 * the server has it all the same, in the next life of the primary one. */
static CUresult library_link(struct client_library *library, unsigned ends)
{
	const struct client_context *context = library->context;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&libraries_lock);
	if (context && (!context->active || atomic_load(&context->ends) != ends)) {
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	} else {
		library->next = libraries;
		libraries = library;
	}
	pthread_mutex_unlock(&libraries_lock);
	return result;
}

static CUresult library_load(const void *image, uint64_t left, bool module,
			     const struct client_jit_options *options, struct client_library **out)
{
	const struct client_context *context = module ? client_context_current() : NULL;
	uint32_t architectures[WIRE_DEVICES + 1];
	/* A module is its context's; a library may be used on every device. */
	uint32_t architecture_count =
		client_architectures(context ? context->device : -1, options, architectures);
	unsigned ends = context ? atomic_load(&context->ends) : 0;
	struct client_library *library;
	CUresult result;
	uint64_t handle;
	void *packed;
	size_t bytes;
	int rc;

	rc = image_pack(image, left, architectures, architecture_count, &packed, &bytes);
	if (rc == -ENOMEM)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (rc) {
		client_message("a kernel image is not loaded: it is %s", rc == -EFBIG
				       ? "larger than any that is sent" : "no fatbin, machine code, Tile IR or PTX that is whole");
		return CUDA_ERROR_INVALID_IMAGE;
	}
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
	if (result == CUDA_SUCCESS)
		result = library_link(library, ends);
	if (result != CUDA_SUCCESS) {
		/* A server that has loaded it has its name, which is not to be another's before it is free there. */
		library_unload_there(library);
		handle_close(&farbus_client.handles, HANDLE_LIBRARY, handle);
		library_free(library);
		return result;
	}
	*out = library;
	return CUDA_SUCCESS;
}

/* With the lock.  False: it was not in the list any more. */
static bool library_unlink(struct client_library *library)
{
	struct client_library **link = &libraries;

	while (*link && *link != library)
		link = &(*link)->next;
	if (!*link)
		return false;
	*link = library->next;
	return true;
}

static CUresult library_unload(const void *handle, bool module)
{
	struct client_library *library;
	CUresult result;

	/* Not in the list it is nobody else's to free: neither another unload's nor its context's, when that ends. */
	pthread_mutex_lock(&libraries_lock);
	library = client_library_get(handle);
	if (library && (module != (library->context != NULL) || !library_unlink(library)))
		library = NULL;
	pthread_mutex_unlock(&libraries_lock);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Before the server does it: its variables' addresses may be another thread's before this one hears. */
	client_managed_forget_library(library);
	client_memory_forget_library(library);
	result = library_unload_there(library);
	client_graphs_changed();
	handle_close(&farbus_client.handles, HANDLE_LIBRARY, (uint64_t)(uintptr_t)handle);
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
	if (!client_library_get(library))
		return CUDA_ERROR_INVALID_HANDLE;
	*pMod = (CUmodule)library;
	return CUDA_SUCCESS;
}
