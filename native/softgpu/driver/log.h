/* log.h - the log: each line that this driver says on stderr (driver_say), for those who ask by cuLogs*. */
#ifndef FARBUS_SOFTGPU_DRIVER_LOG_H
#define FARBUS_SOFTGPU_DRIVER_LOG_H

#include "abi.h"

/* Say one line, without its end, on stderr and in the log, whose callbacks it may
 * find while locks are held: they are told, and can't ask the driver for anything. */
__attribute__((format(printf, 1, 2)))
void driver_say(const char *format, ...);

/* Have a function told of each line; CUDA_ERROR_NOT_PERMITTED in such a function. */
CUresult driver_log_register(CUlogsCallback function, void *opaque, CUlogsCallbackHandle *handle);
/* It has returned where it ran. */
CUresult driver_log_unregister(CUlogsCallbackHandle handle);

/* Lines are numbered as they come, and the last ones are kept.  All with the lock. */
void driver_log_lock(void);
void driver_log_unlock(void);
/* The number of the next one. */
unsigned driver_log_count(void);
/* The first one that is asked for, NULL: of all, and still there. */
unsigned driver_log_first(const CUlogIterator *iterator);
const char *driver_log_line(unsigned number);

#endif
