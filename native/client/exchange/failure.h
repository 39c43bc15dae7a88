/* failure.h - what has failed (failure.c). */
#ifndef FARBUS_CLIENT_FAILURE_H
#define FARBUS_CLIENT_FAILURE_H

#include "../client.h"

/* The connection is lost: say so once, wake everybody. */
void client_session_fail(struct client_session *session, int error);
/* May this CUresult only be got rid of by ending the context? */
bool client_result_is_sticky(CUresult result);
/* Remember what ends a context; what it was given. */
CUresult client_context_note(CUcontext handle, CUresult result);
/* What was refused of what was posted in a context: told once. */
CUresult client_context_late(CUcontext handle);
/* Give up what is waited for; wait_lock is held.  Only the leader may, or anybody where
 * there is none: who reads may be writing to a waiter's memory, which is the waiter's
 * stack and is gone once it is told. */
void client_session_abandon(struct client_session *session);

#endif
