/* A driver whose first cuFuncSetAttribute waits until the FIFO that SET_GATE names has been opened and closed by a writer.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

int cuFuncSetAttribute(void *function, int attribute, int value)
{
	static atomic_bool passed;
	int (*next)(void *, int, int) = dlsym(RTLD_NEXT, "cuFuncSetAttribute");
	char byte;

	if (!atomic_exchange(&passed, 1)) {
		int gate = open(getenv("SET_GATE"), O_RDONLY | O_CLOEXEC);

		while (gate >= 0 && read(gate, &byte, 1) > 0)
			;
		close(gate);
	}
	return next(function, attribute, value);
}
