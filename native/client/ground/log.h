/* log.h - the log that programs ask for (log.c). */
#ifndef FARBUS_CLIENT_LOG_H
#define FARBUS_CLIENT_LOG_H

#include <stddef.h>

/* Keep a line for cuLogs*, and tell those who have asked. */
void client_log(const char *line, size_t length);
/* This thread reads for all, so that it can't call and wait for a reply; it does no longer: tell callbacks what was
 * logged meanwhile. */
void client_log_lead(void);
void client_log_led(void);

#endif
