/* fatbin.h - PTX out of what nvcc embeds in programs. */
#ifndef FARBUS_SOFTGPU_FATBIN_H
#define FARBUS_SOFTGPU_FATBIN_H

#include "engine.h"

/* The PTX texts of one image, to be linked into one module. */
struct fatbin_texts {
	char **texts;		/* NUL-terminated, allocated */
	size_t count;
};

/* `image`: fatbin wrapper (version 1 or 2), fatbin container, cubin or PTX.
 * An empty fatbin gives no text and no error. */
enum engine_status fatbin_read(const void *image, unsigned sm, struct fatbin_texts *texts,
			       struct engine_diagnostic *why);
void fatbin_texts_free(struct fatbin_texts *texts);

#endif
