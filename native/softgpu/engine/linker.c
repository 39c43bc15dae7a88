/* linker.c - link PTX at run time (cuLink).
 *
 * Linking joins texts: what comes out is an object with one container for each input, which
 * is linked again wherever it is loaded.  A load on trial finds the mistakes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "images/fatbin.h"
#include "images/object.h"
#include "loaded.h"

struct engine_linker {
	unsigned sm;
	struct fatbin_texts texts;
	void *image;
};

struct engine_linker *engine_linker_create(unsigned sm)
{
	struct engine_linker *linker = calloc(1, sizeof(*linker));

	if (linker)
		linker->sm = sm;
	return linker;
}

void engine_linker_destroy(struct engine_linker *linker)
{
	fatbin_texts_free(&linker->texts);
	free(linker->image);
	free(linker);
}

/* ---- trials ---- */

static void *trial_alloc(void *opaque, size_t bytes, size_t align)
{
	void *memory;

	(void)opaque;
	return posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL
												: memory;
}

static void trial_free(void *opaque, void *memory)
{
	(void)opaque;
	free(memory);
}

static enum engine_status try_texts(const struct engine_linker *linker,
				    const struct fatbin_texts *texts, struct engine_diagnostic *why)
{
	const struct engine_load_options options = {
		.sm = linker->sm, .memory = { trial_alloc, trial_free, NULL },
	};
	struct engine_module *module;
	enum engine_status status = module_load_texts(&module, texts, &options, why);

	if (status == ENGINE_OK)
		engine_module_unload(module);
	return status;
}

/* ---- inputs ---- */

enum engine_status engine_linker_add(struct engine_linker *linker, const void *data, size_t bytes,
				     uint32_t max_registers, struct engine_diagnostic *why)
{
	struct fatbin_texts more, *texts = &linker->texts;
	enum engine_status status = fatbin_read(data, bytes, linker->sm, &more, why);
	struct fatbin_text *all;

	if (status != ENGINE_OK)
		return status;
	for (size_t k = 0; k < more.count; k++) {
		const struct fatbin_texts one = { &more.texts[k], 1 };

		status = try_texts(linker, &one, why);
		/* Other inputs may have what it lacks. */
		if (status != ENGINE_OK && status != ENGINE_UNRESOLVED)
			goto out;
		if (max_registers)
			more.texts[k].max_registers = max_registers;
	}
	status = ENGINE_OK;
	if (!more.count)
		goto out;
	all = realloc(texts->texts, (texts->count + more.count) * sizeof(*all));
	if (!all) {
		snprintf(why->text, sizeof(why->text), "out of memory linking");
		status = ENGINE_NO_MEMORY;
		goto out;
	}
	memcpy(all + texts->count, more.texts, more.count * sizeof(*all));
	texts->texts = all;
	texts->count += more.count;
	more.count = 0;
out:
	fatbin_texts_free(&more);
	return status;
}

/* ---- the result ---- */

enum engine_status engine_linker_complete(struct engine_linker *linker, const void **image,
					  size_t *bytes, struct engine_diagnostic *why)
{
	enum engine_status status = try_texts(linker, &linker->texts, why);
	size_t packed_bytes;
	void *packed;

	if (status != ENGINE_OK)
		return status;
	packed = fatbin_pack(&linker->texts, linker->sm, &packed_bytes);
	linker->image = packed ? object_make(packed, packed_bytes, bytes) : NULL;
	free(packed);
	if (!linker->image) {
		snprintf(why->text, sizeof(why->text), "out of memory linking");
		return ENGINE_NO_MEMORY;
	}
	*image = linker->image;
	return ENGINE_OK;
}
