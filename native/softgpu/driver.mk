# driver.mk - the software GPU's libcuda.so.1 and libnvidia-ml.so.1.
#
# Included by native/Makefile after engine.mk, which names the engine's objects
# in ENGINE_OBJS; adds itself to `all`.  Used alone from native/ (make -f
# softgpu/driver.mk) it includes engine.mk.  What CUDA's runtime needs comes from
# native/cudart: the objects in CUDART_OBJS, or else compiled here, where
# CUDART_HANDSHAKE=0 leaves the handshake out.

ifndef ENGINE_OBJS
.DEFAULT_GOAL := softgpu-driver
include softgpu/engine.mk
endif

BUILD ?= build
SOFTGPU_BUILD := $(BUILD)/softgpu
SOFTGPU_CFLAGS ?= -O2 -g
# With exceptions a call also ends that a function of the program's leaves by pthread_exit.
SOFTGPU_DRIVER_FLAGS := -std=gnu11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden \
	-fno-strict-aliasing -fexceptions -MMD -MP $(SANITIZE)

# The driver API's functions (api) stand on its objects (driver), and those on the engine.
SOFTGPU_DRIVER_SOURCES := $(sort $(wildcard softgpu/driver/*.c softgpu/driver/*/*.c softgpu/api/*.c))
SOFTGPU_DRIVER_OBJECTS := $(SOFTGPU_DRIVER_SOURCES:softgpu/%.c=$(SOFTGPU_BUILD)/%.o)
SOFTGPU_NVML_SOURCES := $(sort $(wildcard softgpu/nvml/*.c)) softgpu/driver/board.c softgpu/driver/board_options.c
SOFTGPU_NVML_OBJECTS := $(SOFTGPU_NVML_SOURCES:softgpu/%.c=$(SOFTGPU_BUILD)/%.o)

SOFTGPU_CUDART_SOURCES := $(filter-out $(if $(filter 0,$(CUDART_HANDSHAKE)),cudart/handshake.c), \
	$(wildcard cudart/*.c))
SOFTGPU_CUDART_OBJECTS := $(or $(CUDART_OBJS), \
	$(SOFTGPU_CUDART_SOURCES:cudart/%.c=$(SOFTGPU_BUILD)/cudart_%.o))
SOFTGPU_CUDART_FLAGS := $(if $(filter 0,$(CUDART_HANDSHAKE)),,-DCUDART_HANDSHAKE)

.PHONY: softgpu-driver
all: softgpu-driver
softgpu-driver: $(SOFTGPU_BUILD)/libcuda.so.1 $(SOFTGPU_BUILD)/libnvidia-ml.so.1 softgpu-compilers

# Stand-ins for compilers whose machine code the software GPU can't run, in a folder of their
# own: only who asks for them finds them.  NVRTC's SONAME names CUDA's major version.
SOFTGPU_COMPILERS := $(addprefix $(SOFTGPU_BUILD)/compilers/,ptxas libnvrtc.so.12 libnvrtc.so.13)
.PHONY: softgpu-compilers
softgpu-compilers: $(SOFTGPU_COMPILERS)

$(SOFTGPU_BUILD)/compilers/ptxas: softgpu/compilers/ptxas
	@mkdir -p $(@D)
	install -m 755 $< $@

$(SOFTGPU_BUILD)/compilers/libnvrtc.so.%: softgpu/compilers/nvrtc.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden $(SOFTGPU_CFLAGS) -shared \
		-Wl,-soname,$(@F) -Wl,-z,defs -o $@.new $< -ldl -pthread
	mv -f $@.new $@

$(sort $(SOFTGPU_DRIVER_OBJECTS) $(SOFTGPU_NVML_OBJECTS)): $(SOFTGPU_BUILD)/%.o: softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFTGPU_DRIVER_FLAGS) $(SOFTGPU_CFLAGS) -c $< -o $@

$(SOFTGPU_BUILD)/cudart_%.o: cudart/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFTGPU_DRIVER_FLAGS) $(SOFTGPU_CUDART_FLAGS) -D_GNU_SOURCE $(SOFTGPU_CFLAGS) -c $< -o $@

# Servers have the old library mapped: the new one is put beside it, then in its place.
# Calls between the driver's own functions stay inside it (-Bsymbolic), also
# when another libcuda is loaded in the same process.  No dlclose: workers run.
$(SOFTGPU_BUILD)/libcuda.so.1: $(SOFTGPU_DRIVER_OBJECTS) $(ENGINE_OBJS) \
		$(SOFTGPU_CUDART_OBJECTS) softgpu/api/libcuda.map
	$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script=softgpu/api/libcuda.map \
		-Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,defs $(SANITIZE) $(SOFTGPU_CFLAGS) -o $@.new \
		$(filter %.o,$^) $(or $(ENGINE_LDLIBS),-lm -ldl -pthread)
	mv -f $@.new $@

$(SOFTGPU_BUILD)/libnvidia-ml.so.1: $(SOFTGPU_NVML_OBJECTS) softgpu/nvml/nvml.map
	$(CC) -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=softgpu/nvml/nvml.map \
		-Wl,-Bsymbolic -Wl,-z,defs $(SANITIZE) $(SOFTGPU_CFLAGS) -o $@.new $(filter %.o,$^) -lpthread
	mv -f $@.new $@

-include $(SOFTGPU_DRIVER_OBJECTS:.o=.d) $(SOFTGPU_CUDART_OBJECTS:.o=.d) $(SOFTGPU_NVML_OBJECTS:.o=.d)
