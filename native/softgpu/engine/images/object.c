/* object.c - ELF and ar, as far as device code needs them (System V ABI, ar(5)). */
#include "object.h"

#include <ar.h>
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SECTION_ALIGN 16
#define MACHINE_CUDA 190	/* EM_CUDA; old elf.h lack it */

bool object_is_elf(const void *image, size_t bytes)
{
	return bytes >= SELFMAG && !memcmp(image, ELFMAG, SELFMAG);
}

bool object_is_archive(const void *image, size_t bytes)
{
	return bytes >= SARMAG && !memcmp(image, ARMAG, SARMAG);
}

/* ---- reading ELF ---- */

static bool lies_inside(uint64_t offset, uint64_t size, size_t bytes)
{
	return offset <= bytes && size <= bytes - offset;
}

/* Copies, for a damaged object may place its headers anywhere. */
static bool read_header(const void *image, size_t bytes, Elf64_Ehdr *header)
{
	if (bytes < sizeof(*header) || !object_is_elf(image, bytes))
		return false;
	memcpy(header, image, sizeof(*header));
	return header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
	       header->e_shentsize == sizeof(Elf64_Shdr) &&
	       lies_inside(header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr), bytes);
}

static bool read_section(const void *image, size_t bytes, const Elf64_Ehdr *header, unsigned index,
			 Elf64_Shdr *section)
{
	if (index >= header->e_shnum)
		return false;
	memcpy(section, (const char *)image + header->e_shoff + index * sizeof(*section),
	       sizeof(*section));
	return section->sh_type == SHT_NOBITS ||
	       lies_inside(section->sh_offset, section->sh_size, bytes);
}

size_t object_extent(const void *image, size_t bytes)
{
	Elf64_Shdr section;
	Elf64_Ehdr header;
	size_t end;

	if (!read_header(image, bytes, &header))
		return 0;
	end = header.e_shoff + header.e_shnum * sizeof(section);
	if (end < sizeof(header))
		end = sizeof(header);
	for (unsigned k = 0; k < header.e_shnum; k++) {
		if (!read_section(image, bytes, &header, k, &section))
			return 0;
		if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
			end = section.sh_offset + section.sh_size;
	}
	return end;
}

static bool has_device_code(const void *image, const Elf64_Shdr *names, const Elf64_Shdr *section)
{
	static const char *const sections[] = { ".nv_fatbin", "__nv_relfatbin" };

	for (size_t k = 0; k < sizeof(sections) / sizeof(sections[0]); k++) {
		size_t length = strlen(sections[k]) + 1;

		if (lies_inside(section->sh_name, length, names->sh_size) &&
		    !memcmp((const char *)image + names->sh_offset + section->sh_name, sections[k],
			    length))
			return true;
	}
	return false;
}

bool object_section(const void *image, size_t bytes, size_t index, const void **data,
		    size_t *data_bytes)
{
	Elf64_Shdr names, section;
	Elf64_Ehdr header;

	if (!read_header(image, bytes, &header) ||
	    !read_section(image, bytes, &header, header.e_shstrndx, &names) ||
	    names.sh_type == SHT_NOBITS)
		return false;
	for (unsigned k = 0; read_section(image, bytes, &header, k, &section); k++) {
		if (section.sh_type == SHT_NOBITS || !has_device_code(image, &names, &section) ||
		    index--)
			continue;
		*data = (const char *)image + section.sh_offset;
		*data_bytes = section.sh_size;
		return true;
	}
	return false;
}

/* ---- reading ar ---- */

bool object_member(const void *image, size_t bytes, size_t *at, const void **data,
		   size_t *data_bytes)
{
	struct ar_hdr header;
	char digits[sizeof(header.ar_size) + 1] = { 0 };
	uint64_t size;

	if (!*at)
		*at = SARMAG;
	if (!lies_inside(*at, sizeof(header), bytes))
		return false;
	memcpy(&header, (const char *)image + *at, sizeof(header));
	memcpy(digits, header.ar_size, sizeof(header.ar_size));
	size = strtoull(digits, NULL, 10);
	if (memcmp(header.ar_fmag, ARFMAG, sizeof(header.ar_fmag)) ||
	    !lies_inside(*at + sizeof(header), size, bytes))
		return false;
	*data = (const char *)image + *at + sizeof(header);
	*data_bytes = size;
	*at += sizeof(header) + size + size % 2;
	return true;
}

/* ---- writing ---- */

void *object_make(const void *data, size_t data_bytes, size_t *bytes)
{
	static const char names[] = "\0.nv_fatbin\0.shstrtab";
	const size_t names_at = sizeof(Elf64_Ehdr);
	const size_t data_at = (names_at + sizeof(names) + SECTION_ALIGN - 1) / SECTION_ALIGN *
			       SECTION_ALIGN;
	const size_t table_at = (data_at + data_bytes + SECTION_ALIGN - 1) / SECTION_ALIGN *
				SECTION_ALIGN;
	const Elf64_Shdr table[] = {
		{ .sh_type = SHT_NULL },
		{ .sh_name = 1, .sh_type = SHT_PROGBITS, .sh_flags = SHF_ALLOC, .sh_offset = data_at,
		  .sh_size = data_bytes, .sh_addralign = SECTION_ALIGN },
		{ .sh_name = 12, .sh_type = SHT_STRTAB, .sh_offset = names_at,
		  .sh_size = sizeof(names), .sh_addralign = 1 },
	};
	const Elf64_Ehdr header = {
		.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_EXEC, .e_machine = MACHINE_CUDA, .e_version = EV_CURRENT,
		.e_shoff = table_at, .e_ehsize = sizeof(header), .e_shentsize = sizeof(table[0]),
		.e_shnum = sizeof(table) / sizeof(table[0]), .e_shstrndx = 2,
	};
	char *image = calloc(1, table_at + sizeof(table));

	if (!image)
		return NULL;
	memcpy(image, &header, sizeof(header));
	memcpy(image + names_at, names, sizeof(names));
	memcpy(image + data_at, data, data_bytes);
	memcpy(image + table_at, table, sizeof(table));
	*bytes = table_at + sizeof(table);
	return image;
}
