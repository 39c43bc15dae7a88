/* softgpu_ptx_fuzz.c - PTX text into the engine's parser, linker and decoder. */
#include <stdlib.h>
#include <string.h>

#include "../softgpu/engine/engine.h"
#include "fuzz.h"
#include "softgpu_seeds.h"

const struct fuzz_seed fuzz_seeds[] = {
	{ ptx_memory, sizeof(ptx_memory) - 1 },
	{ ptx_control, sizeof(ptx_control) - 1 },
	{ ptx_arithmetic, sizeof(ptx_arithmetic) - 1 },
	{ ptx_cluster, sizeof(ptx_cluster) - 1 },
	{ ptx_tensor, sizeof(ptx_tensor) - 1 },
	{ ptx_tensor_maps, sizeof(ptx_tensor_maps) - 1 },
	{ ptx_texture, sizeof(ptx_texture) - 1 },
	{ ptx_warpgroup, sizeof(ptx_warpgroup) - 1 },
	{ NULL, 0 },
};
const char *const fuzz_words[] = { PTX_WORDS, NULL };

/* A device of 64 MiB. */
static void *device_alloc(void *opaque, size_t bytes, size_t align)
{
	(void)opaque;
	if (bytes > (size_t)64 << 20 || align > 4096)
		return NULL;
	align = align < 16 ? 16 : align;
	return aligned_alloc(align, (bytes + align) & ~(align - 1));
}

static void device_free(void *opaque, void *memory)
{
	(void)opaque;
	free(memory);
}

void fuzz_one(uint8_t *data, size_t bytes)
{
	const struct engine_load_options options = {
		.sm = 120, .memory = { device_alloc, device_free, NULL }, .asks_reach = bytes & 1,
	};
	struct engine_diagnostic why = { "" };
	struct engine_module *module;
	char *text = malloc(bytes + 1);

	if (!text)
		abort();
	memcpy(text, data, bytes);
	text[bytes] = 0;
	/* A magic number at the start means an image, whose sizes are taken at their word. */
	if (text[0] != (char)0xb1 && text[0] != 0x50 &&
	    !engine_module_load(&module, text, &options, &why)) {
		for (size_t k = 0; k < engine_module_function_count(module); k++) {
			struct engine_function_info info;

			engine_function_info(engine_module_function_at(module, k), &info);
		}
		engine_module_unload(module);
	}
	free(text);
}
