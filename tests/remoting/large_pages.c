#define _GNU_SOURCE
/* Preloaded into a program: its machine's pages have 64 KiB, as those of some arm64 kernels do. */
#include <dlfcn.h>
#include <unistd.h>

long sysconf(int name)
{
	long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");

	return name == _SC_PAGESIZE ? 65536 : real(name);
}
