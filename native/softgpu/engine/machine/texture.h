/* texture.h - texture and surface instructions, decoded, and the objects they name. */
#ifndef FARBUS_SOFTGPU_TEXTURE_H
#define FARBUS_SOFTGPU_TEXTURE_H

#include "../engine.h"
#include "handler.h"

#define TEXTURE_COORDINATES_MAX 4

enum texture_geometry {
	GEOMETRY_1D, GEOMETRY_2D, GEOMETRY_3D, GEOMETRY_1D_LAYERED, GEOMETRY_2D_LAYERED,
	GEOMETRY_CUBE, GEOMETRY_CUBE_LAYERED,
};

enum surface_boundary { BOUNDARY_TRAP, BOUNDARY_CLAMP, BOUNDARY_ZERO };

enum texture_level { LEVEL_FIRST, LEVEL_GIVEN, LEVEL_OF_GRADIENTS };

struct texture_access {
	enum texture_geometry geometry;
	enum surface_boundary boundary;
	bool integer_coordinates;
	uint8_t component;		/* of a gather */
	uint8_t bytes;			/* of an element of a surface access, or of a result */
	uint8_t count;			/* elements */
	int32_t object;			/* slot of the handle, or -1 */
	uint32_t reference;		/* then its place among the module's references */
	int32_t coordinates[TEXTURE_COORDINATES_MAX];	/* slots, the layer first */
	enum texture_level level;	/* how it is said which level of a mipmap is wanted */
	int32_t level_slot;
	int32_t gradients[2][3];	/* slots: by axis, along x and along y of the picture */
	int32_t values[4];		/* slots, or -1; 32-bit for textures */
};

struct texture {
	uint32_t generation;		/* odd while in use */
	bool is_surface;
	uint32_t texel_bytes;		/* all channels */
	struct engine_image image;	/* the first level */
	struct engine_mipmap mipmap;	/* of `levels`; one where there is no mipmap */
	struct engine_image levels[ENGINE_LEVELS_MAX];
	struct engine_sampler sampler;
	float srgb[256];		/* of sampler.srgb: value of each byte */
};

/* The object of lane l, which fails the launch when it is none, or lies in memory that the
 * device may not use. */
const struct texture *texture_of_lane(struct warp *w, const struct instruction *i, bool surface, u32 l);

static inline bool geometry_is_layered(enum texture_geometry geometry)
{
	return geometry == GEOMETRY_1D_LAYERED || geometry == GEOMETRY_2D_LAYERED ||
	       geometry == GEOMETRY_CUBE_LAYERED;
}

#endif
