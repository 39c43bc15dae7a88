/* image.h - images as programs have them: in memory, without a length, and in files. */
#ifndef FARBUS_SOFTGPU_DRIVER_IMAGE_H
#define FARBUS_SOFTGPU_DRIVER_IMAGE_H

#include "abi.h"

#include <stddef.h>

/* Copy an image that comes without a length, so that it can be
 * loaded again later.  *copy is one block for free(). */
CUresult driver_image_copy(const void *image, void **copy);
/* Read a file; what is read ends with a NUL that is not counted.  *image is for free(). */
CUresult driver_file_read(const char *path, void **image, size_t *bytes);
/* The same for an image, which is all there. */
CUresult driver_image_read(const char *path, void **image);

#endif
