#include "tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int64_t tables_in_order(int64_t count, const int64_t *value, int64_t *different, int64_t *row)
{
	int64_t slots = 16, found = 0;
	int bits = 4;

	for (; slots < 2 * count; slots *= 2)
		bits++;
	/* Rows of different, by Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4); -1 for none. */
	int32_t *slot = malloc((size_t)slots * sizeof(*slot));

	if (!slot || count > INT32_MAX) {
		free(slot);
		return -ENOMEM;
	}
	memset(slot, 0xff, (size_t)slots * sizeof(*slot));
	for (int64_t at = 0; at < count; at++) {
		int64_t hash = (int64_t)((uint64_t)value[at] * UINT64_C(11400714819323198485) >> (64 - bits));

		while (slot[hash] >= 0 && different[slot[hash]] != value[at])
			hash = (hash + 1) & (slots - 1);
		if (slot[hash] < 0) {
			slot[hash] = (int32_t)found;
			different[found++] = value[at];
		}
		row[at] = slot[hash];
	}
	free(slot);
	return found;
}

void tables_before(int64_t rows, const int64_t *queue, const int64_t *count, int64_t *sum)
{
	int64_t ahead = 0;

	for (int64_t row = 0; row < rows; row++) {
		if (row && queue[row] != queue[row - 1])
			ahead = 0;
		sum[row] = ahead;
		ahead += count[row];
	}
}

int tables_limited(int64_t rows, const int64_t *queue, const int64_t *count, int64_t queues, const int64_t *limit,
		   int64_t *cut)
{
	int64_t left = 0;

	for (int64_t row = 0; row < rows; row++) {
		if (queue[row] < 0 || queue[row] >= queues)
			return -EINVAL;
		if (!row || queue[row] != queue[row - 1])
			left = limit[queue[row]];
		cut[row] = count[row] < left ? count[row] : left;
		if (cut[row] < 0)
			cut[row] = 0;
		left -= cut[row];
	}
	return 0;
}

int64_t tables_matched(int64_t claims, const int64_t *claim_count, int64_t stocks, const int64_t *stock_count,
		       int64_t *claim, int64_t *stock, int64_t *units, int64_t *skipped)
{
	int64_t wanting = 0, giving = 0, served = 0, given = 0, pairs = 0;

	while (wanting < claims && giving < stocks) {
		int64_t wanted = claim_count[wanting] - served, there = stock_count[giving] - given;
		int64_t both = wanted < there ? wanted : there;

		if (both > 0) {
			claim[pairs] = wanting;
			stock[pairs] = giving;
			units[pairs] = both;
			skipped[pairs++] = given;
		}
		served += both;
		given += both;
		if (both == wanted) {
			wanting++;
			served = 0;
		}
		if (both == there) {
			giving++;
			given = 0;
		}
	}
	return pairs;
}

void tables_ranges(int64_t ranges, const int64_t *first, const int64_t *length, int64_t *number)
{
	for (int64_t range = 0; range < ranges; range++)
		for (int64_t at = 0; at < length[range]; at++)
			*number++ = first[range] + at;
}
