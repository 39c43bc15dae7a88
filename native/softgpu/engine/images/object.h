/* object.h - ELF objects with device code, and archives of them.
 *
 * A host object that nvcc made carries fatbin containers in its sections .nv_fatbin (whole
 * programs) and __nv_relfatbin (-rdc=true).  What the linker here makes is such an object too.
 */
#ifndef FARBUS_SOFTGPU_OBJECT_H
#define FARBUS_SOFTGPU_OBJECT_H

#include <stdbool.h>
#include <stddef.h>

bool object_is_elf(const void *image, size_t bytes);
bool object_is_archive(const void *image, size_t bytes);

/* Bytes from the header to the end of what it speaks of; 0 when that is more than `bytes`,
 * or damaged. */
size_t object_extent(const void *image, size_t bytes);

/* Section with device code number `index`; false behind the last, and in a damaged object. */
bool object_section(const void *image, size_t bytes, size_t index, const void **data,
		    size_t *data_bytes);

/* The archive member at *at, which moves to the next one; false behind the last. */
bool object_member(const void *image, size_t bytes, size_t *at, const void **data,
		   size_t *data_bytes);

/* An object whose section .nv_fatbin holds `data`; for free(), NULL without memory. */
void *object_make(const void *data, size_t data_bytes, size_t *bytes);

#endif
