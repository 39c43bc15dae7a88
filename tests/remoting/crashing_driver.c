/* A driver in which waiting for the device ends the process: by a fault, or as libc ends one
 * that has damaged its memory.  FARBUS_TEST_CRASH says which. */
#include <stdlib.h>
#include <string.h>

int cuCtxSynchronize(void);

int cuCtxSynchronize(void)
{
	const char *how = getenv("FARBUS_TEST_CRASH");

	if (how && strcmp(how, "abort") == 0)
		abort();
	*(volatile int *)16 = 1;
	return 0;
}
