/* declare.h - what a text declares (declare.c). */
#ifndef FARBUS_SOFTGPU_PTX_DECLARE_H
#define FARBUS_SOFTGPU_PTX_DECLARE_H

#include "parse.h"

/* Declare all of one text: functions remember where their bodies start. */
void ptx_declare_module(struct ptx_parser *parser, const char *text);

/* What a unit knows by that name; NULL: nothing. */
struct engine_function *unit_function(const struct module_unit *unit, const char *name,
				      uint32_t length);
struct variable *unit_variable(const struct module_unit *unit, const char *name, uint32_t length);

#endif
