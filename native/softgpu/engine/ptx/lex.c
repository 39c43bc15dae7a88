/* lex.c - tokens of PTX text. */
#include "lex.h"

#include <stdlib.h>
#include <string.h>

enum character_class {
	CLASS_SPACE = 1,
	CLASS_WORD = 2,		/* may stand in an identifier */
	CLASS_DIGIT = 4,
	CLASS_HEX = 8,
};

/* Locale-free, and one load instead of a call: modules have megabytes of text. */
static const uint8_t character_classes[256] = {
	[' '] = CLASS_SPACE, ['\t'] = CLASS_SPACE, ['\r'] = CLASS_SPACE, ['\n'] = CLASS_SPACE,
	['0' ... '9'] = CLASS_WORD | CLASS_DIGIT | CLASS_HEX,
	['a' ... 'f'] = CLASS_WORD | CLASS_HEX, ['g' ... 'z'] = CLASS_WORD,
	['A' ... 'F'] = CLASS_WORD | CLASS_HEX, ['G' ... 'Z'] = CLASS_WORD,
	['_'] = CLASS_WORD, ['$'] = CLASS_WORD, ['%'] = CLASS_WORD,
};

static bool is_class(char c, unsigned mask)
{
	return character_classes[(unsigned char)c] & mask;
}

static const char *skip_blanks(struct ptx_lexer *lexer, const char *p)
{
	for (;;) {
		while (is_class(*p, CLASS_SPACE))
			lexer->line += *p++ == '\n';
		if (p[0] == '/' && p[1] == '/') {
			while (*p && *p != '\n')
				p++;
		} else if (p[0] == '/' && p[1] == '*') {
			for (p += 2; *p && !(p[0] == '*' && p[1] == '/'); p++)
				lexer->line += *p == '\n';
			if (*p)
				p += 2;
		} else {
			return p;
		}
	}
}

static const char *lex_number(struct ptx_token *token, const char *p)
{
	char *end;

	token->kind = PTX_INTEGER;
	if (p[0] == '0' && (p[1] == 'f' || p[1] == 'F') && is_class(p[2], CLASS_HEX)) {
		token->kind = PTX_FLOAT;
		token->float_bytes = 4;
		token->value = strtoull(p + 2, &end, 16);
		return end;
	}
	if (p[0] == '0' && (p[1] == 'd' || p[1] == 'D') && is_class(p[2], CLASS_HEX)) {
		token->kind = PTX_FLOAT;
		token->float_bytes = 8;
		token->value = strtoull(p + 2, &end, 16);
		return end;
	}
	if (p[0] == '0' && (p[1] == 'b' || p[1] == 'B')) {
		token->value = strtoull(p + 2, &end, 2);
	} else {
		token->value = strtoull(p, &end, 0);
		if (*end == '.' || ((*end == 'e' || *end == 'E') && p[1] != 'x')) {
			double value = strtod(p, &end);

			token->kind = PTX_FLOAT;
			token->float_bytes = 8;
			memcpy(&token->value, &value, sizeof(value));
			return end;
		}
	}
	if (*end == 'U')
		end++;
	return end;
}

static const char *lex_word(const char *p)
{
	p++;
	for (;;) {
		if (is_class(*p, CLASS_WORD))
			p++;
		else if (p[0] == '.' && is_class(p[1], CLASS_WORD))
			p += 2;
		else if (p[0] == ':' && p[1] == ':' && is_class(p[2], CLASS_WORD))
			p += 3;
		else
			return p;
	}
}

void ptx_lexer_advance(struct ptx_lexer *lexer)
{
	struct ptx_token *token = &lexer->token;
	const char *p = skip_blanks(lexer, lexer->next);

	*token = (struct ptx_token){ .text = p };
	if (!*p) {
		token->kind = PTX_END;
	} else if (is_class(*p, CLASS_DIGIT)) {
		p = lex_number(token, p);
	} else if (is_class(*p, CLASS_WORD) || (*p == '.' && is_class(p[1], CLASS_WORD))) {
		token->kind = PTX_WORD;
		p = lex_word(p);
	} else if (*p == '"') {
		token->kind = PTX_STRING;
		for (p++; *p && *p != '"'; p++)
			lexer->line += *p == '\n';
		if (*p)
			p++;
	} else {
		token->kind = PTX_PUNCTUATION;
		p++;
	}
	token->length = (uint32_t)(p - token->text);
	lexer->next = p;
}

void ptx_lexer_open(struct ptx_lexer *lexer, const char *text)
{
	*lexer = (struct ptx_lexer){ .next = text, .line = 1 };
	ptx_lexer_advance(lexer);
}

void ptx_lexer_skip_line(struct ptx_lexer *lexer)
{
	const char *p = lexer->token.text;

	while (*p && *p != '\n')
		p++;
	lexer->next = p;
	ptx_lexer_advance(lexer);
}

bool ptx_token_is(const struct ptx_token *token, const char *text)
{
	return !strncmp(token->text, text, token->length) && !text[token->length];
}
