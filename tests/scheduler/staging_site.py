"""A scheduler's staging service over real connections, and who calls it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

from farbus.api.authority import Authority, Credentials, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.identity import Identity, Role
from farbus.api.server import serve_scheduler
from farbus.api.staging import NodeStaging, StagingClient, add_staging
from farbus.cli.jobfile import StageTable
from farbus.cli.staging import fetch_output, find_files, send_files
from farbus.errors import InvalidInput, NotFound
from farbus.model.job import Job, JobStatus, TaskGroup, TaskPlacement
from farbus.model.staging import CHUNK_BYTES, StagedFile, digest
from farbus.model.states import JobState
from farbus.scheduler.contents import Contents, Limits
from farbus.scheduler.staging import StagingService
from tests.api.test_servers import Echo, Recorder

BOB = Identity(name="bob", role=Role.USER)
ALPHA = Identity(name="alpha", role=Role.NODE)
BETA = Identity(name="beta", role=Role.NODE)
LIMIT = 10 * 2**20


class Engine:
    """Knows the jobs that a test says."""

    def __init__(self) -> None:
        self.known: dict[str, JobStatus] = {}
        self.machine = SimpleNamespace(jobs={})

    async def find(self, job_id: str) -> JobStatus:
        if job_id not in self.known:
            raise NotFound(f"there is no job {job_id}")
        return self.known[job_id]

    def run(self, job: Job, *nodes: str) -> Job:
        placements = tuple(TaskPlacement(task=f"main.{index}", node=node) for index, node in enumerate(nodes))
        self.known[job.id] = JobStatus(job=job, state=JobState.RUNNING, placements=placements)
        self.machine.jobs[job.id] = SimpleNamespace(job=job, state=JobState.RUNNING)
        return job


class Site:
    """A scheduler's staging service that is served, and who calls it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.engine = Engine()
        self.wall = 1_000_000.0
        self.limits = Limits(bytes=2 * LIMIT, files=200, user_bytes=LIMIT, user_files=100)
        self.authority = Authority.create(tmp_path / "ca")
        self.service = self.open()
        self.address = ""

    def open(self) -> StagingService:
        return StagingService(
            self.engine, self.path / "staging", limits=self.limits, job_limit_bytes=LIMIT, wall=lambda: self.wall,
        )  # fmt: skip

    def issue(self, name: str, role: Role) -> Credentials:
        return write_credentials(self.path / "c" / name, name, self.authority.issue(name, role))

    def client(self, name: str) -> ClusterClient:
        return ClusterClient.remote(address=self.address, credentials=self.issue(name, Role.USER))

    def node(self, name: str) -> NodeStaging:
        return NodeStaging(address=self.address, credentials=self.issue(name, Role.NODE))

    async def submit(self, contents: dict[str, bytes], *nodes: str, stage_out: tuple[str, ...] = ("out",)) -> Job:
        source = self.path / "source"
        for path, data in contents.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(data)
        files = find_files([StageTable(source=str(source / path), to=path) for path in contents], self.path)
        async with self.client("bob") as client:
            stage_in = await send_files(StagingClient(client), files)
        group = TaskGroup(name="main", command=("x",), count=max(1, len(nodes)))
        job = Job(id="j-1", name="x", user="bob", groups=(group,), cwd="", stage_in=stage_in, stage_out=stage_out)
        await self.service.check(BOB, job)
        return self.engine.run(job, *nodes)

    async def fetch(self, name: str = "bob", *, force: bool = False) -> list[str]:
        told: list[str] = []
        async with self.client(name) as client:
            (group,) = self.engine.known["j-1"].job.groups
            await fetch_output(
                StagingClient(client), "j-1", self.path / "got",
                by_task=group.count > 1, force=force, tell=told.append,
            )  # fmt: skip
        return [str(Path(path).relative_to(self.path / "got")) for path in told]

    def contents(self) -> set[str]:
        return {path.name for path in (self.path / "staging" / "users").rglob("*") if path.is_file()}


@contextlib.asynccontextmanager
async def serve_site(tmp_path: Path) -> AsyncIterator[Site]:
    """Serve a site over mutual TLS."""
    site = Site(tmp_path)
    server = await serve_scheduler(
        cluster=Recorder(),
        sessions=Echo(),
        listen="127.0.0.1:0",
        credentials=site.issue("s", Role.SCHEDULER),
        services=(functools.partial(add_staging, site.service),),
    )
    site.address = f"127.0.0.1:{server.port}"
    try:
        yield site
    finally:
        await server.stop()


async def output(contents: dict[str, bytes], *, broken: bool = False) -> AsyncIterator[tuple[StagedFile, bytes]]:
    for path, data in contents.items():
        yield StagedFile(path=path, size=len(data), sha256=digest(data)), data
    if broken:
        raise InvalidInput("planted")


async def received(node: NodeStaging, job: Job) -> dict[str, bytes]:
    manifest = await node.manifest(job.id, job.stage_in)
    found = {file.path: b"" for file in manifest.files}
    async for path, data in node.contents(job.id, manifest.files):
        found[path] += data
    return found


async def keep(contents: Contents, user: str, data: bytes) -> str:
    async with contents.receive(user, len(data)) as receiver:
        await receiver.write(data)
        return await receiver.finish(digest(data))


BIG = bytes(range(256)) * 12_288
"""Three pieces."""
PART = 2 * CHUNK_BYTES
