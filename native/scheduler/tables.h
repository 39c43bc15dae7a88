/* Rows of farbus/scheduler/phases/tables.py. */
#ifndef SCHEDULER_TABLES_H
#define SCHEDULER_TABLES_H

#include <stdint.h>

/* ARC: up to capacity units at one place, cost each. */
struct table_arc {
	int64_t source;
	int64_t place;
	int64_t tier;
	int64_t capacity;
	int64_t cost;
};

#endif
