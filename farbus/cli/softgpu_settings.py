"""Whether software GPUs take the settings that they are to have (FARBUS_SOFTGPU)."""

from __future__ import annotations

from farbus.errors import Unavailable
from farbus.linux.nvml import WorkerNvml
from farbus.remoting import paths


async def refused_settings(settings: str) -> str:
    """Return why software GPUs refuse ``settings``, as a sentence, or nothing where they take them.

    Their own library is asked, for no device, so that nothing of them is made.
    """
    folder = str(paths.software_gpu_directory())
    nvml = WorkerNvml(environment={"LD_LIBRARY_PATH": folder, "FARBUS_SOFTGPU": f"{settings},count=0"})
    try:
        await nvml.list()
    except Unavailable as error:
        return error.message.partition("FARBUS_SOFTGPU: ")[2]
    finally:
        await nvml.stop()
    return ""
