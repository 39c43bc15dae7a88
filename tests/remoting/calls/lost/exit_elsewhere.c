/* A host function ends the program while another thread waits for its stream: that is no error of the wait. */
#include "../calls.h"

static void end(void *unused)
{
	(void)unused;
	exit(5);
}

int main(void)
{
	begin();
	CHECK(cuLaunchHostFunc(NULL, end, NULL));
	CHECK(cuCtxSynchronize());
	return 1;
}
