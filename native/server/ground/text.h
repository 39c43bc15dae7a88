/* text.h - what the driver prints (text.c). */
#ifndef FARBUS_SERVER_TEXT_H
#define FARBUS_SERVER_TEXT_H

#include "../server_ops.h"

/* Catch what the driver prints; send what is there now. */
int server_text_start(struct server *server);
void server_text_flush(struct server *server);
/* What a software GPU says of this thread's calls reaches the client otherwise, from now on. */
void server_text_told(bool told);

#endif
