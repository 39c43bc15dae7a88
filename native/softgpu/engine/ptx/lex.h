/* lex.h - tokens of PTX text (PTX ISA, "Syntax"). */
#ifndef FARBUS_SOFTGPU_PTX_LEX_H
#define FARBUS_SOFTGPU_PTX_LEX_H

#include <stdbool.h>
#include <stdint.h>

enum ptx_token_kind {
	PTX_END,
	PTX_WORD,		/* identifier, directive, dotted opcode, %register */
	PTX_INTEGER,
	PTX_FLOAT,
	PTX_STRING,
	PTX_PUNCTUATION,	/* one character */
};

struct ptx_token {
	enum ptx_token_kind kind;
	const char *text;
	uint32_t length;
	uint64_t value;		/* integer, or the bits of a float */
	uint8_t float_bytes;	/* 4 or 8 for PTX_FLOAT */
};

/* A value: copy it to come back to a place in the text. */
struct ptx_lexer {
	const char *next;	/* NUL-terminated text */
	uint32_t line;
	struct ptx_token token;
};

void ptx_lexer_open(struct ptx_lexer *lexer, const char *text);
void ptx_lexer_advance(struct ptx_lexer *lexer);
/* Skip the rest of the line on which the current token stands. */
void ptx_lexer_skip_line(struct ptx_lexer *lexer);
bool ptx_token_is(const struct ptx_token *token, const char *text);

#endif
