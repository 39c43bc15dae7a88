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

/*
 * Writes the different ones of count values in the order of their first occurrence, and the row
 * there of each.  Returns their number, or -ENOMEM.
 */
int64_t tables_in_order(int64_t count, const int64_t *value, int64_t *different, int64_t *row);

/* Writes for each row the sum of count over the earlier rows of the same queue; rows are sorted by queue. */
void tables_before(int64_t rows, const int64_t *queue, const int64_t *count, int64_t *sum);

/*
 * Writes counts cut so that the rows of queue q, which are next to each other, sum to no more than
 * limit[q]; the first keep theirs.  Returns 0, or -EINVAL for a queue that has no limit.
 */
int tables_limited(int64_t rows, const int64_t *queue, const int64_t *count, int64_t queues, const int64_t *limit,
		   int64_t *cut);

/*
 * Hands stock out to claims, both counts, in order.  Writes for each pair that meets the row of
 * the claim, that of the stock, the units, and how many of the stock's row went before.  There is
 * room for as many pairs as there are rows in both.  Returns their number.
 */
int64_t tables_matched(int64_t claims, const int64_t *claim_count, int64_t stocks, const int64_t *stock_count,
		       int64_t *claim, int64_t *stock, int64_t *units, int64_t *skipped);

/* Writes the numbers of all ranges of a first number and a length, one range after the other. */
void tables_ranges(int64_t ranges, const int64_t *first, const int64_t *length, int64_t *number);

#endif
