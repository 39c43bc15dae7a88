"""Which functions of the driver API a program calls with success: a libcuda.so.1 around the shim.

The library is generated from the specification: each implemented function calls the shim's and
notes its number when that returns success; what cuGetProcAddress gives is replaced, too.  At exit
it writes the symbols into the file that FARBUS_RECORD names, one a line.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from farbus.remoting.spec import ENTRIES, Answer
from tests.remoting.harness import ROOT, SHIM
from tests.softgpu.driver_programs import COMPILER

_HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "%(abi)s"

#define API __attribute__((visibility("default")))

static unsigned char seen[%(limit)d];
struct row { const char *symbol; void **real; void *mine; int number; };
static const struct row rows[];
static const unsigned row_count;

static void open_shim(void)
{
	void *shim = dlopen("%(shim)s", RTLD_NOW | RTLD_LOCAL);

	if (!shim) {
		fprintf(stderr, "record: %%s\\n", dlerror());
		abort();
	}
	for (unsigned i = 0; i < row_count; i++)
		*rows[i].real = dlsym(shim, rows[i].symbol);
}

__attribute__((constructor)) static void begin(void) { open_shim(); }

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("FARBUS_RECORD");
	FILE *file = path ? fopen(path, "ae") : NULL;

	for (unsigned i = 0; file && i < row_count; i++)
		if (seen[rows[i].number])
			fprintf(file, "%%s\\n", rows[i].symbol);
	if (file)
		fclose(file);
}

static void replace(void **function)
{
	for (unsigned i = 0; function && i < row_count; i++)
		if (*rows[i].real && *rows[i].real == *function) {
			*function = rows[i].mine;
			return;
		}
}
"""


def _wrapper(symbol: str, parameters: str, number: int) -> str:
    parameters = parameters or "void"
    names = [] if parameters == "void" else [part.rsplit(" ", 1)[1].lstrip("*") for part in parameters.split(", ")]
    after = "\treplace(pfn);\n" if symbol.startswith("cuGetProcAddress") else ""
    return (
        f"static CUresult (*real_{symbol})({parameters});\n"
        f"API CUresult {symbol}({parameters});\n"
        f"CUresult {symbol}({parameters})\n{{\n"
        f"\tCUresult result = real_{symbol}({', '.join(names)});\n\n"
        f"\tif (result == CUDA_SUCCESS)\n\t\tseen[{number}] = 1;\n{after}"
        f"\treturn result;\n}}\n"
    )


def build_recorder(folder: Path) -> Path:
    """Compile the recorder around the built shim into `folder`; the path of its libcuda.so.1."""
    limit = max(entry.number for entry in ENTRIES) + 1
    text = [
        _HEAD % {"abi": ROOT / "native" / "generated" / "cuda_abi.h", "limit": limit, "shim": SHIM / "libcuda.so.1"}
    ]
    rows = []
    for entry in ENTRIES:
        for symbol in filter(None, (entry.symbol, entry.per_thread_symbol)):
            if entry.answer is Answer.UNSUPPORTED:
                text.append(
                    f"static CUresult (*real_{symbol})(void);\nAPI CUresult {symbol}(void);\n"
                    f"CUresult {symbol}(void)\n{{\n\treturn real_{symbol}();\n}}\n"
                )
            else:
                text.append(_wrapper(symbol, entry.parameters, entry.number))
            # The driver's function for each stream of a thread counts as its entry.
            rows.append(f'\t{{ "{symbol}", (void **)&real_{symbol}, (void *){symbol}, {entry.number} }},')
    text += ["static const struct row rows[] = {", *rows, "};", f"static const unsigned row_count = {len(rows)};"]
    source = folder / "record.c"
    source.write_text(
        "\n".join(text).replace("static const unsigned row_count;\n", "static const unsigned row_count;\n")
    )
    library = folder / "record" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    subprocess.run(
        [
            COMPILER or "cc", "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
            "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", str(source), "-o", str(library), "-ldl",
        ],
        check=True,
    )  # fmt: skip
    return library


def called_entries(record: Path) -> set[str]:
    """The symbols of the entries in what a program left; per-thread forms count as their entries."""
    if not record.exists():
        return set()
    called = set(record.read_text().split())
    return {entry.symbol for entry in ENTRIES if {entry.symbol, entry.per_thread_symbol} & called}
