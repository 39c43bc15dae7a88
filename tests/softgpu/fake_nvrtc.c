/* A stand-in for NVIDIA's NVRTC: knows two architectures, and tells what it was asked. */
#include <stdio.h>
#include <string.h>

static char asked[256];
static int is_virtual;

const char *nvrtcGetErrorString(int result)
{
	return result ? "an error" : "none";
}

int nvrtcGetNumSupportedArchs(int *count)
{
	*count = 2;
	return 0;
}

int nvrtcGetSupportedArchs(int *architectures)
{
	architectures[0] = 75;
	architectures[1] = 90;
	return 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *options)
{
	(void)program;
	asked[0] = 0;
	is_virtual = 0;
	for (int i = 0; i < count; i++) {
		snprintf(asked + strlen(asked), sizeof(asked) - strlen(asked), "%s ", options[i]);
		is_virtual |= strstr(options[i], "compute_") != NULL;
	}
	return 0;
}

int nvrtcGetPTXSize(void *program, size_t *bytes)
{
	(void)program;
	*bytes = strlen(asked) + 1;
	return 0;
}

int nvrtcGetPTX(void *program, char *text)
{
	(void)program;
	strcpy(text, asked);
	return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
	(void)program;
	*bytes = is_virtual ? 0 : 4992;
	return 0;
}
