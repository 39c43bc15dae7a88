"""``python -m tests.remoting.checked``: find for each implemented function a program that calls it.

Runs every program of calls/ and of the software GPU's tests through the shim and the recorder, and
writes farbus/remoting/spec/checked.py from those that end well.  What that file says is what
test_coverage.py holds the programs to.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from farbus.remoting.spec import ENTRIES, Answer
from tests.remoting.harness import BUILD, PROGRAM_TIMEOUT_S, ROOT, remote_session
from tests.remoting.record import build_recorder, called_entries
from tests.remoting.test_coverage import OWN, build_any, build_driver, recorded
from tests.softgpu.driver_programs import PROGRAMS
from tests.softgpu.test_driver_programs import HELPERS

_HEAD = '''"""Which program calls a function through the shim, with success, and checks what it did.

Written by ``python -m tests.remoting.checked``; names are those of programs in
tests/remoting/calls and tests/softgpu/programs, which tests/remoting/test_coverage.py runs.
"""

from __future__ import annotations

from typing import Final

#: Symbol -> program.
CHECKED: Final[dict[str, str]] = {
'''


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|\d+", name)}


def _record(name: str, recorder: Path, folder: Path) -> set[str]:
    """Symbols of the entries that the program calls; none if it fails."""
    program, options = build_any(name, folder)
    record = folder / "record"
    environment = {"FARBUS_SOFTGPU": options, "FARBUS_SOFTGPU_NODE": str(folder)}
    driver = build_driver(name, BUILD / "softgpu" / "libcuda.so.1", folder)
    with remote_session(libcuda=driver, folder=folder, environment=environment) as remote:
        try:
            done = subprocess.run(
                [program],
                env=remote.environment(**recorded(recorder, record)),
                capture_output=True,
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return set()
    return called_entries(record) if done.returncode == 0 else set()


def main() -> int:
    names = [*OWN, *sorted(path.stem for path in PROGRAMS.glob("driver_*.c") if path.stem not in HELPERS)]
    called: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as text:
        recorder = build_recorder(Path(text))
        for name in names:
            folder = Path(text) / name
            folder.mkdir()
            called[name] = _record(name, recorder, folder)
            print(f"{name}: {len(called[name])} functions" if called[name] else f"{name}: fails over remoting")
    lines = []
    for entry in sorted(ENTRIES, key=lambda entry: entry.symbol):
        if entry.answer is Answer.UNSUPPORTED:
            continue
        callers = [name for name in names if entry.symbol in called[name]]
        if callers:
            # Programs of calls/ are about the functions that they call; of the others, the one that is named alike.
            words = _words(entry.symbol)
            best = max(callers, key=lambda name: (name in OWN, len(words & _words(name)), -len(called[name])))
            lines.append(f'    "{entry.symbol}": "{best}",')
    (ROOT / "farbus" / "remoting" / "spec" / "checked.py").write_text("\n".join([_HEAD.rstrip("\n"), *lines, "}", ""]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
