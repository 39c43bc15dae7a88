// random.h - what random programs share: numbers from a seed, and how far each stream has got, so that a model on
// the processor knows what a program may touch.
#ifndef FARBUS_TESTS_REMOTING_RANDOM_H
#define FARBUS_TESTS_REMOTING_RANDOM_H

#include "check.h"

#include <cstddef>
#include <cstdint>

// The legacy stream, and one that waits for nobody.
enum { STREAMS = 5, LEGACY = 0, BESIDE = 2 };

// Where each stream has got to, as far as one of them (or the processor) has waited for it.
struct clocks {
	uint64_t at[STREAMS];

	void join(const clocks &other)
	{
		for (int i = 0; i < STREAMS; i++)
			at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
	}
	bool covers(const clocks &other) const
	{
		for (int i = 0; i < STREAMS; i++)
			if (at[i] < other.at[i])
				return false;
		return true;
	}
};

static uint64_t state;
static clocks posted, behind[STREAMS], seen;

static unsigned next(size_t limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)((state >> 16) % limit);
}

// Everything that work posted to the stream now comes behind.
static clocks order(int stream)
{
	clocks all = behind[stream];

	for (int i = 0; i < STREAMS; i++)
		if (stream != BESIDE && i != BESIDE && (stream == LEGACY || i == LEGACY))
			all.join(behind[i]);
	return all;
}

#endif
