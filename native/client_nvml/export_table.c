/* The table of unnamed functions that nvidia-smi asks for: without it, it ends with
 * "Mismatch in versions between nvidia-smi and NVML".
 *
 * Learned from outside, by giving nvidia-smi 535.261.03 a table of functions that say how
 * they are called: -L and no option call slot 81 (index, place for a handle) and slot 26
 * (before it prints), -q slot 165 too; each may answer that it is not supported, and the
 * public functions are used instead, or N/A is printed.  Processes are asked for in no
 * other way, so that none are shown.  dmon and pmon end where slot 72 (device, place, 2)
 * supports nothing, topo -m where slot 23 (two records with PCI addresses, place) does:
 * what they write there other versions of nvidia-smi may not have room for.
 */
#include "nvml.h"

#include <string.h>

static const uint8_t table_name[16] = {
	0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
	0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
};

/* Its first word is its size in bytes; the slots beyond those seen are there in case. */
#define TABLE_WORDS 256

static nvmlReturn_t slot_not_supported(void)
{
	return NVML_ERROR_NOT_SUPPORTED;
}

#define FOUR(x) x, x, x, x
#define SIXTEEN(x) FOUR(x), FOUR(x), FOUR(x), FOUR(x)
#define SLOTS(x) SIXTEEN(x), SIXTEEN(x), SIXTEEN(x), SIXTEEN(x)

static const union {
	struct {
		size_t bytes;
		nvmlReturn_t (*slots[TABLE_WORDS - 1])(void);
	} parts;
	void *words[TABLE_WORDS];
} table = {
	.parts = {
		.bytes = sizeof(table),
		.slots = {
			SLOTS(slot_not_supported), SLOTS(slot_not_supported),
			SLOTS(slot_not_supported), SIXTEEN(slot_not_supported),
			SIXTEEN(slot_not_supported), SIXTEEN(slot_not_supported),
			FOUR(slot_not_supported), FOUR(slot_not_supported),
			FOUR(slot_not_supported), slot_not_supported, slot_not_supported,
			slot_not_supported,
		},
	},
};
_Static_assert(sizeof(table) == TABLE_WORDS * sizeof(void *), "one word a slot");

NVML_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *name)
{
	if (!out || !name)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memcmp(name, table_name, sizeof(table_name)) != 0)
		return NVML_ERROR_NOT_FOUND;
	*out = &table;
	return NVML_SUCCESS;
}
