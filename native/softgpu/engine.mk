# engine.mk - the PTX engine.  Included by native/Makefile (paths are relative to
# native/); exposes ENGINE_OBJS and what a program that links them needs.

ENGINE_DIR := softgpu
BUILD ?= build
ENGINE_BUILD := $(BUILD)/softgpu
ENGINE_CC ?= $(CC)
ENGINE_WARNINGS := -Wall -Wextra -Werror
# Offsets and addresses of PTX wrap, as a device's do.
ENGINE_CFLAGS := -std=gnu11 -O2 -g -fwrapv -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=hidden -pthread $(ENGINE_WARNINGS) $(SANITIZE)
# What the handlers need to be vectorised, and to round as PTX says.
ENGINE_HANDLER_CFLAGS := -std=gnu11 -O3 -fPIC -fvisibility=hidden $(ENGINE_WARNINGS) $(SANITIZE) \
	-ffp-contract=off -fno-math-errno -fno-trapping-math -fwrapv -fno-strict-aliasing
# Addresses are the kernel's: what is wrong with them is its launch's error.
ENGINE_HANDLER_CFLAGS += $(if $(SANITIZE),-fno-sanitize=null -fno-sanitize=alignment)
ENGINE_LDLIBS := -lm -ldl -pthread

ENGINE_SOURCES := arena names ptx_lex ptx_parse ptx_declare object fatbin linker module forms opcodes decode \
	decode_emit decode_statement decode_control decode_memory decode_move decode_compare \
	decode_convert decode_matrix decode_cluster decode_tensor decode_texture warp warpgroup collective barrier arrive cluster \
	mbarrier tensor narrow video wide texture surface strict reach multimem special fault block gang pool print builtin \
	launch
ENGINE_HANDLERS := integer float half convert memory multimem warp matrix warpgroup control
# The levels of instruction sets that handlers are compiled for: forms.c chooses when a program starts.
ENGINE_MACHINE := $(firstword $(subst -, ,$(shell $(ENGINE_CC) -dumpmachine)))
ifeq ($(ENGINE_MACHINE),aarch64)
ENGINE_LEVELS := v8
ENGINE_MARCH := armv8-a
else
ENGINE_LEVELS := v2 v3 v4
ENGINE_MARCH = x86-64-$(1)
endif

ENGINE_OBJS := $(ENGINE_SOURCES:%=$(ENGINE_BUILD)/%.o) \
	$(foreach level,$(ENGINE_LEVELS),$(ENGINE_HANDLERS:%=$(ENGINE_BUILD)/handlers_%_$(level).o))
ENGINE_TEST_LIBRARY := $(ENGINE_BUILD)/tests/libsoftgpu_engine.so

$(ENGINE_BUILD) $(ENGINE_BUILD)/tests:
	mkdir -p $@

$(ENGINE_SOURCES:%=$(ENGINE_BUILD)/%.o): $(ENGINE_BUILD)/%.o: $(ENGINE_DIR)/%.c | $(ENGINE_BUILD)
	$(ENGINE_CC) $(ENGINE_CFLAGS) $(ENGINE_EXTRA_CFLAGS) -MMD -MP -c -o $@ $<

define engine_level_rule
$(ENGINE_HANDLERS:%=$(ENGINE_BUILD)/handlers_%_$(1).o): $(ENGINE_BUILD)/handlers_%_$(1).o: \
		$(ENGINE_DIR)/handlers_%.c | $(ENGINE_BUILD)
	$(ENGINE_CC) $(ENGINE_HANDLER_CFLAGS) $(ENGINE_EXTRA_CFLAGS) -march=$(ENGINE_MARCH) -DISA=$(1) \
		-MMD -MP -c -o $$@ $$<
endef
$(foreach level,$(ENGINE_LEVELS),$(eval $(call engine_level_rule,$(level))))

# The engine with its interface visible, for the tests in tests/softgpu.
$(ENGINE_TEST_LIBRARY): $(ENGINE_OBJS) $(ENGINE_DIR)/tests/engine.map | $(ENGINE_BUILD)/tests
	$(ENGINE_CC) -shared -o $@.new $(ENGINE_OBJS) -Wl,--version-script=$(ENGINE_DIR)/tests/engine.map \
		$(ENGINE_LDLIBS)
	mv -f $@.new $@

.PHONY: engine engine-test-library
engine: $(ENGINE_OBJS)
engine-test-library: $(ENGINE_TEST_LIBRARY)

-include $(wildcard $(ENGINE_BUILD)/*.d)
