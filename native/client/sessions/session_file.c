/* The session file: which servers a program has, and what proves that it may. */
#include "../ground/message.h"
#include "session_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../transport/sockets/bundle.h"

static bool hex_decode(const char *text, uint8_t *out, size_t bytes)
{
	if (strlen(text) != 2 * bytes)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		unsigned value;
		int used = 0;

		if (sscanf(text + 2 * i, "%2x%n", &value, &used) != 1 || used != 2)
			return false;
		out[i] = (uint8_t)value;
	}
	return true;
}

unsigned client_connections_decode(const char *text)
{
	_Static_assert(BUNDLE_CONNECTIONS < 10, "one digit");

	return text && *text >= '1' && *text <= (char)('0' + BUNDLE_CONNECTIONS) && !text[1]
		       ? (unsigned)(*text - '0') : 0;
}

int client_session_file_load(struct session_file *file, const char *path)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	ssize_t got;

	if (descriptor < 0) {
		int error = errno;

		client_message("open the session file %s: %s; %s", path, strerror(error), error == EACCES
			       ? "it is for another user: run the program as that one, in a container as root"
			       : "start the program with farbus run");
		return -error;
	}
	if (fstat(descriptor, &status) == 0 && (status.st_mode & 077)) {
		client_message("the session file %s can be read by others; it holds a secret: "
			       "chmod 600 it", path);
		close(descriptor);
		return -EPERM;
	}
	got = read(descriptor, file->text, sizeof(file->text) - 1);
	close(descriptor);
	if (got < 0)
		return -EIO;
	file->text[got] = 0;
	return 0;
}

int client_session_file_parse(struct session_file *file, const char *path)
{
	char *save = NULL;
	bool versioned = false, whole;

	for (char *line = strtok_r(file->text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct session_server *server = file->count ? &file->servers[file->count - 1] : NULL;
		char *words = NULL;
		const char *key = strtok_r(line, " \t", &words);

		if (!key || key[0] == '#')
			continue;
		if (strcmp(key, "farbus-session") == 0) {
			const char *version = strtok_r(NULL, " \t", &words);

			versioned = version && strcmp(version, "1") == 0;
		} else if (strcmp(key, "server") == 0) {
			if (file->count == CLIENT_SERVERS) {
				client_message("the session file %s names more than %d servers", path,
					       CLIENT_SERVERS);
				return -E2BIG;
			}
			server = &file->servers[file->count++];
			server->file = path;
			server->transport = strtok_r(NULL, " \t", &words);
			server->address = strtok_r(NULL, " \t", &words);
			server->port = strtok_r(NULL, " \t", &words);
		} else if (strcmp(key, "secret") == 0 && server && !server->has_secret) {
			const char *hex = strtok_r(NULL, " \t", &words);

			server->has_secret = hex && hex_decode(hex, server->secret, sizeof(server->secret));
		} else if (strcmp(key, "connections") == 0 && server) {
			server->connections = client_connections_decode(strtok_r(NULL, " \t", &words));
		} else if (strcmp(key, "rdma") == 0 && server) {
			const char *word = strtok_r(NULL, " \t", &words);

			server->rdma = word && strcmp(word, "on") == 0;
		}
	}
	whole = versioned && file->count;
	for (unsigned i = 0; i < file->count; i++)
		whole = whole && file->servers[i].transport && file->servers[i].address &&
			file->servers[i].has_secret;
	if (!whole) {
		client_message("the session file %s is malformed or of a newer version; "
			       "start the program with farbus run", path);
		return -EINVAL;
	}
	return 0;
}
