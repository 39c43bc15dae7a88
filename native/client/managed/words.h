/* words.h - words of managed memory that streams wait for and write (words.c). */
#ifndef FARBUS_CLIENT_WORDS_H
#define FARBUS_CLIENT_WORDS_H

#include "../client.h"

/* A node of any kind: refused where it would wait for a word of managed memory. */
CUresult client_words_check(const CUgraphNodeParams *params);

#endif
