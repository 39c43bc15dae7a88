# engine.mk - the PTX engine.  Included by native/Makefile (paths are relative to
# native/); exposes ENGINE_OBJS and what a program that links them needs.

ENGINE_DIR := softgpu/engine
BUILD ?= build
ENGINE_BUILD := $(BUILD)/softgpu/engine
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

ENGINE_HANDLERS := $(sort $(wildcard $(ENGINE_DIR)/handlers/*.c))
ENGINE_SOURCES := $(filter-out $(ENGINE_HANDLERS),$(sort $(wildcard $(ENGINE_DIR)/*.c $(ENGINE_DIR)/*/*.c)))
# The levels of instruction sets that handlers are compiled for: grid/forms.c chooses when a program starts.
ENGINE_MACHINE := $(firstword $(subst -, ,$(shell $(ENGINE_CC) -dumpmachine)))
ifeq ($(ENGINE_MACHINE),aarch64)
ENGINE_LEVELS := v8
ENGINE_MARCH := armv8-a
else
ENGINE_LEVELS := v2 v3 v4
ENGINE_MARCH = x86-64-$(1)
endif

ENGINE_OBJS := $(ENGINE_SOURCES:$(ENGINE_DIR)/%.c=$(ENGINE_BUILD)/%.o) \
	$(foreach level,$(ENGINE_LEVELS),$(ENGINE_HANDLERS:$(ENGINE_DIR)/%.c=$(ENGINE_BUILD)/%_$(level).o))
ENGINE_TEST_LIBRARY := $(BUILD)/softgpu/tests/libsoftgpu_engine.so

$(ENGINE_SOURCES:$(ENGINE_DIR)/%.c=$(ENGINE_BUILD)/%.o): $(ENGINE_BUILD)/%.o: $(ENGINE_DIR)/%.c
	@mkdir -p $(@D)
	$(ENGINE_CC) $(ENGINE_CFLAGS) $(ENGINE_EXTRA_CFLAGS) -MMD -MP -c -o $@ $<

define engine_level_rule
$(ENGINE_HANDLERS:$(ENGINE_DIR)/%.c=$(ENGINE_BUILD)/%_$(1).o): $(ENGINE_BUILD)/%_$(1).o: $(ENGINE_DIR)/%.c
	@mkdir -p $$(@D)
	$(ENGINE_CC) $(ENGINE_HANDLER_CFLAGS) $(ENGINE_EXTRA_CFLAGS) -march=$(ENGINE_MARCH) -DISA=$(1) \
		-MMD -MP -c -o $$@ $$<
endef
$(foreach level,$(ENGINE_LEVELS),$(eval $(call engine_level_rule,$(level))))

# The engine with its interface visible, for the tests in tests/softgpu.
$(ENGINE_TEST_LIBRARY): $(ENGINE_OBJS) softgpu/tests/engine.map
	@mkdir -p $(@D)
	$(ENGINE_CC) -shared -o $@.new $(ENGINE_OBJS) -Wl,--version-script=softgpu/tests/engine.map \
		$(ENGINE_LDLIBS)
	mv -f $@.new $@

.PHONY: engine engine-test-library
engine: $(ENGINE_OBJS)
engine-test-library: $(ENGINE_TEST_LIBRARY)

-include $(ENGINE_OBJS:.o=.d)
