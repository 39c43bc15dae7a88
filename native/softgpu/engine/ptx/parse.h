/* parse.h - PTX text to declarations and statements.
 *
 * An error unwinds to parser->recover with the reason in parser->message; all
 * memory belongs to the module's arena.
 */
#ifndef FARBUS_SOFTGPU_PTX_PARSE_H
#define FARBUS_SOFTGPU_PTX_PARSE_H

#include "../loaded.h"

/* A fundamental type; kind is one of b u s f, p (pred), and for the small
 * floats h bf16, x f16x2, y bf16x2, t tf32, e other packed formats, m e4m3,
 * n e5m2. */
struct ptx_type {
	uint8_t bytes;		/* 0 for pred */
	char kind;
};

struct ptx_parser {
	struct ptx_lexer lexer;
	struct engine_module *module;
	struct module_unit *unit;
	uint32_t ptx_version;
	uint32_t sm;	/* of the device that the module is for */
	jmp_buf *recover;
	enum engine_status status;	/* of the error */
	char message[384];
};

_Noreturn void ptx_fail(struct ptx_parser *parser, enum engine_status status, const char *format,
			...) __attribute__((format(printf, 3, 4)));
bool ptx_is(const struct ptx_parser *parser, const char *text);
bool ptx_accept(struct ptx_parser *parser, const char *text);
void ptx_expect(struct ptx_parser *parser, const char *text);
void ptx_advance(struct ptx_parser *parser);
uint64_t ptx_take_integer(struct ptx_parser *parser);
/* A constant expression of integers (no ?:); `negative`: behind a '-' that was taken. */
uint64_t ptx_take_constant(struct ptx_parser *parser, bool negative);
const char *ptx_take_name(struct ptx_parser *parser, uint32_t *length);

bool ptx_type_named(const char *name, size_t length, struct ptx_type *type);
/* ".u32" as the current token */
struct ptx_type ptx_take_type(struct ptx_parser *parser);
/* A float's bits in another width. */
uint64_t ptx_float_bits(uint64_t bits, unsigned from_bytes, unsigned to_bytes);

struct ptx_declarator {
	const char *name;
	uint32_t length;
	uint32_t align;
	uint64_t elements;
	uint64_t bytes;
	bool is_unsized;	/* [] */
	struct ptx_type type;
};

/* Alignment and type in front of declarators: ".align 8 .b8". */
void ptx_take_object_type(struct ptx_parser *parser, struct ptx_declarator *base);
/* One name with its dimensions. */
void ptx_take_declarator(struct ptx_parser *parser, struct ptx_declarator *declarator);
/* "(.param ...)" of a function; offsets are assigned by the caller. */
void ptx_take_parameters(struct ptx_parser *parser, struct parameter **parameters, size_t *count);

#endif
