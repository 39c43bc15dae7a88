"""``farbus install``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from farbus.cli.installation import FILES, SETTINGS, STATE, USERS, Installation, Outcome, Role, Step, check_command
from farbus.cli.manual import manual_page
from farbus.cli.options import command_app, examples
from farbus.errors import Conflict, InvalidInput, NotPermitted
from farbus.linux.service_manager import Systemd
from farbus.linux.users import is_known
from farbus.model.address import is_endpoint
from farbus.model.nvmeof import MODEL, STRIPE_PREFIX

app = command_app()

PROGRAMS = ("farbus-task-*", "farbus-lease-*")
"""Units of what runs for others on a node."""

STORAGE_NAMES = (f"ID_MODEL={MODEL.split()[0]}*", f"DM_NAME={STRIPE_PREFIX}*", "DM_NAME=*-vol--*", "DM_NAME=*-lease--*")
"""Properties of block devices that the rules about storage may concern; the rules look closer."""


@app.command(
    epilog=examples(
        "farbus install agent --scheduler control:7411",
        "farbus install scheduler",
        "farbus install agent --dry-run",
        "farbus install agent --root debian/farbus --command /usr/bin/farbus",
        "farbus install agent --uninstall --purge",
    )
)
def install(
    role: Annotated[Role, typer.Argument(help="agent on every node, scheduler on one machine.")],
    scheduler: Annotated[
        str,
        typer.Option(
            "--scheduler",
            metavar="HOST:PORT",
            help="Where the scheduler serves, for a new agent.toml.  [default: localhost:7411]",
            show_default=False,
        ),
    ] = "",
    root: Annotated[
        str,
        typer.Option("--root", metavar="DIR", help="Put the files below DIR, and run nothing.", show_default=False),
    ] = "",
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="PATH",
            help="The farbus that the units start.  [default: the one that runs now]",
            show_default=False,
        ),
    ] = "",
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Stop the service and remove what was put.")] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="With --uninstall: remove changed settings, state, certificates, users too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --uninstall: end programs that run here for others.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Make this machine a node or the scheduler, as a service of systemd.

    Repeat it after an upgrade.  A file that was changed here is never
    replaced: the new one is put beside it.  Units are best changed with
    systemctl edit.
    """
    if (purge or force) and not uninstall:
        raise InvalidInput(f"{'--purge' if purge else '--force'} has no meaning without --uninstall", hint="add it")
    if scheduler and not is_endpoint(scheduler):
        raise InvalidInput(f"--scheduler {scheduler}: not HOST:PORT", hint="for example --scheduler control:7411")
    if root and not Path(root).is_dir():
        raise InvalidInput(f"--root {root}: no such directory", hint="make it first")
    if not root and not dry_run and os.geteuid() != 0:
        raise NotPermitted("services are installed by root", hint="run it as root, or stage it with --root DIR")
    installation = Installation(root=root, rehearse=dry_run)
    act = _Actions(staged=bool(root), rehearse=dry_run)
    if dry_run:
        typer.echo("nothing is changed; this would be done:")
    if uninstall:
        _uninstall(installation, act, role, purge=purge, force=force)
    else:
        command = command or _own_command()
        check_command(command, root=root)
        _install(installation, act, role, command=command, scheduler=scheduler)


_KEPT_SETTINGS = Step(path=SETTINGS[Role.AGENT], outcome=Outcome.KEPT)


class _Actions:
    """Asks systemd, where it runs and is meant, and tells what it asks."""

    def __init__(self, *, staged: bool, rehearse: bool) -> None:
        self._manager = Systemd()
        self._rehearse = rehearse
        self.possible = not staged and self._manager.running

    def run(self, *command: str) -> None:
        if self.possible:
            typer.echo(f"{'would run' if self._rehearse else 'run'}: {' '.join(command)}")
            if not self._rehearse:
                self._manager.run(*command)

    def ask(self, *command: str) -> str:
        return self._manager.ask(*command) if self.possible else ""


def _own_command() -> str:
    """Return the path of the farbus that runs now."""
    beside = Path(sys.executable).parent / "farbus"
    return str(beside) if beside.exists() else os.path.abspath(shutil.which("farbus") or sys.argv[0])


def _install(installation: Installation, act: _Actions, role: Role, *, command: str, scheduler: str) -> None:
    for step in installation.install(role, command=command, scheduler=scheduler, manual=manual_page()):
        typer.echo(str(step))
        if step == _KEPT_SETTINGS and not installation.node_settings().remoting_user:
            # As farbus join has written them.
            typer.echo(
                f'  it sets no remoting_user: add remoting_user = "{USERS[role]}", or root serves GPUs to others'
            )
    placed = FILES[role]
    act.run("systemd-sysusers", placed[f"sysusers.d/farbus-{role}.conf"])
    act.run("systemd-tmpfiles", "--create", placed[f"tmpfiles.d/farbus-{role}.conf"])
    act.run("systemctl", "daemon-reload")
    if role is Role.AGENT:
        # The drivers of these are bound already.
        act.run("udevadm", "control", "--reload")
        act.run("udevadm", "trigger", "--action=add", "--subsystem-match=pci", "--attr-match=vendor=0x10de")
        # What is attached already is to lose the links that were made of what users have written.
        act.run(
            "udevadm",
            "trigger",
            "--action=change",
            "--subsystem-match=block",
            *(f"--property-match={each}" for each in STORAGE_NAMES),
        )
    if act.possible:
        typer.echo("\n".join(_next_steps(role, act)))


def _next_steps(role: Role, act: _Actions) -> Iterator[str]:
    state = act.ask("systemctl", "show", "--property=ActiveState", "--value", role.service).strip()
    if state in ("active", "reloading", "activating"):
        yield f"it runs; to start this version: systemctl restart {role.service} (ends no job)"
        return
    certified = "node" if role is Role.AGENT else role.value
    yield f"next: put a certificate into {STATE[role][1]} (farbus ca issue NAME --role {certified}),"
    yield f"check {SETTINGS[role]}, and start it: systemctl enable --now {role.service}"


def _uninstall(installation: Installation, act: _Actions, role: Role, *, purge: bool, force: bool) -> None:
    if role is Role.AGENT and (running := _programs(act)) and not force:
        raise Conflict(
            f"{len(running)} programs run here for others ({', '.join(running[:3])}{', ...' if running[3:] else ''})",
            hint="cancel their jobs, or end them with --force",
        )
    if act.ask("systemctl", "list-unit-files", "--no-legend", "--quiet", role.service).strip():
        act.run("systemctl", "disable", "--now", role.service)
    if role is Role.AGENT:
        act.run("systemctl", "stop", "farbus-programs.slice")
    steps = list(installation.remove(role, purge=purge))
    if purge:
        steps += installation.purge(role)
        # Who is given the number of its owner later would own an authority that stays.
        owns = any(step.outcome is Outcome.AUTHORITY for step in steps)
        if act.possible and is_known(USERS[role]) and not owns:
            act.run("userdel", USERS[role])
    typer.echo("\n".join(map(str, steps)) or f"there is no {role} here")
    if not set(installation.roles()) - {role}:
        act.run("systemctl", "stop", "farbus.slice")
    act.run("systemctl", "daemon-reload")
    if not purge and (left := installation.gathered(role)):
        typer.echo(f"left: {', '.join(left)} (--purge removes them)")


def _programs(act: _Actions) -> list[str]:
    listing = act.ask("systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", *PROGRAMS)
    return [line.split()[0] for line in listing.splitlines() if line.strip()]
