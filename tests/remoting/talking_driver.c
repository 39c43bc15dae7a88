/* A driver whose cuCtxSynchronize says a line of 600 bytes in its log, and then one of a few.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void (*hear)(void *, int, char *, size_t);

static hear heard;
static void *heard_by;

int cuLogsRegisterCallback(hear function, void *opaque, void **handle)
{
	heard = function;
	heard_by = opaque;
	if (handle)
		*handle = &heard;
	return 0;
}

static void say(char letter, size_t bytes)
{
	char line[1024] = "softgpu: ";

	memset(line + strlen(line), letter, bytes - 1 - strlen(line));
	line[bytes - 1] = '\n';
	heard(heard_by, 0, line, bytes);
}

int cuCtxSynchronize(void)
{
	int (*next)(void) = dlsym(RTLD_NEXT, "cuCtxSynchronize");
	int result = next();

	if (heard) {
		say('a', 600);
		say('b', 20);
	}
	return result;
}
