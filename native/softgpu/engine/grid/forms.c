/* forms.c - which handlers this processor runs, and finding them by name. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../engine.h"
#include "../instruction.h"
#include "../ptx/names.h"

#if defined(__x86_64__)
extern const struct isa isa_v2, isa_v3, isa_v4;
#else
extern const struct isa isa_v8;
#endif

static struct {
	pthread_once_t once;
	const struct isa *isa;
	struct name_map names;
} forms = { .once = PTHREAD_ONCE_INIT };

static const struct isa *best_isa(void)
{
#if defined(__x86_64__)
	/* FARBUS_SOFTGPU_ISA=v2|v3 holds the level down: tests compare the levels. */
	const char *limit = getenv("FARBUS_SOFTGPU_ISA");
	int level = limit && limit[0] == 'v' ? atoi(limit + 1) : 4;

	__builtin_cpu_init();
	if (level >= 4 && __builtin_cpu_supports("avx512f") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
		return &isa_v4;
	if (level >= 3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	    __builtin_cpu_supports("bmi2"))
		return &isa_v3;
	return &isa_v2;
#else
	return &isa_v8;
#endif
}

static void add_names(struct arena *arena, const struct form *form)
{
	const char *name = form->names;

	while (*name) {
		size_t length = strcspn(name, " ");

		name_map_set(&forms.names, arena, name, (uint32_t)length, (void *)form);
		name += length;
		name += *name == ' ';
	}
}

static void forms_initialize(void)
{
	static struct arena arena;	/* lives as long as the process */
	jmp_buf out_of_memory;

	arena.out_of_memory = &out_of_memory;
	if (setjmp(out_of_memory))
		abort();	/* a few tens of kilobytes at start: nothing can go on */
	forms.isa = best_isa();
	for (const struct form_table *const *table = forms.isa->tables; *table; table++)
		for (size_t k = 0; k < (*table)->count; k++)
			add_names(&arena, &(*table)->forms[k]);
}

const struct isa *isa_selected(void)
{
	pthread_once(&forms.once, forms_initialize);
	return forms.isa;
}

const struct form *form_find(const char *name, size_t length)
{
	pthread_once(&forms.once, forms_initialize);
	return name_map_get(&forms.names, name, (uint32_t)length);
}

void engine_forms_visit(void (*visit)(void *opaque, const char *names, const char *operands),
			void *opaque)
{
	const struct isa *isa = isa_selected();

	for (const struct form_table *const *table = isa->tables; *table; table++)
		for (size_t k = 0; k < (*table)->count; k++)
			visit(opaque, (*table)->forms[k].names, (*table)->forms[k].operands);
}
