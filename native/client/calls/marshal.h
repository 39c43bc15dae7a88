/* marshal.h - calls that travel as their arguments: what their stubs use. */
#ifndef FARBUS_CLIENT_MARSHAL_H
#define FARBUS_CLIENT_MARSHAL_H

#include "../../generated/client_raw.h"
#include "../../wire/marshal.h"
#include "../client.h"

/* Begin to write the arguments of the entry of that number.  A current context must be
 * sound; there need not be one. */
CUresult client_marshal_begin(struct marshal *m, unsigned number);
/* The call is about memory at this address: it goes to the server that has it. */
void client_marshal_address(struct marshal *m, CUdeviceptr address);
/* Send them and wait.  On success, and where the call tells results of failures too, the
 * walk goes on reading them. */
CUresult client_marshal_call(struct marshal *m, bool waiting);
CUresult client_marshal_end(struct marshal *m, CUresult result);

#endif
