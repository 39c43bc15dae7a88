/* rounds.h - for fuzzers that make what they try of numbers: the numbers, and the rounds.
 *
 * Usage of such a fuzzer: NAME SECONDS LAST
 *                         NAME 0 LAST		the round whose number is in LAST, once
 * The same number gives the same round.
 */
#ifndef FARBUS_FUZZ_ROUNDS_H
#define FARBUS_FUZZ_ROUNDS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* splitmix64 (G. Steele et al., "Fast splittable pseudorandom number generators", 2014) */
static inline uint64_t random_of(uint64_t *state)
{
	uint64_t mixed = *state += 0x9e3779b97f4a7c15u;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
	return mixed ^ mixed >> 31;
}

/* Run rounds until the seconds are over; what main returns.  A round returns 0, or what
 * tells a finding apart from others. */
static inline int rounds_run(int argc, char **argv, const char *name, int (*round)(uint64_t number))
{
	unsigned long long number = 0;
	FILE *last;
	time_t end;
	int status;

	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS LAST\n", argv[0]);
		return 2;
	}
	if (atoi(argv[1]) == 0) {
		last = fopen(argv[2], "r");
		if (!last || fscanf(last, "%llu", &number) != 1)
			return 2;
		return round(number) != 0;
	}
	for (end = time(NULL) + atoi(argv[1]); time(NULL) < end; number++) {
		last = fopen(argv[2], "w");
		if (!last || fprintf(last, "%llu\n", number) < 0 || fclose(last))
			return 2;
		status = round(number);
		if (status) {
			fprintf(stderr, "%s: round %llu ended with status %#x\n", name, number,
				(unsigned)status);
			return 1;
		}
	}
	printf("%s: %llu rounds\n", name, number);
	return 0;
}

#endif
