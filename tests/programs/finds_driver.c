/* Says whether there is a driver of CUDA, and what it says: in C alone, so that any C library will do. */

#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		puts(dlerror());
		return 1;
	}
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
	if (!init) {
		puts(dlerror());
		return 1;
	}
	printf("cuInit: %d\n", init(0));
	return 0;
}
