"""What a GPU shows of Farbus, on a machine that has nothing but it, a checkout, PyTorch and an archive:

    python3 tests/gpu/check.py build/payload/farbus-gpu.tar.xz -o FOLDER [--budget SECONDS] [--part NAME]...

The archive is what tests/gpu/pack.py made elsewhere.  Parts run one after another, each with a log and a time limit of
its own: what is left of the budget is shared among those that are left.  None keeps the next from running, or leaves a
process.  FOLDER gets summary.txt, summary.json and logs.tar.gz, anew after each part.  This file needs the standard
library alone.  Exit status: 0; 1 where a part did not end well, 2 where none could run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import difflib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLACE = ROOT / "build" / "gpu"
#: What comes back: an earlier run's is taken away first.
RESULTS = ("summary.txt", "summary.json", "logs.tar.gz")
LIBCUDA = "libcuda.so.1"
USUAL = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")

#: How long a program may take to end what it has begun when its time is up.
ENDS_WITHIN_S = 10.0
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

#: Files of tests/remoting that say something of a GPU.
TESTS = (
    "coverage suite programs layout conditions managed mapped pinned descriptors stress driver_calls graph_replays "
    "transports servers failures reserve quota"
)
PLUGINS = ("xdist.plugin", "pytest_timeout", "pytest_asyncio.plugin", "no:cacheprovider")
TEST_TIMEOUT_S = 60
#: Where ``--small`` makes everything so: a software GPU takes hours for what a GPU does in minutes.
SMALL_DIVISOR = 4096
SMALL_TESTS = ("tests/remoting/test_connections.py",)
SMALL_OPERATIONS = "matmul"

VERDICT = re.compile(r"^(eager|compiled) +(right|wrong|no code|failed|crashed|hung) +(.*?)  ", re.MULTILINE)
COUNTS = re.compile(r"^.*\d+ (?:passed|failed|error).*$", re.MULTILINE)


class Failed(Exception):
    """How a part ended, in one line."""

    result = "failed"


class Late(Failed):
    result = "out of time"


class Skipped(Failed):
    result = "skipped"


@dataclass
class Outcome:
    part: str
    result: str
    seconds: float
    reason: str


@dataclass
class Check:
    """The machine, and the part that runs now."""

    python: str
    torch: str
    libcuda: Path
    programs: Path
    logs: Path
    caches: Path
    small: bool = False
    deadline: float = 0.0
    has_torch: bool = field(init=False)

    def __post_init__(self) -> None:
        asked = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
        self.has_torch = subprocess.run([self.torch, "-c", asked], check=False, env=clean()).returncode == 0

    def compilers(self) -> dict[str, str]:
        """What keeps torch.compile's files out of the user's, and its work in the process that asks for it: processes
        of its own do not always end."""
        places = {"TRITON_CACHE_DIR": self.caches / "triton", "TORCHINDUCTOR_CACHE_DIR": self.caches / "inductor"}
        return {name: str(path) for name, path in places.items()} | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

    @property
    def divisor(self) -> str:
        return str(SMALL_DIVISOR if self.small else 1)

    @property
    def processes(self) -> int:
        """As many as have room on this machine beside their servers."""
        return max(1, (os.cpu_count() or 1) // 2)

    def run(
        self,
        log: str,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        fine: Sequence[int] = (0,),
        share: float = 1.0,
    ) -> str:
        """Run a program and return its standard output, which is kept as ``log``, as is its standard error.

        Raises Late where it takes more than ``share`` of the part's time, Failed where its status is not ``fine``.
        """
        output, errors = self.logs / f"{log}.txt", self.logs / f"{log}.err"
        limit = (self.deadline - time.monotonic()) * share
        with output.open("wb") as out, errors.open("wb") as err:
            program = subprocess.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                env=clean() | {"TMPDIR": str(self.caches)} | self.compilers() | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                status = program.wait(max(0.0, limit))
            except subprocess.TimeoutExpired:
                # As Ctrl-C, upon which tests report and clusters stop.
                os.killpg(program.pid, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(ENDS_WITHIN_S)
                raise Late(f"{log}: not done after {limit:.0f} s") from None
            finally:
                end_descendants()
                program.poll()
        if status not in fine:
            raise Failed(f"{log}: status {status}: {last_words(errors) or last_words(output) or 'it said nothing'}")
        return output.read_text(errors="replace")

    def ours(self, log: str, *arguments: str | Path, fine: Sequence[int] = (0,), share: float = 1.0) -> str:
        """Run a module of the checkout's."""
        environment = {"PYTHONPATH": str(ROOT)}
        return self.run(log, self.python, "-P", "-m", *arguments, environment=environment, fine=fine, share=share)

    def on_the_way(
        self, way: str, log: str, *command: str | Path, fine: Sequence[int] = (0,), share: float = 1.0
    ) -> str:
        """Run a program with the driver, or the way to it, that ways.py knows by this name."""
        options = ("--libcuda", self.libcuda, "--way", way, "--")
        return self.ours(log, "tests.gpu.ways", *options, *command, fine=fine, share=share)

    def operations(self, way: str, mode: str, *, share: float = 1.0) -> tuple[dict[str, str], Failed | None]:
        """The verdicts of operations.py, by operation; and what kept some of them, or all, from running."""
        if not self.has_torch:
            raise Skipped(f"{self.torch} has no PyTorch")
        log = f"{mode}_{way}"
        options = ["--mode", mode, "--processes", str(self.processes), "-o", self.logs / f"{log}.json"]
        options += ["--only", SMALL_OPERATIONS] if self.small else []
        program = (self.torch, "-W", "ignore", ROOT / "tests" / "pytorch" / "operations.py")
        trouble = None
        try:
            self.on_the_way(way, log, *program, *options, fine=(0, 1), share=share)
        except Failed as error:
            trouble = error
        said = (self.logs / f"{log}.txt").read_text(errors="replace")
        return {found[3]: found[2] for found in VERDICT.finditer(said)}, trouble


def clean() -> dict[str, str]:
    """This process's environment, without what names modules of another Python or reads them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def last_words(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:300] if lines else ""


def tally(verdicts: Mapping[str, str]) -> str:
    wrong = [f"{name} ({verdict})" for name, verdict in verdicts.items() if verdict != "right"]
    rest = f": not {', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''}" if wrong else ""
    return f"{len(verdicts) - len(wrong)} of {len(verdicts)} right{rest}"


# ---- the parts, in the order of what they are worth ----


def facts(check: Check) -> str:
    """Driver, GPU, tools."""
    path = ":".join(filter(None, [str(check.libcuda.parent), os.environ.get("LD_LIBRARY_PATH", "")]))
    said = check.run("facts", check.torch, HERE / "facts.py", check.libcuda, environment={"LD_LIBRARY_PATH": path})
    known = dict(line.split(": ", 1) for line in said.splitlines())
    if "unknown" in known["device"]:
        raise Failed(known["device"])
    return f"{known['device']}; {known['driver']}; torch {known['torch']}; nvcc {known['nvcc']}"


def speed(check: Check) -> str:
    """What programs lose: speed.py, alone on the machine."""
    report = check.logs / "speed.json"
    options = ["--libcuda", check.libcuda, "--kernels", check.programs / "kernels", "--divisor", check.divisor]
    # A software GPU has no code for what they do.
    options += ["--torch", check.torch] if check.has_torch and not check.small else []
    check.ours("speed", "tests.gpu.speed", *options, "--rounds", "1", "-o", report, fine=(0, 1))
    return same_results(report)


def same_results(report: Path) -> str:
    told = json.loads(report.read_text())
    if bad := {name: one["errors"] for name, one in told.items() if not one["agrees"]}:
        first, errors = next(iter(bad.items()))
        why = " ".join(errors.values()) or "another result"
        raise Failed(f"{len(bad)} of {len(told)} workloads, first {first}: {why}"[:300])
    return f"{len(told)} workloads, with the same results each way"


def threads(check: Check) -> str:
    """What several threads gain where something large is copied: speed.py, each way with and without them."""
    report = check.logs / "threads.json"
    options = ["--libcuda", check.libcuda, "--kernels", check.programs / "kernels", "--divisor", check.divisor]
    ways = [word for way in ("shm", "tcp", "tls") for word in ("--way", f"{way}-1", "--way", way)]
    check.ours("threads", "tests.gpu.speed", *options, *ways, "--rounds", "1", "-o", report, fine=(0, 1))
    return same_results(report)


def errors(check: Check) -> str:
    """What wrong calls report: errors.cu."""
    told = {}
    for way in ("native", "shm", "tcp"):
        told[way] = check.on_the_way(way, f"errors_{way}", check.programs / "errors").splitlines()
    differing = []
    for way in ("shm", "tcp"):
        lines = list(difflib.unified_diff(told["native"], told[way], "native", way, n=1, lineterm=""))
        (check.logs / f"errors_{way}.diff").write_text("\n".join(lines))
        if other := [line for line in lines[2:] if line.startswith("+")]:
            differing.append(f"{way}: {len(other)} lines, first {' '.join(other[0][1:].split())}")
        elif lines:
            differing.append(f"{way}: lines are missing")
    if differing:
        raise Failed("; ".join(differing))
    return f"{len(told['native'])} lines, the same natively, over shm and tcp"


def eager(check: Check) -> str:
    """PyTorch's operations by the kernels of its wheel."""
    native, trouble = check.operations("native", "eager", share=0.5)
    remote, other = check.operations("shm", "eager")
    counts = f"natively {tally(native)}; over shm {tally(remote)}"
    if differing := [name for name in native if remote.get(name, native[name]) != native[name]]:
        first = differing[0]
        raise Failed(f"{len(differing)} differ, first {first}: {remote[first]}, natively {native[first]}; {counts}")
    if trouble := trouble or other:
        raise type(trouble)(f"{counts}; {trouble}")
    return counts


def compiled(check: Check) -> str:
    """PyTorch's operations by torch.compile."""
    verdicts, trouble = check.operations("tcp", "compiled")
    counts = f"over tcp {tally(verdicts)}"
    if trouble:
        raise type(trouble)(f"{counts}; {trouble}")
    if set(verdicts.values()) != {"right"}:
        raise Failed(counts)
    return counts


def tests(check: Check) -> str:
    """Test files of remoting on this driver; some are about several devices or a software GPU and fail."""
    files = SMALL_TESTS if check.small else tuple(f"tests/remoting/test_{name}.py" for name in TESTS.split())
    environment = {
        "FARBUS_TEST_LIBCUDA": str(check.libcuda),
        "FARBUS_ALL_PROGRAMS": "0" if check.small else "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if (nvcc := check.programs / "nvcc").exists():
        environment["NVCC"] = str(nvcc)
    command: list[str | Path] = [check.python, "-P", "-m", "pytest", "-q", "-rfE", "--tb=short"]
    command += [word for plugin in PLUGINS for word in ("-p", plugin)]
    command += ["-n", str(2 * check.processes), "--timeout", str(TEST_TIMEOUT_S)]
    command += [f"--junitxml={check.logs / 'tests.xml'}", *files]
    late = ""
    try:
        said = check.run("tests", *command, environment=environment, fine=(0, 1))
    except Late as error:
        late, said = str(error), (check.logs / "tests.txt").read_text(errors="replace")
    bad = re.findall(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+)", said, re.MULTILINE)
    counts = (COUNTS.findall(said) or ["no test has ended"])[-1].strip("= ")
    if late:
        raise Late(f"{late}; {counts}")
    if bad:
        raise Failed(f"{counts}: {', '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}")
    return counts


def bench(check: Check) -> str:
    """Calls and copies beside the bare transport."""
    options = ["--transport", "shm"] if check.small else []
    said = check.ours("bench", "farbus.cli", "bench", "remoting", "--libcuda", check.libcuda, "--json", *options)
    trips = [row for row in json.loads(said)["results"] if row["name"] == "round_trip"]
    return "round trip " + ", ".join(f"{row['transport']} {row['value']:.1f} {row['unit']}" for row in trips)


def agent(check: Check) -> str:
    """A cluster that lends this GPU: agent.py."""
    options = ["--libcuda", check.libcuda, "-o", check.logs]
    options += ["--torch", check.torch] if check.has_torch else []
    program = (check.programs / "kernels", str(SMALL_DIVISOR))
    said = check.ours("agent", "tests.gpu.agent", *options, "--", *program, fine=(0, 1)).splitlines()
    if bad := [line.removeprefix("failed ") for line in said if line.startswith("failed ")]:
        raise Failed("; ".join(bad)[:300])
    return ", ".join(line.removeprefix("ok ").partition(":")[0] for line in said)


#: Each part with its share of the time.
PARTS: dict[str, tuple[Callable[[Check], str], int]] = {
    "facts": (facts, 5),
    "speed": (speed, 25),
    "threads": (threads, 8),
    "errors": (errors, 6),
    "eager": (eager, 20),
    "compiled": (compiled, 15),
    "tests": (tests, 20),
    "bench": (bench, 10),
    "agent": (agent, 12),
}


# ---- the machine ----


def find_libcuda() -> Path | None:
    """The driver as the loader finds it, or where it usually is."""
    cache = ""
    if ldconfig := shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"):
        cache = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    known = re.findall(rf"^\s*{re.escape(LIBCUDA)} \(.*x86-64.*\) => (\S+)$", cache, re.MULTILINE)
    named = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    places = [Path(folder) / LIBCUDA for folder in named] + [Path(path) for path in known]
    places += [Path(folder) / LIBCUDA for folder in USUAL]
    return next((path for path in places if path.is_file() and "stubs" not in path.parts), None)


def unpack(payload: Path, root: Path) -> None:
    """Put what the archive has into the checkout, newer than its sources: nothing is to be compiled again."""

    def renewed(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        return tarfile.data_filter(member.replace(mtime=time.time()), path)

    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    if importlib.util.find_spec("numpy") is None:
        raise Failed(
            f"{sys.executable} has no NumPy, which the archive leaves out: start this by the Python with PyTorch"
        )
    try:
        with tarfile.open(payload) as tar:
            named = tar.extractfile(str(PLACE.relative_to(ROOT) / "python"))
            made_for = named.read().decode().strip() if named else ""
            if made_for != this:
                raise Failed(f"the archive is for Python {made_for}, this is {this}: make one with --python {this}")
            tar.extractall(root, filter=renewed)
    except (KeyError, tarfile.TarError) as error:
        raise Failed(f"{payload}: no archive of tests.gpu.pack's: {' '.join(str(error).split())}") from None


def make_environment(place: Path) -> str:
    """Make a Python of ours out of this one: the archive's packages, and behind them what is here."""
    folder = place / "venv"
    venv.EnvBuilder(symlinks=True, clear=True).create(folder)
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "farbus.pth").write_text("\n".join([str(place / "site"), *here]) + "\n")
    return str(folder / "bin" / "python")


def adopt() -> None:
    """Become the parent of descendants that lose theirs, so that none gets away."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """All processes that this one has started, and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def end_descendants() -> None:
    """Kill what is left: daemons of a cluster, servers, programs."""
    end = time.monotonic() + ENDS_WITHIN_S
    while (left := descendants()) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def run_part(name: str, check: Check, seconds: float) -> Outcome:
    begun = time.monotonic()
    check.deadline = begun + seconds
    try:
        result, reason = "ok", PARTS[name][0](check)
    except Failed as ended:
        result, reason = ended.result, str(ended)
    except Exception as error:
        result, reason = "failed", f"{type(error).__name__}: {error}"
    return Outcome(name, result, round(time.monotonic() - begun, 1), " ".join(reason.split())[:600])


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [f"{'part':10}{'result':13}{'seconds':>8}  reason"]
    rows += [f"{one.part:10}{one.result:13}{one.seconds:8.1f}  {one.reason}" for one in outcomes]
    return "\n".join(rows)


def save(folder: Path, outcomes: Sequence[Outcome], logs: Path) -> None:
    text, document, archive = (folder / name for name in RESULTS)
    text.write_text(table(outcomes) + "\n")
    document.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(logs, "logs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("payload", nargs="?", type=Path, help="pack.py's archive; without: what is built here")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--libcuda", type=Path, help="the driver (default: the one that the loader finds)")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="which has PyTorch (default: this)")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for all of it (540)")
    parser.add_argument("--part", action="append", choices=PARTS, help="run this one; again for more (default: all)")
    parser.add_argument("--small", action="store_true", help="a little of each, as for a software GPU")
    parser.add_argument("--programs", type=Path, default=PLACE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.budget
    adopt()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    libcuda = arguments.libcuda or find_libcuda()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="farbus-check-") as folder:
        try:
            if not libcuda or not libcuda.is_file():
                raise Failed(f"{libcuda or LIBCUDA}: no such driver: name it by --libcuda")
            python = sys.executable
            if arguments.payload:
                unpack(arguments.payload, ROOT)
                python = make_environment(PLACE)
            arguments.output.mkdir(parents=True, exist_ok=True)
            for name in RESULTS:
                (arguments.output / name).unlink(missing_ok=True)
            programs = arguments.programs.resolve()
            logs, caches = (Path(folder) / name for name in ("logs", "caches"))
            logs.mkdir()
            caches.mkdir()
            check = Check(python, arguments.torch, libcuda.absolute(), programs, logs, caches, arguments.small)
        except (Failed, OSError, tarfile.TarError) as error:
            print(f"check: {error}", file=sys.stderr)
            return 2
        left = [name for name in PARTS if name in (arguments.part or PARTS)]
        while left:
            seconds = (end - time.monotonic()) * PARTS[left[0]][1] / sum(PARTS[name][1] for name in left)
            try:
                print(f"check: {left[0]}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
                outcomes.append(run_part(left[0], check, seconds))
            except SystemExit:
                # The signal may have come while a program was being started.
                end_descendants()
                outcomes.append(Outcome(left[0], "failed", 0.0, "interrupted"))
                save(arguments.output, outcomes, check.logs)
                raise
            left.pop(0)
            save(arguments.output, outcomes, check.logs)
    print(table(outcomes))
    return 0 if all(one.result in ("ok", "skipped") for one in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
