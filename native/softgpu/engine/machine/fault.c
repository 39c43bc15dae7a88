/* fault.c - a kernel's mistake, a bad address first of all, becomes the launch's error. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../running.h"

static struct sigaction previous_segv, previous_bus;
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

/* initial-exec: the first touch of lazily made TLS allocates, which a signal
 * handler must not. */
static __thread struct slot *volatile armed __attribute__((tls_model("initial-exec")));

static void pass_on(int signal_number, siginfo_t *info, void *context)
{
	const struct sigaction *previous =
		signal_number == SIGSEGV ? &previous_segv : &previous_bus;

	if (previous->sa_flags & SA_SIGINFO) {
		previous->sa_sigaction(signal_number, info, context);
	} else if (previous->sa_handler == SIG_IGN && info->si_code <= 0) {
		return;
	} else if (previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) {
		/* Back to the default: the instruction faults again and ends the process, and what was sent is sent again. */
		signal(signal_number, SIG_DFL);
		if (info->si_code <= 0)
			raise(signal_number);
	} else {
		previous->sa_handler(signal_number);
	}
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
	struct slot *slot = armed;
	sigset_t unblock;

	/* si_code <= 0: sent by a process, not by an access. */
	if (!slot || info->si_code <= 0) {
		pass_on(signal_number, info, context);
		return;
	}
	armed = NULL;
	slot->status = ENGINE_ILLEGAL_ADDRESS;
	slot->fault_address = (uintptr_t)info->si_addr;
	sigemptyset(&unblock);
	sigaddset(&unblock, signal_number);
	pthread_sigmask(SIG_UNBLOCK, &unblock, NULL);
	longjmp(slot->recover, 2);
}

static void install_one(int signal_number, struct sigaction *previous)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	struct sigaction current;

	/* The program may have set its own handler since: stand in front of it again. */
	if (sigaction(signal_number, NULL, &current) ||
	    ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault))
		return;
	*previous = current;
	sigemptyset(&action.sa_mask);
	sigaction(signal_number, &action, NULL);
}

void fault_handlers_install(void)
{
	pthread_mutex_lock(&install_mutex);
	install_one(SIGSEGV, &previous_segv);
	install_one(SIGBUS, &previous_bus);
	pthread_mutex_unlock(&install_mutex);
}

void fault_arm(struct slot *slot)
{
	armed = slot;
}

struct slot *fault_disarm(void)
{
	struct slot *slot = armed;

	armed = NULL;
	return slot;
}

/* ---- errors that the engine finds ---- */

void warp_fail(struct warp *warp, enum engine_status status, const char *format, ...)
{
	struct slot *slot = warp->block->slot;
	const struct block *block = warp->block;
	va_list arguments;
	int used;

	slot->status = status;
	va_start(arguments, format);
	used = vsnprintf(slot->why.text, sizeof(slot->why.text), format, arguments);
	va_end(arguments);
	if (used >= 0 && used < (int)sizeof(slot->why.text))
		snprintf(slot->why.text + used, sizeof(slot->why.text) - (size_t)used,
			 " in " ENGINE_NAME " block (%u,%u,%u) warp %u", warp->frame->function->name,
			 block->index[0], block->index[1], block->index[2], warp->index);
	longjmp(slot->recover, 1);
}
