/* What the driver says is in its log, and its callbacks have heard it when the call returns. */
#include "driver.h"

CUresult cuLogsRegisterCallback(CUlogsCallback, void *, CUlogsCallbackHandle *);
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle);
CUresult cuLogsCurrent(CUlogIterator *, unsigned int);
CUresult cuLogsDumpToFile(CUlogIterator *, const char *, unsigned int);
CUresult cuLogsDumpToMemory(CUlogIterator *, char *, size_t *, unsigned int);

#define LINES 120	/* more than the log keeps */
#define KEPT 100

static unsigned heard;
static char last[1024];

static void hear(void *opaque, CUlogLevel level, char *message, size_t length)
{
	REQUIRE(opaque == last && level == CU_LOG_LEVEL_ERROR && length == strlen(message));
	REQUIRE(length < sizeof last);
	EXPECT(cuLogsRegisterCallback(hear, NULL, NULL), CUDA_ERROR_NOT_PERMITTED);
	EXPECT(cuLogsUnregisterCallback(NULL), CUDA_ERROR_NOT_PERMITTED);
	strcpy(last, message);
	heard++;
}

static void say(void)
{
	CUmodule module;

	EXPECT(cuModuleLoadData(&module, "no PTX"), CUDA_ERROR_INVALID_IMAGE);
}

/* A wrapper of a fatbin, behind which there is none. */
static void say_of_length(void)
{
	static const uint64_t wrapper[3] = { 1ull << 32 | 0x466243b1, 0, 0 };
	CUlibrary library;

	EXPECT(cuLibraryLoadData(&library, wrapper, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_INVALID_IMAGE);
}

static unsigned lines_of(const char *text)
{
	unsigned count = 0;

	for (; (text = strchr(text, '\n')); text++)
		count++;
	return count;
}

static void dumps(CUlogIterator from)
{
	static char text[25600];
	char path[] = "/tmp/farbus-log-XXXXXX";
	CUlogIterator at = from;
	size_t size = sizeof text, length = strlen(last);
	FILE *file;

	CHECK(cuLogsDumpToMemory(&at, text, &size, 0));
	REQUIRE(at == from + 1 && size == length && !strcmp(text, last));
	size = sizeof text;
	CHECK(cuLogsDumpToMemory(&at, text, &size, 0));
	REQUIRE(size == 0 && !*text);

	/* Of two lines the newest, where there is room for one; of none, nothing is taken. */
	say();
	at = from;
	size = length;
	EXPECT(cuLogsDumpToMemory(&at, text, &size, 0), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(size == 0 && at == from);
	size = length + 1;
	CHECK(cuLogsDumpToMemory(&at, text, &size, 0));
	REQUIRE(size == length && lines_of(text) == 1 && at == from + 2);

	/* What is gone is left out. */
	for (unsigned i = 0; i < LINES; i++)
		say();
	REQUIRE(close(mkstemp(path)) == 0);
	at = from;
	CHECK(cuLogsDumpToFile(&at, path, 0));
	REQUIRE(at == from + 2 + LINES);
	file = fopen(path, "r");
	REQUIRE(file);
	text[fread(text, 1, sizeof text - 1, file)] = '\0';
	fclose(file);
	unlink(path);
	REQUIRE(lines_of(text) == KEPT);
}

static void wrong_arguments(void)
{
	size_t none = 0, size = 25601;
	CUlogIterator at;
	char text[4];

	EXPECT(cuLogsRegisterCallback(NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsCurrent(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsCurrent(&at, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsDumpToFile(NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsDumpToFile(NULL, "/nonexistent/log", 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsDumpToMemory(NULL, text, &none, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsDumpToMemory(NULL, text, &size, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLogsDumpToMemory(NULL, NULL, &size, 0), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	CUdriverProcAddressQueryResult status;
	CUlogsCallbackHandle callback;
	CUlogIterator from, end;
	void *entry;

	(void)begin();
	/* PyTorch registers by the runtime, and takes it for its next call's error when that is not found. */
	CHECK(cuGetProcAddress("cuLogsRegisterCallback", &entry, 12090, 0, &status));
	CHECK(cuLogsRegisterCallback(hear, last, &callback));
	CHECK(cuLogsCurrent(&from, 0));
	say();
	REQUIRE(heard == 1 && strstr(last, "softgpu: module not loaded: "));
	CHECK(cuLogsCurrent(&end, 0));
	REQUIRE(end == from + 1);
	dumps(from);
	REQUIRE(heard == 2 + LINES);
	say_of_length();
	REQUIRE(heard == 3 + LINES && strstr(last, "an image is not loaded: there is no container"));
	CHECK(cuLogsUnregisterCallback(callback));
	EXPECT(cuLogsUnregisterCallback(callback), CUDA_ERROR_INVALID_VALUE);
	say();
	REQUIRE(heard == 3 + LINES);
	wrong_arguments();
	return 0;
}
