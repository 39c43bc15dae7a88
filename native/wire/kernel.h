/* kernel.h - a kernel's description, as library_load and its like answer it.
 *
 *	u64 handle                      the server's name for it
 *	u32 parameter_count, u32 name_bytes
 *	u32 attributes_known            bit n: attributes[n] is there
 *	u32 parameters_known            0: the driver could not say
 *	i32 attributes[16]              indexed by CUfunction_attribute
 *	{u32 offset, u32 bytes}[parameter_count]
 *	name, padded with zeros to 8 bytes
 */
#ifndef FARBUS_WIRE_KERNEL_H
#define FARBUS_WIRE_KERNEL_H

#include "cursor.h"

#define WIRE_KERNEL_ATTRIBUTES 16
/* CUDA allows 32,764 bytes of parameters. */
#define WIRE_KERNEL_PARAMETERS 32764u
#define WIRE_KERNEL_NAME_BYTES 65536u

struct wire_kernel {
	uint64_t handle;
	uint32_t parameter_count;
	uint32_t name_bytes;
	uint32_t attributes_known;
	uint32_t parameters_known;
	int32_t attributes[WIRE_KERNEL_ATTRIBUTES];
};
_Static_assert(sizeof(struct wire_kernel) == 88, "wire layout");

/* A kernel's attributes on a device, as library_attributes answers them. */
struct wire_kernel_attributes {
	uint64_t handle;
	uint32_t known;			/* as attributes_known */
	uint32_t reserved;
	int32_t attributes[WIRE_KERNEL_ATTRIBUTES];
};
_Static_assert(sizeof(struct wire_kernel_attributes) == 80, "wire layout");

struct wire_parameter {
	uint32_t offset;
	uint32_t bytes;
};

static inline size_t wire_kernel_bytes(const struct wire_kernel *kernel)
{
	return sizeof(*kernel) + (size_t)kernel->parameter_count * sizeof(struct wire_parameter) +
	       ((kernel->name_bytes + 7u) & ~(size_t)7);
}

#endif
