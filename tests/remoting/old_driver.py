"""A driver as old as one likes: what a software GPU does, with the functions alone that CUDA had then."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from farbus.remoting.spec import ENTRIES
from tests.softgpu import driver_programs

OWN = {"cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2"}

HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

static int (*get)(const char *name, void **function, int version, uint64_t flags, int *status);

int cuDriverGetVersion(int *version)
{
	*version = VERSION;
	return 0;
}

/* What is asked of a later version is the last before: other arguments, by the same name. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	return get(name, function, version < VERSION ? version : VERSION, flags, status);
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, 0);
}
"""

#: A function whose arguments are whatever they are: the address of the other driver's is read when this one is opened.
PASS_ON = """
static void *at_{name} __attribute__((used));
__asm__(".globl {name}\\n.type {name},@function\\n{name}: jmp *at_{name}(%rip)\\n");
"""


def since() -> dict[str, int]:
    """By each function's name in the library: the first CUDA that has it, 1000 * major + 10 * minor."""
    found = {entry.symbol: entry.version for entry in ENTRIES}
    return found | {entry.symbol + entry.per_thread[1]: entry.per_thread[0] for entry in ENTRIES if entry.per_thread}


def source(library: Path, version: int) -> Iterator[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    later = {name for name, first in since().items() if first > version}
    names = sorted(exported - later - OWN)
    yield HEAD.replace("VERSION", str(version))
    for name in names:
        yield PASS_ON.format(name=name)
    yield "static void __attribute__((constructor)) open_other(void)\n{\n"
    yield f'\tvoid *other = dlopen("{library}", RTLD_NOW | RTLD_LOCAL);\n'
    yield '\t*(void **)&get = dlsym(other, "cuGetProcAddress_v2");\n'
    for name in names:
        yield f'\tat_{name} = dlsym(other, "{name}");\n'
    yield "}\n"


def build(library: Path, version: int, folder: Path) -> Path:
    """Compile a driver of that version before ``library``; it is for x86-64, whose jump stands in it."""
    target = folder / "libcuda.so.1"
    text = folder / "old_driver.c"
    text.write_text("".join(source(library, version)))
    command = [driver_programs.COMPILER, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", target, text, "-ldl"]
    subprocess.run(command, check=True)
    return target
