/* mutate.c - the driver of all fuzzers: seeds, changed at random, for a time.
 *
 * Usage: FUZZER SECONDS LAST [SEED FILE...]
 *        FUZZER 0 LAST		tries the input in the file LAST once
 * The order of inputs is the same in every run.  LAST always holds the input that is
 * being tried, also after a crash.  An input that takes more than INPUT_MAX_S
 * seconds ends the fuzzer by SIGALRM.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define INPUT_BYTES_MAX 65536u
#define CORPUS_MAX 256u
#define CHANGES_MAX 8u
#define INPUT_MAX_S 20u

/* Of LAST. */
struct kept_input {
	uint32_t bytes;
	uint8_t data[INPUT_BYTES_MAX];
};

static struct fuzz_seed corpus[CORPUS_MAX];
static size_t corpus_count;
static uint64_t random_state = 0x9e3779b97f4a7c15u;

/* xorshift64* (S. Vigna, "An experimental exploration of Marsaglia's xorshift
 * generators, scrambled", 2016). */
static uint32_t random_below(size_t bound)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return bound ? (uint32_t)((random_state * 0x2545f4914f6cdd1du >> 32) % bound) : 0;
}

static void corpus_add(const void *data, size_t bytes)
{
	if (corpus_count < CORPUS_MAX && bytes <= INPUT_BYTES_MAX)
		corpus[corpus_count++] = (struct fuzz_seed){ data, bytes };
}

static void corpus_read(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data = malloc(INPUT_BYTES_MAX);

	if (!file || !data) {
		perror(path);
		exit(2);
	}
	corpus_add(data, fread(data, 1, INPUT_BYTES_MAX, file));
	fclose(file);
}

/* Replace `old` bytes at `at` by `bytes` bytes of `data`. */
static void splice(struct kept_input *input, uint32_t at, uint32_t old, const void *data,
		   uint32_t bytes)
{
	static uint8_t copy[INPUT_BYTES_MAX];

	if (old > input->bytes - at)
		old = input->bytes - at;
	if (input->bytes - old + bytes > INPUT_BYTES_MAX)
		return;
	memcpy(copy, data, bytes);	/* it may be a part of the input itself */
	memmove(input->data + at + bytes, input->data + at + old, input->bytes - at - old);
	memcpy(input->data + at, copy, bytes);
	input->bytes += bytes - old;
}

static void change(struct kept_input *input)
{
	static const uint64_t edges[] = {
		0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
		0x7fffffffffffffff, 0x8000000000000000, UINT64_MAX, 16, 64, 4096,
	};
	uint32_t at = random_below(input->bytes + 1), length = 1u << random_below(10);
	const struct fuzz_seed *other = &corpus[random_below(corpus_count)];
	uint32_t from = random_below(input->bytes + 1);
	size_t words = 0;
	char number[24];

	if (length > input->bytes - from)
		length = input->bytes - from;
	switch (random_below(8)) {
	case 0:
		if (at < input->bytes)
			input->data[at] ^= (uint8_t)(1u << random_below(8));
		break;
	case 1:
		if (at < input->bytes)
			input->data[at] = (uint8_t)random_below(256);
		break;
	case 2:
		splice(input, at, 1u << random_below(4),
		       &edges[random_below(sizeof(edges) / sizeof(edges[0]))],
		       1u << random_below(4));
		break;
	case 3:
		splice(input, at, random_below(32), "", 0);
		break;
	case 4:
		splice(input, at, random_below(2) * length, input->data + from, length);
		break;
	case 5:
		from = random_below(other->bytes + 1);
		length = random_below(other->bytes - from + 1);
		splice(input, at, random_below(2) * length, (const uint8_t *)other->data + from,
		       length);
		break;
	case 6:
		while (fuzz_words[words])
			words++;
		if (words) {
			const char *word = fuzz_words[random_below(words)];

			splice(input, at, random_below(2) * (uint32_t)strlen(word), word,
			       (uint32_t)strlen(word));
		}
		break;
	default:
		snprintf(number, sizeof(number), "%lld",
			 (long long)edges[random_below(sizeof(edges) / sizeof(edges[0]))]);
		splice(input, at, random_below(4), number, (uint32_t)strlen(number));
	}
}

static void try(const struct kept_input *input)
{
	/* Of the very size, so that a read behind its end is seen. */
	uint8_t *data = malloc(input->bytes + !input->bytes);

	if (!data)
		abort();
	memcpy(data, input->data, input->bytes);
	alarm(INPUT_MAX_S);
	fuzz_one(data, input->bytes);
	alarm(0);
	free(data);
}

int main(int argc, char **argv)
{
	struct kept_input *input;
	unsigned long tried = 0;
	time_t end;
	int file;

	if (argc < 3) {
		fprintf(stderr, "usage: %s SECONDS LAST [SEED FILE...]\n", argv[0]);
		return 2;
	}
	file = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0 || ftruncate(file, sizeof(*input))) {
		perror(argv[2]);
		return 2;
	}
	input = mmap(NULL, sizeof(*input), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (input == MAP_FAILED) {
		perror(argv[2]);
		return 2;
	}
	if (!atoi(argv[1])) {
		if (input->bytes <= INPUT_BYTES_MAX)
			try(input);
		return 0;
	}
	for (const struct fuzz_seed *seed = fuzz_seeds; seed->bytes; seed++)
		corpus_add(seed->data, seed->bytes);
	for (int k = 3; k < argc; k++)
		corpus_read(argv[k]);
	end = time(NULL) + atoi(argv[1]);
	for (; time(NULL) < end; tried++) {
		const struct fuzz_seed *seed = &corpus[tried < corpus_count ? tried :
						       random_below(corpus_count)];

		input->bytes = (uint32_t)seed->bytes;
		memcpy(input->data, seed->data, seed->bytes);
		/* The seeds as they are first. */
		for (uint32_t k = tried < corpus_count ? 0 : 1 + random_below(CHANGES_MAX); k; k--)
			change(input);
		try(input);
	}
	printf("%s: %lu inputs, no finding\n", argv[0], tried);
	return 0;
}
