/* print.c - the kernel's printf: arguments lie in memory as vprintf gets them. */
#include <stdio.h>
#include <string.h>

#include "../running.h"

#define TEXT_MAX 8192		/* of one call; CUDA's buffer is larger, its calls are not */
#define DIRECTIVE_MAX 48

struct print_buffer {
	char text[TEXT_MAX];
	size_t used;
};

static void append(struct print_buffer *buffer, const char *text, size_t length)
{
	if (length > TEXT_MAX - buffer->used)
		length = TEXT_MAX - buffer->used;
	memcpy(buffer->text + buffer->used, text, length);
	buffer->used += length;
}

static void appended(struct print_buffer *buffer, int written)
{
	size_t room = TEXT_MAX - buffer->used;

	if (written > 0)
		buffer->used += (size_t)written < room ? (size_t)written : room - 1;
}

/* Arguments are aligned to their own size: 4 or 8 bytes. */
static uint64_t next_argument(const char **arguments, size_t bytes)
{
	uintptr_t at = ((uintptr_t)*arguments + bytes - 1) & ~(uintptr_t)(bytes - 1);
	uint64_t value = 0;

	memcpy(&value, (const void *)at, bytes);
	*arguments = (const char *)(at + bytes);
	return value;
}

/* Copy "%-5.3" and the like without length modifiers; returns where the
 * conversion character stands, NULL when the format ends before. */
static const char *take_directive(const char *format, char directive[DIRECTIVE_MAX], bool *is_long,
				  const char **arguments)
{
	size_t used = 0;

	directive[used++] = *format++;
	*is_long = false;
	for (; *format && !strchr("diouxXeEfFgGaAcsp", *format); format++) {
		if (*format == '*') {
			int width = (int)next_argument(arguments, 4);

			used += (size_t)snprintf(directive + used, 13, "%d", width);
		} else if (strchr("lzjt", *format)) {
			*is_long = true;
		} else if (*format != 'h') {
			directive[used++] = *format;
		}
		if (used > DIRECTIVE_MAX - 18)
			return NULL;
	}
	directive[used] = 0;
	return *format ? format : NULL;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void print_argument(struct print_buffer *buffer, char *directive, char conversion,
			   bool is_long, const char **arguments)
{
	size_t end = strlen(directive), room = TEXT_MAX - buffer->used;
	char *to = buffer->text + buffer->used;
	const char *text;
	double number;
	uint64_t bits;

	if (strchr("eEfFgGaA", conversion)) {
		bits = next_argument(arguments, 8);
		memcpy(&number, &bits, sizeof(number));
		snprintf(directive + end, 2, "%c", conversion);
		appended(buffer, snprintf(to, room, directive, number));
	} else if (conversion == 's') {
		text = (const char *)(uintptr_t)next_argument(arguments, 8);
		snprintf(directive + end, 2, "s");
		appended(buffer, snprintf(to, room, directive, text ? text : "(null)"));
	} else if (conversion == 'p') {
		snprintf(directive + end, 2, "p");
		appended(buffer, snprintf(to, room, directive,
					  (void *)(uintptr_t)next_argument(arguments, 8)));
	} else if (is_long) {
		snprintf(directive + end, 4, "ll%c", conversion);
		appended(buffer, snprintf(to, room, directive,
					  (unsigned long long)next_argument(arguments, 8)));
	} else {
		snprintf(directive + end, 2, "%c", conversion);
		appended(buffer, snprintf(to, room, directive, (int)next_argument(arguments, 4)));
	}
}
#pragma GCC diagnostic pop

/* The callback belongs to the program: a fault in it is not the kernel's, and
 * nothing may unwind past the lock. */
void print_text(struct launch *launch, const char *text, size_t length)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	const struct engine_launch *request = launch->request;
	struct slot *slot;

	if (!request->print)
		return;
	slot = fault_disarm();
	pthread_mutex_lock(&mutex);
	request->print(request->print_opaque, text, length);
	pthread_mutex_unlock(&mutex);
	if (slot)
		fault_arm(slot);
}

int print_format(struct launch *launch, const char *format, const char *arguments)
{
	struct print_buffer buffer;
	char directive[DIRECTIVE_MAX];
	int count = 0;

	buffer.used = 0;
	while (*format) {
		const char *percent = strchr(format, '%');
		bool is_long;

		if (!percent) {
			append(&buffer, format, strlen(format));
			break;
		}
		append(&buffer, format, (size_t)(percent - format));
		if (percent[1] == '%') {
			append(&buffer, "%", 1);
			format = percent + 2;
			continue;
		}
		format = take_directive(percent, directive, &is_long, &arguments);
		if (!format)
			break;
		print_argument(&buffer, directive, *format++, is_long, &arguments);
		count++;
	}
	print_text(launch, buffer.text, buffer.used);
	return count;
}
