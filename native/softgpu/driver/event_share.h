/* event_share.h - events that several processes use (CU_EVENT_INTERPROCESS).
 *
 * They share memory that says of the last records who made them, and which are reached.
 * Who died in between counts as having got there: its work is gone.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_EVENT_SHARE_H
#define FARBUS_SOFTGPU_DRIVER_EVENT_SHARE_H

#include "queue.h"

struct driver_shared_event;

/* NULL: no memory, or no descriptor. */
struct driver_shared_event *driver_shared_event_make(void);
/* That of a file of another process, which is taken over; NULL: it is none, or memory is short. */
struct driver_shared_event *driver_shared_event_open(int fd);
/* Its file, which stays its own. */
int driver_shared_event_file(const struct driver_shared_event *shared);
void driver_shared_event_hold(struct driver_shared_event *shared);
void driver_shared_event_drop(struct driver_shared_event *shared);

/* This process records it: the number of the record. */
uint64_t driver_shared_event_record(struct driver_shared_event *shared);
/* The record is reached; wakes whoever waits. */
void driver_shared_event_reach(struct driver_shared_event *shared, uint64_t number);
/* The last record, by anybody; 0: none yet. */
uint64_t driver_shared_event_last(const struct driver_shared_event *shared);
bool driver_shared_event_is_reached(struct driver_shared_event *shared, uint64_t number);
void driver_shared_event_wait(struct driver_shared_event *shared, uint64_t number);
/* Let the stream's later work wait for it. */
CUresult driver_shared_event_follow(struct CUstream_st *stream, struct driver_shared_event *shared,
				    uint64_t number);

#endif
