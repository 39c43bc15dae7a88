# fuzz.mk - fuzzers, each for FUZZ_SECONDS.  Included by native/Makefile after
# engine.mk and driver.mk.  gcc has no libFuzzer; mutate.c is the driver of ours.
# What executes (engine/handlers) is taken as it is built for programs: the fuzzers are
# after what reads hostile bytes, and generated loops take minutes under sanitizers.

FUZZ_BUILD := $(BUILD)/fuzz
FUZZ_SECONDS ?= 30
FUZZ_CFLAGS := -std=gnu11 -O1 -g -Wall -Wextra -Werror -fno-strict-aliasing -fwrapv -fno-omit-frame-pointer \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined -pthread -MMD -MP
# The engine handles faults of kernels itself.
FUZZ_ENVIRONMENT := ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:allocator_may_return_null=1:detect_leaks=1 \
	FARBUS_SOFTGPU=mem=64MiB FARBUS_SOFTGPU_NODE=fuzz-smoke

FUZZERS := softgpu_ptx softgpu_fatbin softgpu_launch
FUZZ_ENGINE := $(ENGINE_SOURCES:%.c=$(FUZZ_BUILD)/%.o) $(filter $(ENGINE_BUILD)/handlers/%,$(ENGINE_OBJS))
FUZZ_DRIVER := $(SOFTGPU_DRIVER_SOURCES:%.c=$(FUZZ_BUILD)/%.o) $(SOFTGPU_CUDART_OBJECTS)

$(FUZZ_BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FUZZ_CFLAGS) -c $< -o $@

$(FUZZ_BUILD)/softgpu_ptx $(FUZZ_BUILD)/softgpu_fatbin: $(FUZZ_ENGINE)
$(FUZZ_BUILD)/softgpu_launch: $(FUZZ_ENGINE) $(FUZZ_DRIVER)
$(FUZZERS:%=$(FUZZ_BUILD)/%): $(FUZZ_BUILD)/%: $(FUZZ_BUILD)/fuzz/%_fuzz.o $(FUZZ_BUILD)/fuzz/mutate.o
	$(CC) $(FUZZ_CFLAGS) -o $@ $(filter %.o,$^) $(ENGINE_LDLIBS)

.PHONY: fuzzers fuzz-smoke
fuzzers: $(FUZZERS:%=$(FUZZ_BUILD)/%)

# The node's shared memory goes with the last process that used it.
fuzz-smoke: fuzzers
	@set -e; for name in $(FUZZERS); do \
		$(FUZZ_ENVIRONMENT) $(FUZZ_BUILD)/$$name $(FUZZ_SECONDS) $(FUZZ_BUILD)/$$name.last || { \
			echo "fuzz-smoke: $$name ended with $$?; its input is in $(FUZZ_BUILD)/$$name.last" \
				"(again: $$name 0 $$name.last)" >&2; exit 1; }; done

-include $(patsubst %.o,%.d,$(filter $(FUZZ_BUILD)/%,$(FUZZ_ENGINE) $(FUZZ_DRIVER))) $(wildcard $(FUZZ_BUILD)/fuzz/*.d)
