/* device.h - the software GPU's NVML: what its files share. */
#ifndef FARBUS_SOFTGPU_NVML_DEVICE_H
#define FARBUS_SOFTGPU_NVML_DEVICE_H

#include "../../nvml/nvml_abi.h"

/* NVML_ERROR_UNINITIALIZED outside of nvmlInit and its nvmlShutdown. */
nvmlReturn_t nvml_device_ready(void);

#endif
