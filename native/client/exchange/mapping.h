/* mapping.h - whether the server can have pinned memory, too, and kernels use it (mapping.c). */
#ifndef FARBUS_CLIENT_MAPPING_H
#define FARBUS_CLIENT_MAPPING_H

#include "../client.h"

/* The session that shares pinned memory; NULL: none.  With several servers a copy may be ordered
 * behind another server's, which only this process sees. */
struct client_session *client_pinned_session(void);
/* Can the server have it at the address that it has here, so that kernels use it? */
bool client_pinned_maps(void);
/* The session whose server would have kernels use it if it were not older; NULL: there is none. */
const struct client_session *client_pinned_unmapped(void);
/* What has a program's pinned memory be mapped; with it, what the program registers is not, nor what only one side can
 * have. */
struct client_hint {
	char text[320];
};
struct client_hint client_mapping_hint(void);
/* The program has pinned memory that is not mapped; some of it CUDA has allocated. */
void client_pinned_note(unsigned flags);
void client_pinned_alone(void);
/* Say once, where the program has had pinned memory, that its kernels can't use it. */
void client_pinned_after_illegal_address(void);

#endif
