/* texture.c - tex, tld4, txq, suld, sust, suq. */
#include "decoder.h"

#include "../machine/texture.h"

static const struct {
	const char *name;
	uint8_t coordinates;	/* with the layer; the vector may be padded to four */
} geometries[] = {
	[GEOMETRY_1D] = { "1d", 1 },	     [GEOMETRY_2D] = { "2d", 2 },
	[GEOMETRY_3D] = { "3d", 3 },	     [GEOMETRY_1D_LAYERED] = { "a1d", 2 },
	[GEOMETRY_2D_LAYERED] = { "a2d", 3 }, [GEOMETRY_CUBE] = { "cube", 3 },
	[GEOMETRY_CUBE_LAYERED] = { "acube", 4 },
};

static struct texture_access *take_access(struct decoder *decoder)
{
	struct texture_access *access = ARENA_NEW(decoder->arena, struct texture_access);
	bool found = false;

	for (size_t k = 0; k < sizeof(geometries) / sizeof(geometries[0]); k++) {
		if (statement_has(decoder->statement, geometries[k].name)) {
			access->geometry = (enum texture_geometry)k;
			found = true;
		}
	}
	if (!found)
		decode_unsupported(decoder, "this geometry");
	for (unsigned k = 0; k < 4; k++)
		access->values[k] = -1;
	return access;
}

/* A handle in a register, or the name of a reference. */
static void bind_object(struct decoder *decoder, struct texture_access *access,
			const struct operand *operand)
{
	const struct variable *variable = operand->variable;

	if (operand->base == OPERAND_VARIABLE && variable->space == SPACE_REFERENCE &&
	    !operand->addend) {
		if (variable->is_declaration)
			ptx_fail(decoder->parser, ENGINE_UNRESOLVED, "reference %s is defined nowhere",
				 variable->name);
		access->object = -1;
		access->reference = (uint32_t)variable->address;
		return;
	}
	if (operand->base != OPERAND_REGISTER || operand->bytes != 8 || operand->addend)
		decode_unsupported(decoder, "objects that are not in a register");
	access->object = operand->slot;
}

/* [object, {coordinates}] */
static void bind_texel(struct decoder *decoder, struct texture_access *access,
		       const struct operand *operand)
{
	const struct operand *elements = &decoder->statement->elements[operand->first_element];
	unsigned needed = geometries[access->geometry].coordinates;

	if (operand->kind != OPERAND_TEXEL)
		decode_unsupported(decoder, NULL);
	if (operand->element_count < needed)
		decode_unsupported(decoder, "too few coordinates");
	bind_object(decoder, access, operand);
	for (unsigned k = 0; k < needed; k++)
		access->coordinates[k] = decode_source(decoder, &elements[k], 4);
}

static unsigned bind_results(struct decoder *decoder, struct texture_access *access,
			     const struct operand *operand, unsigned bytes)
{
	const struct operand *elements = operand;
	unsigned count = 1;

	if (operand->kind == OPERAND_VECTOR) {
		elements = &decoder->statement->elements[operand->first_element];
		count = operand->element_count;
	}
	if (count > 4)
		decode_unsupported(decoder, "this vector");
	for (unsigned k = 0; k < count; k++)
		if (elements[k].kind != OPERAND_SINK)
			access->values[k] = decode_destination(decoder, &elements[k], bytes);
	return count;
}

/* Level or gradients behind the texel: a float, or a vector for each direction. */
static void bind_level(struct decoder *decoder, struct texture_access *access)
{
	struct statement *statement = decoder->statement;
	bool layered = geometry_is_layered(access->geometry);
	unsigned axes = geometries[access->geometry].coordinates - layered;

	if (statement_has(statement, "level")) {
		if (statement->operand_count < 3)
			decode_unsupported(decoder, "too few operands");
		access->level = LEVEL_GIVEN;
		access->level_slot = decode_source(decoder, &statement->operands[2], 4);
		return;
	}
	if (!statement_has(statement, "grad"))
		return;
	if (statement->operand_count < 4 || access->geometry >= GEOMETRY_CUBE)
		decode_unsupported(decoder, NULL);
	access->level = LEVEL_OF_GRADIENTS;
	for (unsigned direction = 0; direction < 2; direction++) {
		const struct operand *operand = &statement->operands[2 + direction], *elements = operand;
		unsigned count = 1;

		if (operand->kind == OPERAND_VECTOR) {
			elements = &statement->elements[operand->first_element];
			count = operand->element_count;
		}
		if (count < axes)
			decode_unsupported(decoder, "too few gradients");
		for (unsigned axis = 0; axis < axes; axis++)
			access->gradients[direction][axis] = decode_source(decoder, &elements[axis], 4);
	}
}

/* tex.2d.v4.f32.f32 {r, g, b, a}, [texture, {x, y}]; level and gradients follow */
static void decode_fetch(struct decoder *decoder, bool gathers)
{
	struct statement *statement = decoder->statement;
	struct texture_access *access;

	if (statement->operand_count < 2 || statement->has_second || statement->type_count != 2 ||
	    statement->types[0].bytes != 4 || statement->types[0].kind == 'x' ||
	    statement->types[1].bytes != 4 || statement_has(statement, "base"))
		decode_unsupported(decoder, NULL);
	access = take_access(decoder);
	if (gathers && access->geometry != GEOMETRY_2D)
		decode_unsupported(decoder, NULL);
	access->integer_coordinates = statement->types[1].kind == 's';
	if (access->integer_coordinates && (access->geometry == GEOMETRY_CUBE ||
					    access->geometry == GEOMETRY_CUBE_LAYERED))
		decode_unsupported(decoder, NULL);
	access->component = statement_has(statement, "g")   ? 1
			    : statement_has(statement, "b") ? 2
			    : statement_has(statement, "a") ? 3
							    : 0;
	bind_texel(decoder, access, &statement->operands[1]);
	bind_level(decoder, access);
	bind_results(decoder, access, &statement->operands[0], 4);
	decode_emit(decoder, gathers ? "tld4.r.2d" : "tex.2d")->target = access;
}

static void decode_surface(struct decoder *decoder, bool stores)
{
	struct statement *statement = decoder->statement;
	const struct operand *value = &statement->operands[stores ? 1 : 0], *elements = value;
	struct texture_access *access;
	unsigned count = 1;

	if (statement->operand_count != 2 || !statement_has(statement, "b") ||
	    statement->type_count != 1 || statement->types[0].kind != 'b' ||
	    !statement->types[0].bytes || statement->types[0].bytes > 8)
		decode_unsupported(decoder, NULL);
	access = take_access(decoder);
	if (access->geometry >= GEOMETRY_CUBE)
		decode_unsupported(decoder, NULL);
	access->boundary = statement_has(statement, "clamp")  ? BOUNDARY_CLAMP
			   : statement_has(statement, "zero") ? BOUNDARY_ZERO
							      : BOUNDARY_TRAP;
	access->bytes = statement->types[0].bytes;
	bind_texel(decoder, access, &statement->operands[stores ? 0 : 1]);
	if (!stores) {
		count = bind_results(decoder, access, value, access->bytes);
	} else {
		if (value->kind == OPERAND_VECTOR) {
			elements = &statement->elements[value->first_element];
			count = value->element_count;
		}
		if (count > 4)
			decode_unsupported(decoder, "this vector");
		for (unsigned k = 0; k < count; k++)
			access->values[k] = decode_source(decoder, &elements[k], access->bytes);
	}
	access->count = (uint8_t)count;
	if (!count || count == 3)
		decode_unsupported(decoder, "this vector");
	decode_emit(decoder, stores ? "sust.b.2d" : "suld.b.2d")->target = access;
}

static void decode_query(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;
	struct texture_access *access = ARENA_NEW(decoder->arena, struct texture_access);
	const struct form *form = decode_find_form(decoder, true);
	const struct operand *object = &statement->operands[1];

	if (!form || statement->operand_count != 2 || object->kind != OPERAND_ADDRESS)
		decode_unsupported(decoder, NULL);
	bind_object(decoder, access, object);
	access->values[0] = decode_destination(decoder, &statement->operands[0], 4);
	decode_emitf(decoder, "%.*s", (int)strcspn(form->names, " "), form->names)->target = access;
}

bool decode_texture(struct decoder *decoder)
{
	struct statement *statement = decoder->statement;

	if (statement_is(statement, "tex"))
		decode_fetch(decoder, false);
	else if (statement_is(statement, "tld4"))
		decode_fetch(decoder, true);
	else if (statement_is(statement, "suld"))
		decode_surface(decoder, false);
	else if (statement_is(statement, "sust"))
		decode_surface(decoder, true);
	else if (statement_is(statement, "txq") || statement_is(statement, "suq"))
		decode_query(decoder);
	else
		return false;
	return true;
}
