/* thread.h - threads of the program: what is current to each, and how their calls begin (thread.c). */
#ifndef FARBUS_CLIENT_THREAD_H
#define FARBUS_CLIENT_THREAD_H

#include "../client.h"

/* Most contexts that one thread may push. */
#define CLIENT_CONTEXT_STACK 64

struct client_thread {
	bool registered;
	uint16_t lane;
	unsigned per_thread;		/* inside a _ptds or _ptsz entry */
	bool host_function;		/* runs one for a stream: no CUDA call is allowed */
	bool managed;			/* holds the lock of pages.h */
	unsigned guards;		/* client_guard_begin, nested */
	sigset_t signals;		/* blocked before the first of them */
	unsigned depth;
	CUcontext contexts[CLIENT_CONTEXT_STACK];
	CUstreamCaptureMode capture_mode;
};

struct client_thread *client_thread(void);

/* Around holding what a page of managed memory may need to come here: a handler of the
 * program's that touched it then would wait for its own thread.  Blocks signals where there
 * is such memory, else it costs a look.  They nest. */
void client_guard_begin(void);
void client_guard_end(void);
/* Once, by cuInit: `ends` is called on each thread of the program's that has used CUDA when it ends. */
int client_threads_init(void (*ends)(void *thread));
/* Where another thread ends the program nothing has failed, and this one is not told so, which might end the program with
 * its error: it waits as it would for a GPU.  But a destructor may wait for it, so not for ever. */
void client_end_await(void);
/* Its lane may be another's from here on. */
void client_thread_leave(struct client_thread *thread);

void client_per_thread_begin(void);
void client_per_thread_end(void);

/* The current context, or NULL. */
struct client_context *client_context_current(void);
struct client_context *client_context_get(CUcontext handle);

/* Begin a call that needs a context: initialised, current, not destroyed, no
 * sticky error.  client_enter_any: initialised and connected. */
CUresult client_enter(void);
CUresult client_enter_any(void);
/* The same as client_enter, telling the current context on success. */
CUresult client_enter_context(struct client_context **current);

#endif
