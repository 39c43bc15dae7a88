/* exports.h - memory and pools by descriptors: those that were given out (exports.c). */
#ifndef FARBUS_CLIENT_EXPORTS_H
#define FARBUS_CLIENT_EXPORTS_H

#include <sys/types.h>

#include "../client.h"

struct client_export {
	struct client_export *next;
	struct client_session *session;
	uint64_t token[4];
	int watch;			/* the end that is kept; -1: the program has closed that, too */
	dev_t device;			/* of it: whether the number is still its */
	ino_t inode;
};

void client_export_add(struct client_export *export);
/* Have its server close what it keeps for it.  false: the supervisor has not answered an earlier question yet, and has to
 * be told later. */
bool client_export_drop(struct client_session *session, const uint64_t token[4]);

/* Have servers close what they keep for descriptors of which the program has closed the last. */
void client_descriptors_look(void);
/* The child of a fork, behind clofork_child: it keeps none of this process's ends. */
void client_descriptors_child(void);

#endif
