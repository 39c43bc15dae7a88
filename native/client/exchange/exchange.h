/* exchange.h - requests: posted, called, and the copies whose bytes come later (exchange.c). */
#ifndef FARBUS_CLIENT_EXCHANGE_H
#define FARBUS_CLIENT_EXCHANGE_H

#include "../handles/route.h"

/* These go where the handles in `fixed` belong; where those are of two servers the
 * result is CUDA_ERROR_INVALID_HANDLE, as with objects of two contexts. */
CUresult client_post(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
		     size_t tail_bytes);
/* The same for what puts work into a stream: while anything is captured, the result is the driver's. */
CUresult client_post_work(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail, size_t tail_bytes);
/* Of what has been posted on the route, where that is known already: the driver's result while anything is captured. */
CUresult client_confirm(const struct client_route *route);
/* The same with a tail that may be read where it lies until it is settled. */
CUresult client_post_lent(enum wire_op op, const void *fixed, size_t fixed_bytes, const void *tail,
			  size_t tail_bytes);
void client_settle(const void *at, size_t bytes);
CUresult client_call(enum wire_op op, const void *fixed, size_t fixed_bytes, void *reply,
		     size_t reply_bytes);
/* A call with a tail in either direction, or whose bytes go to a target.  The
 * caller sets reply, reply_bytes, want_tail and target of `wait`. */
CUresult client_call_wide(const struct client_request *request, struct client_wait *wait);
/* The same to where the caller says. */
CUresult client_call_to(const struct client_route *route, const struct client_request *request,
			struct client_wait *wait);
CUresult client_post_to(const struct client_route *route, const struct client_request *request);
/* The same; `on_sequence` is told the request's sequence before anything of it can come back. */
CUresult client_post_registered(const struct client_route *route, const struct client_request *request,
				void (*on_sequence)(void *opaque, uint64_t sequence), void *opaque);
CUresult client_post_on(const struct client_route *route, enum wire_op op, const void *fixed,
			size_t fixed_bytes, const void *tail, size_t tail_bytes);
/* What was posted leaves now.  0, or -errno. */
int client_flush(struct client_session *session);
/* A call of the shim's own: what it reports of earlier work is still the program's to be told.
 * The call's own result. */
CUresult client_call_own(const struct client_route *route, const struct client_request *request,
			 struct client_wait *wait);
/* No thread of the program reads the inbox any more (pages.h): whoever reads for all must not be
 * interrupted by a handler that waits for a page. */
void client_session_unlead(struct client_session *session);
/* Ask for the legacy stream of the route's context: the answer comes behind all that was sent before, and an error that
 * has ended the context is noted. */
void client_query_legacy(const struct client_route *route);
/* Post a request whose answer is data for `target`, which it takes over. */
CUresult client_post_target(const struct client_request *request, struct client_target *target);
CUresult client_post_target_to(const struct client_route *route, const struct client_request *request,
			       struct client_target *target);

#endif
