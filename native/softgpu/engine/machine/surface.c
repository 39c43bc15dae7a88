/* surface.c - suld and sust: unformatted loads and stores of surfaces (PTX ISA
 * 9.7.11).  The first coordinate counts bytes. */
#include "texture.h"

struct texel_range {
	char *memory;	/* NULL: outside, nothing is loaded or stored */
};

static s64 clamp(s64 value, s64 last)
{
	return value < 0 ? 0 : value > last ? last : value;
}

static struct texel_range range_of(struct warp *w, const struct instruction *i, u32 l)
{
	const struct texture_access *access = i->target;
	const struct texture *surface = texture_of_lane(w, i, true, l);
	const struct engine_image *image = &surface->image;
	bool layered = geometry_is_layered(access->geometry), flat;
	u32 bytes = (u32)access->bytes * access->count;
	const int32_t *slots = access->coordinates;
	s64 x, y, z, last_x, last_y, last_z;

	flat = access->geometry == GEOMETRY_1D || access->geometry == GEOMETRY_1D_LAYERED;
	z = layered ? (s64)REGISTER(u32, *slots++)[l] : 0;
	x = REGISTER(s32, slots[0])[l];
	y = flat ? 0 : REGISTER(s32, slots[1])[l];
	if (access->geometry == GEOMETRY_3D)
		z = REGISTER(s32, slots[2])[l];
	if (x % (s64)bytes)
		warp_fail(w, ENGINE_MISALIGNED, "surface access of %u bytes at %lld (PTX line %u)",
			  bytes, (long long)x, i->line);
	last_x = (s64)image->width * surface->texel_bytes - bytes;
	last_y = (s64)image->height - 1;
	last_z = (s64)(layered ? image->layers : image->depth) - 1;
	if (x < 0 || x > last_x || y < 0 || y > last_y || z < 0 || z > last_z) {
		if (access->boundary == BOUNDARY_TRAP)
			warp_fail(w, ENGINE_LAUNCH_FAILED,
				  "surface access at (%lld, %lld, %lld), outside (PTX line %u)",
				  (long long)x, (long long)y, (long long)z, i->line);
		if (access->boundary == BOUNDARY_ZERO || last_x < 0)
			return (struct texel_range){ NULL };
		x = clamp(x, last_x);
		y = clamp(y, last_y);
		z = clamp(z, last_z);
	}
	return (struct texel_range){ (char *)image->memory + (u64)z * image->slice +
				     (u64)y * image->pitch + x };
}

/* A register has at least 16 bits. */
static u32 register_bytes(const struct texture_access *access)
{
	return access->bytes < 2 ? 2 : access->bytes;
}

HANDLER(surface_load)
{
	const struct texture_access *access = i->target;
	u32 width = register_bytes(access);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct texel_range range = range_of(w, i, l);

		for (u32 k = 0; k < access->count; k++) {
			u64 value = 0;

			if (range.memory)
				memcpy(&value, range.memory + k * access->bytes, access->bytes);
			if (access->values[k] >= 0)
				memcpy(w->registers + access->values[k] + l * width, &value, width);
		}
	}
	return i + 1;
}

HANDLER(surface_store)
{
	const struct texture_access *access = i->target;
	u32 width = register_bytes(access);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		struct texel_range range = range_of(w, i, l);

		for (u32 k = 0; k < access->count && range.memory; k++)
			memcpy(range.memory + k * access->bytes,
			       w->registers + access->values[k] + l * width, access->bytes);
	}
	return i + 1;
}

#define GEOMETRIES(op) op ".1d " op ".2d " op ".3d " op ".a1d " op ".a2d"

static const struct form forms[] = {
	{ GEOMETRIES("suld.b"), NULL, surface_load, NULL, 0, false },
	{ GEOMETRIES("sust.b"), NULL, surface_store, NULL, 0, false },
};

const struct form_table forms_surface = { forms, sizeof(forms) / sizeof(forms[0]) };
