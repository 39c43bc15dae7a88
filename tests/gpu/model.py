"""Build a driver with a GPU's times that computes nothing (model_driver.c), for where no GPU is at hand.

    python -m tests.gpu.model -o build/model
    FARBUS_SOFTGPU=cc=9.0,sms=132,mem=8GiB python -m tests.gpu.speed --libcuda build/model/libcuda.so.1 --torch PYTHON

What a program's threads spend on calls is the program's and remoting's own, and what the GPU would do is a guess.  So
ratios to ``native`` say what remoting costs the caller, and results mean nothing.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from tests.remoting.harness import BUILD

HERE = Path(__file__).parent
#: Of two libraries with one name a program is given one: the software GPU's copy has another, of the same length.
OLD_NAME, NEW_NAME = b"\0libcuda.so.1\0", b"\0libsoft.so.1\0"


def build(folder: Path, softgpu: Path = BUILD / "softgpu" / "libcuda.so.1") -> Path:
    """The driver's path in `folder`, which is made."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    renamed, driver = folder / "libsoft.so.1", folder / "libcuda.so.1"
    renamed.write_bytes(softgpu.read_bytes().replace(OLD_NAME, NEW_NAME))
    subprocess.run(
        [
            *(
                "cc",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fvisibility=hidden",
                "-shared",
                "-fPIC",
                "-Wl,--no-as-needed",
            ),
            *("-Wl,--no-as-needed", "-o", driver, HERE / "model_driver.c", renamed, f"-Wl,-rpath,{folder}", "-ldl"),
        ],
        check=True,
    )
    return driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where the driver goes")
    print(build(parser.parse_args().output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
