/* texture.c - texture objects and what tex and tld4 fetch from them.
 *
 * CUDA C++ Programming Guide, "Texture Fetching": a linear filter weighs texels by
 * fractions with 8 bits.  Coordinates are rounded to the nearest such fraction;
 * sums are kept in double and rounded once.
 */
#include "texture.h"

#include "../running.h"
#include "../loaded.h"

#include <pthread.h>
#include <stdlib.h>

#define TEXTURES_MAX 65536u
/* So many slots have been left before one is used again. */
#define FREE_LEAST 1024u
#define FRACTION_BITS 8
/* Coordinates beyond this many texels stand for infinity. */
#define COORDINATE_MAX 1e9f

/* ---- objects ---- */

static struct {
	pthread_mutex_t mutex;
	struct texture *objects[TEXTURES_MAX];	/* never freed: a kernel may hold a stale handle */
	uint32_t made, used;	/* slots below `made` have an object, so many of them one that is in use */
	uint32_t next;		/* where to look first, so that handles come back late */
} textures = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static const uint8_t texel_sizes[] = { 1, 2, 4, 1, 2, 4, 2, 4 };

/* IEC 61966-2-1 */
static void fill_srgb(float table[256])
{
	for (int k = 0; k < 256; k++) {
		double value = k / 255.0;

		table[k] = (float)(value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4));
	}
}

static uint64_t image_bytes(const struct engine_image *image, uint32_t texel_bytes)
{
	uint64_t slices = image->depth > image->layers ? image->depth : image->layers;

	return (slices - 1) * image->slice + (uint64_t)(image->height - 1) * image->pitch +
	       (uint64_t)image->width * texel_bytes;
}

static struct texture *free_slot(uint32_t *index)
{
	struct texture *texture;

	if (textures.made - textures.used < FREE_LEAST && textures.made < TEXTURES_MAX) {
		texture = calloc(1, sizeof(*texture));
		if (!texture)
			return NULL;
		*index = textures.made++;
		__atomic_store_n(&textures.objects[*index], texture, __ATOMIC_RELEASE);
		return texture;
	}
	for (uint32_t tried = 0; tried < textures.made; tried++) {
		uint32_t at = textures.next++ % textures.made;

		texture = textures.objects[at];
		if (texture->generation % 2)
			continue;
		*index = at;
		return texture;
	}
	return NULL;
}

static enum engine_status add(const struct engine_mipmap *mipmap,
			      const struct engine_sampler *sampler, uint64_t *handle)
{
	const struct engine_image *image = &mipmap->levels[0];
	struct texture *texture;
	uint32_t index;

	pthread_mutex_lock(&textures.mutex);
	texture = free_slot(&index);
	if (texture) {
		texture->image = *image;
		memcpy(texture->levels, mipmap->levels, mipmap->level_count * sizeof(*image));
		texture->mipmap = *mipmap;
		texture->mipmap.levels = texture->levels;
		texture->is_surface = !sampler;
		texture->texel_bytes = texel_sizes[image->texel] * image->channels;
		if (sampler)
			texture->sampler = *sampler;
		if (sampler && sampler->srgb)
			fill_srgb(texture->srgb);
		texture->generation++;
		textures.used++;
		*handle = (uint64_t)texture->generation << 32 | (index + 1);
	}
	pthread_mutex_unlock(&textures.mutex);
	return texture ? ENGINE_OK : ENGINE_NO_MEMORY;
}

enum engine_status engine_texture_add(const struct engine_image *image,
				      const struct engine_sampler *sampler, uint64_t *handle)
{
	const struct engine_mipmap alone = { .levels = image, .level_count = 1 };

	return add(&alone, sampler, handle);
}

enum engine_status engine_mipmap_add(const struct engine_mipmap *mipmap,
				     const struct engine_sampler *sampler, uint64_t *handle)
{
	return add(mipmap, sampler, handle);
}

static struct texture *texture_find(uint64_t handle)
{
	uint32_t index = (uint32_t)handle - 1;
	struct texture *texture;

	if (index >= TEXTURES_MAX)
		return NULL;
	texture = __atomic_load_n(&textures.objects[index], __ATOMIC_ACQUIRE);
	return texture && texture->generation == handle >> 32 ? texture : NULL;
}

void engine_texture_remove(uint64_t handle)
{
	struct texture *texture;

	pthread_mutex_lock(&textures.mutex);
	texture = texture_find(handle);
	if (texture) {
		texture->generation++;
		textures.used--;
	}
	pthread_mutex_unlock(&textures.mutex);
}

const struct texture *texture_of_lane(struct warp *w, const struct instruction *i, bool surface, u32 l)
{
	const struct texture_access *access = i->target;
	const uint64_t *references = w->block->launch->request->references;
	u64 handle = access->object >= 0 ? REGISTER(u64, access->object)[l]
					 : references ? references[access->reference] : 0;
	const struct texture *texture = texture_find(handle);

	if (!texture && access->object < 0)
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS, "the reference %s is bound to nothing that it can fetch from "
			  "(PTX line %u)",
			  w->block->launch->function->module->references[access->reference]->name,
			  i->line);
	if (!texture || texture->is_surface != surface)
		warp_fail(w, ENGINE_ILLEGAL_ADDRESS, "%#llx is no %s object (PTX line %u)",
			  (unsigned long long)handle, surface ? "surface" : "texture", i->line);
	for (u32 k = 0; k < texture->mipmap.level_count; k++)
		reach_memory(w, i, (u64)(uintptr_t)texture->levels[k].memory,
			     image_bytes(&texture->levels[k], texture->texel_bytes));
	return texture;
}

/* ---- texels ---- */

static const char *texel_address(const struct texture *texture, const struct engine_image *image,
				 s64 x, s64 y, s64 z)
{
	return (const char *)image->memory + (u64)z * image->slice + (u64)y * image->pitch +
	       (u64)x * texture->texel_bytes;
}

/* The bits as an integer or float of 32 bits. */
static u32 channel_bits(const struct engine_image *image, const char *texel, u32 channel)
{
	f16 half;
	f32 value;
	u32 bits;

	switch (image->texel) {
	case ENGINE_TEXEL_U8: return ((const u8 *)texel)[channel];
	case ENGINE_TEXEL_S8: return (u32)((const s8 *)texel)[channel];
	case ENGINE_TEXEL_U16: return ((const u16 *)texel)[channel];
	case ENGINE_TEXEL_S16: return (u32)((const s16 *)texel)[channel];
	case ENGINE_TEXEL_F16:
		half = ((const f16 *)texel)[channel];
		value = (f32)half;
		memcpy(&bits, &value, sizeof(bits));
		return bits;
	default: return ((const u32 *)texel)[channel];
	}
}

static bool texel_is_float(enum engine_texel texel)
{
	return texel == ENGINE_TEXEL_F16 || texel == ENGINE_TEXEL_F32;
}

/* Values are floats: those of the format, or normalized ones. */
static bool gives_floats(const struct texture *texture)
{
	return texel_is_float(texture->image.texel) || texture->sampler.normalized_values;
}

static f64 channel_value(const struct texture *texture, const char *texel, u32 channel)
{
	u32 bits = channel_bits(&texture->image, texel, channel);
	f64 value;
	f32 single;

	switch (texture->image.texel) {
	case ENGINE_TEXEL_U8:
		if (texture->sampler.srgb && channel < 3)
			return (f64)texture->srgb[bits];
		return bits / 255.0;
	case ENGINE_TEXEL_U16: return bits / 65535.0;
	case ENGINE_TEXEL_S8:
		value = (s32)bits / 127.0;
		return value < -1 ? -1 : value;
	case ENGINE_TEXEL_S16:
		value = (s32)bits / 32767.0;
		return value < -1 ? -1 : value;
	default:
		memcpy(&single, &bits, sizeof(single));
		return (f64)single;
	}
}

/* ---- coordinates ---- */

/* Index of a texel by the address mode; -1 is the border. */
static s64 place(s64 index, u32 size, enum engine_address_mode mode)
{
	s64 period;

	if (index >= 0 && index < size)
		return index;
	switch (mode) {
	case ENGINE_ADDRESS_BORDER:
		return -1;
	case ENGINE_ADDRESS_WRAP:
		index %= size;
		return index < 0 ? index + size : index;
	case ENGINE_ADDRESS_MIRROR:
		period = 2 * (s64)size;
		index %= period;
		if (index < 0)
			index += period;
		return index < size ? index : period - 1 - index;
	default:
		return index < 0 ? 0 : (s64)size - 1;
	}
}

struct sample {
	s64 near, far;		/* texels by the address mode */
	u32 weight;		/* of far, in 256ths */
};

/* Wrapping and mirroring is for normalized coordinates only. */
static enum engine_address_mode mode_of(const struct texture *texture, unsigned axis)
{
	enum engine_address_mode mode = texture->sampler.address_mode[axis];

	if (!texture->sampler.normalized_coordinates &&
	    (mode == ENGINE_ADDRESS_WRAP || mode == ENGINE_ADDRESS_MIRROR))
		return ENGINE_ADDRESS_CLAMP;
	return mode;
}

/* In texels; what repeats is brought near zero first, where floats are dense. */
static f32 in_texels(const struct texture *texture, f32 x, u32 size, enum engine_address_mode mode)
{
	if (texture->sampler.normalized_coordinates) {
		if (mode == ENGINE_ADDRESS_WRAP)
			x -= floorf(x);
		else if (mode == ENGINE_ADDRESS_MIRROR)
			x -= 2 * floorf(x / 2);
		x *= (f32)size;
	}
	if (!(x > -COORDINATE_MAX))	/* and NaN */
		return -COORDINATE_MAX;
	return x > COORDINATE_MAX ? COORDINATE_MAX : x;
}

static struct sample sample_axis(const struct texture *texture, f32 x, unsigned axis, u32 size,
				 bool linear)
{
	enum engine_address_mode mode = mode_of(texture, axis);
	f64 position = (f64)in_texels(texture, x, size, mode);
	s64 fixed;

	if (!linear)
		return (struct sample){ place((s64)floor(position), size, mode), 0, 0 };
	fixed = (s64)floor((position - 0.5) * (1 << FRACTION_BITS) + 0.5);
	return (struct sample){
		.near = place(fixed >> FRACTION_BITS, size, mode),
		.far = place((fixed >> FRACTION_BITS) + 1, size, mode),
		.weight = (u32)(fixed & ((1 << FRACTION_BITS) - 1)),
	};
}

/* ---- fetches ---- */

static f64 value_at(const struct texture *texture, const struct engine_image *image, s64 x, s64 y,
		    s64 z, u32 channel)
{
	if (x < 0 || y < 0 || z < 0)
		return (f64)texture->sampler.border[channel];
	return channel_value(texture, texel_address(texture, image, x, y, z), channel);
}

static u32 bits_of_float(f64 value)
{
	f32 single = (f32)value;
	u32 bits;

	memcpy(&bits, &single, sizeof(bits));
	return bits;
}

/* Channels that the texture lacks are 0, 0 and 1. */
static u32 absent_channel(const struct texture *texture, u32 channel)
{
	if (channel < 3)
		return 0;
	return gives_floats(texture) ? bits_of_float(1) : 1;
}

static f64 interpolate(const struct texture *texture, const struct engine_image *image,
		       const struct sample at[3], u32 channel)
{
	f64 sum = 0;

	for (u32 corner = 0; corner < 8; corner++) {
		f64 weight = 1;
		s64 index[3];

		for (u32 axis = 0; axis < 3; axis++) {
			bool far = corner >> axis & 1;
			u32 part = far ? at[axis].weight : 256 - at[axis].weight;

			index[axis] = far ? at[axis].far : at[axis].near;
			weight *= part / 256.0;
		}
		if (weight != 0)
			sum += weight *
			       value_at(texture, image, index[0], index[1], index[2], channel);
	}
	return sum;
}

static void fetch_texel(const struct texture *texture, const struct engine_image *image, s64 x,
			s64 y, s64 z, u32 result[4])
{
	for (u32 channel = 0; channel < 4; channel++) {
		if (channel >= image->channels)
			result[channel] = absent_channel(texture, channel);
		else if (gives_floats(texture))
			result[channel] = bits_of_float(value_at(texture, image, x, y, z, channel));
		else if (x < 0 || y < 0 || z < 0)
			result[channel] = (u32)(s32)texture->sampler.border[channel];
		else
			result[channel] = channel_bits(image, texel_address(texture, image, x, y, z), channel);
	}
}

/* What a lane asks for, by axis. */
struct request {
	f32 at[3];
	s64 index[3];		/* of integer coordinates */
	u32 axes;		/* that are filtered */
	s64 layer;
};

/* The face that a direction meets and where (CUDA C++ Programming Guide, "Cubemap
 * Textures"). */
static u32 cube_face(const f32 direction[3], f32 at[2])
{
	f32 x = direction[0], y = direction[1], z = direction[2];
	f32 ax = fabsf(x), ay = fabsf(y), az = fabsf(z), s, t, m;
	u32 face;

	if (ax >= ay && ax >= az) {
		face = x < 0;
		m = ax;
		s = x < 0 ? z : -z;
		t = -y;
	} else if (ay >= az) {
		face = 2 + (y < 0);
		m = ay;
		s = x;
		t = y < 0 ? -z : z;
	} else {
		face = 4 + (z < 0);
		m = az;
		s = z < 0 ? -x : x;
		t = -y;
	}
	at[0] = (s / m + 1) / 2;
	at[1] = (t / m + 1) / 2;
	return face;
}

static struct request request_of(const struct warp *w, const struct texture_access *access, u32 l)
{
	struct request request = { .axes = 1 };
	const int32_t *slots = access->coordinates;
	f32 direction[3];
	u32 count;

	if (geometry_is_layered(access->geometry))
		request.layer = REGISTER(u32, *slots++)[l];
	switch (access->geometry) {
	case GEOMETRY_CUBE:
	case GEOMETRY_CUBE_LAYERED:
		for (u32 k = 0; k < 3; k++)
			direction[k] = REGISTER(f32, slots[k])[l];
		request.axes = 2;
		request.layer = 6 * request.layer + cube_face(direction, request.at);
		return request;
	case GEOMETRY_1D:
	case GEOMETRY_1D_LAYERED:
		count = 1;
		break;
	case GEOMETRY_3D:
		count = 3;
		break;
	default:
		count = 2;
		break;
	}
	request.axes = count;
	for (u32 k = 0; k < count; k++) {
		if (access->integer_coordinates)
			request.index[k] = REGISTER(s32, slots[k])[l];
		else
			request.at[k] = REGISTER(f32, slots[k])[l];
	}
	return request;
}

static u32 size_of_axis(const struct engine_image *image, u32 axis)
{
	return axis == 0 ? image->width : axis == 1 ? image->height : image->depth;
}

/* Integer coordinates: no filter, and nothing outside (tex1Dfetch). */
static void fetch_by_index(const struct texture *texture, const struct engine_image *image,
			   const struct request *request, s64 layer, u32 result[4])
{
	for (u32 axis = 0; axis < 3; axis++) {
		if (request->index[axis] < 0 ||
		    request->index[axis] >= size_of_axis(image, axis)) {
			memset(result, 0, 4 * sizeof(*result));
			return;
		}
	}
	fetch_texel(texture, image, request->index[0], request->index[1],
		    request->axes == 3 ? request->index[2] : layer, result);
}

static void locate(const struct texture *texture, const struct engine_image *image,
		   const struct request *request, s64 layer, bool linear, struct sample at[3])
{
	for (u32 axis = 0; axis < 3; axis++) {
		if (axis < request->axes)
			at[axis] = sample_axis(texture, request->at[axis], axis,
					       size_of_axis(image, axis), linear);
		else
			at[axis] = (struct sample){ axis == 2 ? layer : 0, 0, 0 };
	}
}

static void fetch(const struct texture *texture, const struct engine_image *image,
		  const struct texture_access *access, const struct request *request, u32 result[4])
{
	bool linear = texture->sampler.linear && gives_floats(texture);
	s64 layer = request->layer < image->layers ? request->layer : (s64)image->layers - 1;
	struct sample at[3];

	if (access->integer_coordinates) {
		fetch_by_index(texture, image, request, layer, result);
		return;
	}
	locate(texture, image, request, layer, linear, at);
	if (!linear) {
		fetch_texel(texture, image, at[0].near, at[1].near, at[2].near, result);
		return;
	}
	for (u32 channel = 0; channel < 4; channel++)
		result[channel] = channel < image->channels
					  ? bits_of_float(interpolate(texture, image, at, channel))
					  : absent_channel(texture, channel);
}

/* ---- levels of a mipmap ---- */

/* How many texels of the first level a step of the picture is, as a power of two. */
static f32 level_of_gradients(const struct warp *w, const struct texture *texture,
			      const struct texture_access *access, u32 axes, u32 l)
{
	f32 longest = 0;

	for (u32 direction = 0; direction < 2; direction++) {
		f32 sum = 0;

		for (u32 axis = 0; axis < axes; axis++) {
			f32 step = REGISTER(f32, access->gradients[direction][axis])[l];

			if (texture->sampler.normalized_coordinates)
				step *= (f32)size_of_axis(&texture->image, axis);
			sum += step * step;
		}
		longest = sum > longest ? sum : longest;
	}
	return 0.5f * log2f(longest);
}

static f32 level_of(const struct warp *w, const struct texture *texture,
		    const struct texture_access *access, u32 axes, u32 l)
{
	const struct engine_mipmap *mipmap = &texture->mipmap;
	f32 level = 0, last = (f32)(mipmap->level_count - 1);

	if (access->level == LEVEL_GIVEN && access->integer_coordinates)
		level = (f32)REGISTER(s32, access->level_slot)[l];
	else if (access->level == LEVEL_GIVEN)
		level = REGISTER(f32, access->level_slot)[l];
	else if (access->level == LEVEL_OF_GRADIENTS)
		level = level_of_gradients(w, texture, access, axes, l);
	level += mipmap->bias;
	level = level > mipmap->most ? mipmap->most : level;
	level = level > mipmap->least ? level : mipmap->least;
	return level > last ? last : level > 0 ? level : 0;
}

static f64 float_of_bits(u32 bits)
{
	f32 single;

	memcpy(&single, &bits, sizeof(single));
	return (f64)single;
}

/* Between levels as between texels: by fractions with 8 bits. */
static void fetch_level(const struct texture *texture, const struct texture_access *access,
			const struct request *request, f32 level, u32 result[4])
{
	bool linear = texture->mipmap.linear && gives_floats(texture);
	u32 near = (u32)floorf(linear ? level : level + 0.5f), far[4];
	f64 weight;

	fetch(texture, &texture->levels[near], access, request, result);
	weight = linear ? floor((f64)(level - (f32)near) * (1 << FRACTION_BITS) + 0.5) /
				  (1 << FRACTION_BITS)
			: 0;
	if (weight == 0)
		return;
	fetch(texture, &texture->levels[near + 1], access, request, far);
	for (u32 channel = 0; channel < texture->image.channels; channel++)
		result[channel] = bits_of_float((1 - weight) * float_of_bits(result[channel]) +
						weight * float_of_bits(far[channel]));
}

static void put(const struct warp *w, const struct texture_access *access, u32 l, const u32 result[4])
{
	for (u32 k = 0; k < 4; k++)
		if (access->values[k] >= 0)
			REGISTER(u32, access->values[k])[l] = result[k];
}

HANDLER(texture_fetch)
{
	const struct texture_access *access = i->target;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		const struct texture *texture = texture_of_lane(w, i, false, l);
		struct request request = request_of(w, access, l);
		u32 result[4];

		if (texture->mipmap.level_count == 1)
			fetch(texture, &texture->image, access, &request, result);
		else
			fetch_level(texture, access, &request,
				    level_of(w, texture, access, request.axes, l), result);
		put(w, access, l, result);
	}
	return i + 1;
}

/* One component of the four texels that a linear filter would take. */
HANDLER(texture_gather)
{
	static const u8 corners[4][2] = { { 0, 1 }, { 1, 1 }, { 1, 0 }, { 0, 0 } };
	const struct texture_access *access = i->target;

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		const struct texture *texture = texture_of_lane(w, i, false, l);
		struct request request = request_of(w, access, l);
		struct sample at[3];
		u32 result[4], texel[4];

		locate(texture, &texture->image, &request, 0, true, at);
		for (u32 k = 0; k < 4; k++) {
			fetch_texel(texture, &texture->image, corners[k][0] ? at[0].far : at[0].near,
				    corners[k][1] ? at[1].far : at[1].near, 0, texel);
			result[k] = texel[access->component];
		}
		put(w, access, l, result);
	}
	return i + 1;
}

/* ---- queries: txq, suq ---- */

enum query { QUERY_WIDTH, QUERY_HEIGHT, QUERY_DEPTH, QUERY_LAYERS, QUERY_LEVELS, QUERY_NORMALIZED };

HANDLER(texture_query)
{
	const struct texture_access *access = i->target;
	u32 *d = REGISTER(u32, access->values[0]);

	w->ip = i;
	FOR_ACTIVE(w->mask, l)
	{
		const struct texture *texture = texture_of_lane(w, i, i->x >= 16, l);
		const struct engine_image *image = &texture->image;

		switch ((enum query)(i->x % 16)) {
		case QUERY_WIDTH: d[l] = image->width; break;
		case QUERY_HEIGHT: d[l] = image->height; break;
		case QUERY_DEPTH: d[l] = image->depth; break;
		case QUERY_LAYERS: d[l] = image->layers; break;
		case QUERY_LEVELS: d[l] = texture->mipmap.level_count; break;
		case QUERY_NORMALIZED: d[l] = texture->sampler.normalized_coordinates; break;
		}
	}
	return i + 1;
}

#define FLAT_GEOMETRIES(op) op ".1d " op ".2d " op ".3d " op ".a1d " op ".a2d"
#define GEOMETRIES(op) FLAT_GEOMETRIES(op) " " op ".cube " op ".acube"

static const struct form forms[] = {
	{ GEOMETRIES("tex"), NULL, texture_fetch, NULL, 0, false },
	{ GEOMETRIES("tex.level"), NULL, texture_fetch, NULL, 0, false },
	{ FLAT_GEOMETRIES("tex.grad"), NULL, texture_fetch, NULL, 0, false },
	{ "tld4.r.2d tld4.g.2d tld4.b.2d tld4.a.2d", NULL, texture_gather, NULL, 0, false },
	{ "txq.width.b32", NULL, texture_query, NULL, QUERY_WIDTH, false },
	{ "txq.height.b32", NULL, texture_query, NULL, QUERY_HEIGHT, false },
	{ "txq.depth.b32", NULL, texture_query, NULL, QUERY_DEPTH, false },
	{ "txq.array_size.b32", NULL, texture_query, NULL, QUERY_LAYERS, false },
	{ "txq.num_mipmap_levels.b32", NULL, texture_query, NULL, QUERY_LEVELS, false },
	{ "txq.normalized_coords.b32", NULL, texture_query, NULL, QUERY_NORMALIZED, false },
	{ "suq.width.b32", NULL, texture_query, NULL, 16 + QUERY_WIDTH, false },
	{ "suq.height.b32", NULL, texture_query, NULL, 16 + QUERY_HEIGHT, false },
	{ "suq.depth.b32", NULL, texture_query, NULL, 16 + QUERY_DEPTH, false },
	{ "suq.array_size.b32", NULL, texture_query, NULL, 16 + QUERY_LAYERS, false },
};

const struct form_table forms_texture = { forms, sizeof(forms) / sizeof(forms[0]) };
