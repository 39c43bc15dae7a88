# remoting.mk - fuzzers of remoting's server, for fuzz-smoke.  They bring their own
# driver: a session is a process, not a function.

REMOTING_FUZZERS := remoting_server remoting_ring remoting_tls remoting_resume
REMOTING_FUZZ_BUILD := $(BUILD)/fuzz/remoting
REMOTING_FUZZ_SECONDS ?= 30
REMOTING_FUZZ_CFLAGS := -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -fno-omit-frame-pointer \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined -pthread -MMD -MP
REMOTING_FUZZ_OBJECTS := $(patsubst %.c,$(REMOTING_FUZZ_BUILD)/%.o,$(WIRE_SOURCES) $(TRANSPORT_SOURCES) $(SERVER_SOURCES))

$(REMOTING_FUZZ_BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(REMOTING_FUZZ_CFLAGS) -c $< -o $@

$(REMOTING_FUZZERS:%=$(REMOTING_FUZZ_BUILD)/%): $(REMOTING_FUZZ_BUILD)/%: $(REMOTING_FUZZ_BUILD)/fuzz/%_fuzz.o $(REMOTING_FUZZ_OBJECTS)
	$(CC) $(REMOTING_FUZZ_CFLAGS) -o $@ $< $(filter-out $(OWN_OBJECTS),$(REMOTING_FUZZ_OBJECTS)) -ldl

# It includes that source.
$(REMOTING_FUZZ_BUILD)/remoting_resume: OWN_OBJECTS = $(REMOTING_FUZZ_BUILD)/server/session/resume.o

.PHONY: fuzz-remoting fuzz-smoke
fuzz-smoke: fuzz-remoting
fuzz-remoting: $(REMOTING_FUZZERS:%=$(REMOTING_FUZZ_BUILD)/%) softgpu-driver
	@mkdir -p -m 700 $(REMOTING_FUZZ_BUILD)/images
	@set -e; for name in $(REMOTING_FUZZERS); do \
		ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0 FARBUS_SOFTGPU=mem=64MiB FARBUS_SOFTGPU_NODE=fuzz-remoting \
		FARBUS_FUZZ_IMAGES=$(CURDIR)/$(REMOTING_FUZZ_BUILD)/images \
		FARBUS_FUZZ_LIBCUDA=$(CURDIR)/$(BUILD)/softgpu/libcuda.so.1 \
		$(REMOTING_FUZZ_BUILD)/$$name $(REMOTING_FUZZ_SECONDS) $(REMOTING_FUZZ_BUILD)/$$name.last; done

-include $(wildcard $(REMOTING_FUZZ_BUILD)/*/*.d $(REMOTING_FUZZ_BUILD)/*/*/*.d)
