/* Images of earlier programs: a directory of files named by the SHA-256 of what they hold.
 *
 * The directory is one user's (docs/decisions/0017-images-are-kept-per-user.md).  Nothing in it
 * is believed: a file is read whole and its digest compared, so that a torn, damaged or planted
 * one is as good as none and is removed.  A file is written under another name and then renamed;
 * what a killed process leaves of that is removed by a later sweep.  Whatever fails, a full
 * disk as well, means that the image is not kept, never that it is not loaded.
 */
#include "images.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../wire/image.h"

/* SHA-256 in hexadecimal digits, and a NUL. */
#define NAME_BYTES (2 * WIRE_DIGEST_BYTES + 1)
/* A file that is written longer than this was left by a process that was killed. */
#define UNFINISHED_S 3600
/* Each process sweeps when it has written this share of the limit: so far can a directory
 * grow beyond it, by each process that writes. */
#define SWEEP_SHARE 16
/* What a sweep leaves: so much less than the limit that the next one is not due at once. */
#define KEEP_SHARE 8
/* Most files: those that are sent unasked are small, and a directory has an end. */
#define FILES_LIMIT 65536u

struct server_images {
	int directory;
	uint64_t limit;			/* bytes of all files together */
	pthread_mutex_t lock;		/* over what follows */
	uint64_t written;		/* since the last sweep */
	unsigned count;			/* files that this process began to write */
};

struct server_images *server_images_open(const char *path, uint64_t limit)
{
	int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct server_images *images;
	struct stat status;

	if (directory < 0)
		return NULL;
	/* Nobody else may put anything there, or see what is. */
	images = fstat(directory, &status) == 0 && status.st_uid == geteuid() &&
				 !(status.st_mode & (S_IRWXG | S_IRWXO))
			 ? calloc(1, sizeof(*images))
			 : NULL;
	if (!images) {
		close(directory);
		return NULL;
	}
	images->directory = directory;
	images->limit = limit;
	/* The first file that is written here is followed by a sweep. */
	images->written = limit / SWEEP_SHARE;
	pthread_mutex_init(&images->lock, NULL);
	return images;
}

static void name_make(const uint8_t digest[WIRE_DIGEST_BYTES], char name[NAME_BYTES])
{
	for (unsigned i = 0; i < WIRE_DIGEST_BYTES; i++)
		snprintf(name + 2 * i, 3, "%02x", digest[i]);
}

bool server_image_is(const void *data, size_t bytes, const uint8_t digest[WIRE_DIGEST_BYTES])
{
	uint8_t found[WIRE_DIGEST_BYTES];

	wire_digest(data, bytes, found);
	return memcmp(found, digest, sizeof(found)) == 0;
}

static bool read_all(int file, uint8_t *data, size_t bytes)
{
	while (bytes) {
		ssize_t got = read(file, data, bytes);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		data += got;
		bytes -= (size_t)got;
	}
	return true;
}

static bool write_all(int file, const uint8_t *data, size_t bytes)
{
	while (bytes) {
		ssize_t put = write(file, data, bytes);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return false;
		data += put;
		bytes -= (size_t)put;
	}
	return true;
}

void *server_image_find(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
			uint64_t bytes)
{
	struct stat status;
	char name[NAME_BYTES];
	uint8_t *data = NULL;
	int file;

	if (!images || !bytes || bytes > WIRE_IMAGE_BYTES)
		return NULL;
	name_make(digest, name);
	file = openat(images->directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (file < 0)
		return NULL;
	if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
	    (uint64_t)status.st_size == bytes)
		/* Some bytes behind the end, as behind an image that was sent. */
		data = calloc(1, bytes + SERVER_IMAGE_SLACK);
	if (data && (!read_all(file, data, bytes) || !server_image_is(data, bytes, digest))) {
		free(data);
		data = NULL;
		(void)unlinkat(images->directory, name, 0);
	}
	if (data)
		(void)futimens(file, NULL);	/* when it was last used */
	close(file);
	return data;
}

/* ---- keeping within the limit ---- */

struct kept {
	char name[NAME_BYTES];
	uint64_t bytes;
	struct timespec used;
};

static int kept_older_first(const void *left, const void *right)
{
	const struct timespec *a = &((const struct kept *)left)->used;
	const struct timespec *b = &((const struct kept *)right)->used;

	if (a->tv_sec != b->tv_sec)
		return a->tv_sec < b->tv_sec ? -1 : 1;
	return a->tv_nsec < b->tv_nsec ? -1 : a->tv_nsec > b->tv_nsec;
}

static bool name_is_digest(const char *name)
{
	return strlen(name) == NAME_BYTES - 1 && strspn(name, "0123456789abcdef") == NAME_BYTES - 1;
}

/* As server_image_keep calls what is not whole yet. */
static bool name_is_unfinished(const char *name)
{
	return name[0] == '.' && strspn(name + 1, "0123456789.") == strlen(name + 1);
}

/* One entry of the directory: an image, or what a killed process has left.  Anything else is not ours to remove. */
static bool sweep_look(struct server_images *images, const char *name, struct kept *kept)
{
	bool unfinished = name_is_unfinished(name);
	struct stat status;

	if ((!unfinished && !name_is_digest(name)) ||
	    fstatat(images->directory, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode))
		return false;
	if (unfinished) {
		if (status.st_mtim.tv_sec < time(NULL) - UNFINISHED_S)
			(void)unlinkat(images->directory, name, 0);
		return false;
	}
	memcpy(kept->name, name, NAME_BYTES);
	kept->bytes = (uint64_t)status.st_size;
	kept->used = status.st_mtim;
	return true;
}

/* Remove what was not used for longest, until there is room for more. */
static void sweep(struct server_images *images)
{
	struct kept *all = calloc(FILES_LIMIT, sizeof(*all));
	int again = openat(images->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = again < 0 ? NULL : fdopendir(again);
	uint64_t total = 0, room = images->limit - images->limit / KEEP_SHARE;
	size_t count = 0, first = 0;
	struct dirent *entry;

	if (again >= 0 && !directory)
		close(again);
	while (all && directory && count < FILES_LIMIT && (entry = readdir(directory))) {
		if (!sweep_look(images, entry->d_name, &all[count]))
			continue;
		total += all[count++].bytes;
	}
	if (total > images->limit || count == FILES_LIMIT) {
		qsort(all, count, sizeof(*all), kept_older_first);
		for (; first < count && (total > room || count - first > FILES_LIMIT / 2); first++) {
			(void)unlinkat(images->directory, all[first].name, 0);
			total -= all[first].bytes;
		}
	}
	if (directory)
		closedir(directory);
	free(all);
}

void server_image_keep(struct server_images *images, const uint8_t digest[WIRE_DIGEST_BYTES],
		       const void *data, uint64_t bytes)
{
	char name[NAME_BYTES], fresh[64];
	bool whole, due;
	int file;

	if (!images || bytes > images->limit / KEEP_SHARE)
		return;
	name_make(digest, name);
	pthread_mutex_lock(&images->lock);
	snprintf(fresh, sizeof(fresh), ".%ld.%u", (long)getpid(), images->count++);
	pthread_mutex_unlock(&images->lock);
	(void)unlinkat(images->directory, fresh, 0);
	file = openat(images->directory, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file < 0)
		return;
	whole = write_all(file, data, bytes);
	whole = close(file) == 0 && whole;
	if (!whole || renameat(images->directory, fresh, images->directory, name)) {
		(void)unlinkat(images->directory, fresh, 0);
		return;
	}
	pthread_mutex_lock(&images->lock);
	images->written += bytes;
	due = images->written > images->limit / SWEEP_SHARE;
	if (due)
		images->written = 0;
	pthread_mutex_unlock(&images->lock);
	if (due)
		sweep(images);
}
