/* Preloaded: who has sent a reply of the opcode SENDS_LAST does not go on, as a thread that is taken off its processor. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Where native/wire/frame.h has it, and what marks a reply. */
#define OPCODE_AT 4
#define REPLY 0x8000

ssize_t send(int descriptor, const void *data, size_t bytes, int flags)
{
	ssize_t (*next)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
	ssize_t sent = next(descriptor, data, bytes, flags);
	uint16_t opcode = 0;

	if (bytes >= OPCODE_AT + sizeof(opcode))
		memcpy(&opcode, (const char *)data + OPCODE_AT, sizeof(opcode));
	while (sent > 0 && opcode == (REPLY | atoi(getenv("SENDS_LAST"))))
		pause();
	return sent;
}
