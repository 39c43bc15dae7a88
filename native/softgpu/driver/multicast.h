/* multicast.h - what a team of devices makes of the memory that each binds.
 *
 * A team is a multicast object: a file that all processes that have it map, which says who belongs to it and whose
 * memory is bound where.  All with the lock of virtual_memory.h, unless it says otherwise.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_MULTICAST_H
#define FARBUS_SOFTGPU_DRIVER_MULTICAST_H

#include "../engine/engine.h"
#include "virtual_memory.h"

struct driver_team;

/* A new one, with a reference; NULL: memory is short. */
struct driver_team *driver_team_make(const CUmulticastObjectProp *properties);

/* The team of a file that was imported, with one more reference; NULL: it is no team's, or memory is short. */
struct driver_team *driver_team_import(int fd);
void driver_team_hold(struct driver_team *team);
void driver_team_drop(struct driver_team *team);
size_t driver_team_size(const struct driver_team *team);
bool driver_team_is_shareable(const struct driver_team *team);
/* Its file, which stays the team's. */
int driver_team_file(const struct driver_team *team);
/* A device of the team that this process sees, or NULL. */
struct driver_device *driver_team_device(const struct driver_team *team);
/* A device belongs to it from now on. */
CUresult driver_team_add(struct driver_team *team, const struct driver_device *device);
/* Wait until all devices belong to it.  Without the lock, which is let go meanwhile: the caller has a reference. */
void driver_team_wait(struct driver_team *team);
/* Where addresses lead that begin `offset` bytes behind the team's first; base is such an offset, too.  NULL, or why
 * they lead nowhere. */
const char *driver_team_find(struct driver_team *team, size_t offset, struct engine_replicas *found);
/* The part's device binds it; the part is taken over also where that fails. */
CUresult driver_team_bind(struct driver_team *team, size_t offset, size_t size, struct driver_part *part);
/* No longer; as it was bound. */
CUresult driver_team_unbind(struct driver_team *team, const struct driver_device *device, size_t offset,
			    size_t size);

#endif
