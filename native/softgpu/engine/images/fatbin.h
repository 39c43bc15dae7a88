/* fatbin.h - PTX out of what nvcc embeds in programs. */
#ifndef FARBUS_SOFTGPU_FATBIN_H
#define FARBUS_SOFTGPU_FATBIN_H

#include <stdbool.h>

#include "../engine.h"

struct fatbin_text {
	char *ptx;		/* NUL-terminated, allocated */
	uint32_t max_registers;	/* of -maxrregcount; 0 without */
};

/* The PTX texts of one image, to be linked into one module. */
struct fatbin_texts {
	struct fatbin_text *texts;
	size_t count;
};

/* Whether a device of compute capability `sm` executes PTX for `arch`: from there on
 * upwards, but with suffix 'a' on that one alone, with 'f' in its family, which is the
 * rest of the major number ("PTX Module Directives: .target" of the PTX ISA). */
bool fatbin_target_runs(unsigned arch, char suffix, unsigned sm);

#define FATBIN_BYTES_UNKNOWN SIZE_MAX	/* the image itself says how long it is */

/* `image`: fatbin wrapper (version 1 or 2), fatbin container, object or archive with such
 * containers, cubin or PTX.  An empty fatbin gives no text and no error. */
enum engine_status fatbin_read(const void *image, size_t bytes, unsigned sm,
			       struct fatbin_texts *texts, struct engine_diagnostic *why);
/* A container for each text, one behind the other, for devices from `sm` on; for free(),
 * NULL without memory. */
void *fatbin_pack(const struct fatbin_texts *texts, unsigned sm, size_t *bytes);
void fatbin_texts_free(struct fatbin_texts *texts);

#endif
