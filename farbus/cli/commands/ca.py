"""``farbus ca``: the cluster's authority and its certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

# cryptography loads it when it is first needed, and then with the rights of an authority's owner, who may not read it.
import cryptography.hazmat.backends.openssl.backend  # noqa: F401
import typer
from cryptography import x509

from farbus.api.audit import FILE_NAME, AuditRecord, append_records, bounded, now_text
from farbus.api.authority import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    REVOCATIONS,
    Authority,
    Credentials,
    check_cluster_name,
    identity_of,
    replace_pair,
    write_credentials,
    write_private,
)
from farbus.api.identity import Identity, Role, valid_name
from farbus.api.joining import Token
from farbus.api.registry import MAX_TOKEN_S, MIN_TOKEN_S, CertificateRecord
from farbus.cli.connection import find_credentials
from farbus.cli.listing import Column, print_json, print_listing
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound
from farbus.linux.ownership import acting_for_owner, make_directory
from farbus.model.address import check_host
from farbus.model.quantity import parse_seconds
from farbus.model.value import Value

app = command_app()

AuthorityOption = Annotated[
    str,
    typer.Option(
        "--authority", metavar="DIR", envvar="FARBUS_CA", help="Directory of the authority: keep it to yourself."
    ),
]
DEFAULT_AUTHORITY = "/etc/farbus/ca"

SOON_DAYS = 30
"""A certificate with fewer days left is marked; nodes renew theirs much earlier."""


class ListedCertificate(Value, frozen=True, kw_only=True):
    """What ``farbus ca list`` tells of a certificate."""

    serial: str
    name: str
    role: str
    state: str
    expires_at: str
    days_left: int
    revoked_at: str = ""
    reason: str = ""
    authority: str = ""
    """``present`` for the one that signs now, ``earlier`` for one that it has taken over from."""


class CertificateFacts(Value, frozen=True, kw_only=True):
    """What ``farbus ca show`` tells of a certificate."""

    name: str
    role: str
    certificate: str
    expires_at: str
    days_left: int


@app.callback(
    no_args_is_help=True,
    epilog=examples(
        "farbus ca init",
        "farbus ca issue alice --role user --out ~/.farbus",
        "farbus ca issue control --role scheduler --out /etc/farbus/scheduler",
        "farbus ca issue node7 --role node --out node7",
        "farbus ca token node8 --ttl 1h                                   for farbus join on node8",
        "farbus ca list",
        "farbus ca revoke alice --reason 'left the company'",
        "farbus ca renew ~/.farbus",
        "farbus ca show ~/.farbus",
    ),
)
def ca() -> None:
    """Make the cluster's authority and certificates.

    Everything that processes on different nodes tell each other goes through
    mutual TLS: each process proves with a certificate of this authority who it is.
    """


@app.command(epilog=examples("farbus ca init", "farbus ca init --authority ~/farbus-ca"))
def init(
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name in the certificate.")] = "farbus",
) -> None:
    """Make a new authority."""
    check_cluster_name(cluster, field="--cluster")
    with acting_for_owner(authority):
        try:
            make_directory(authority)
            made = Authority.create(authority, cluster=cluster)
        except OSError as error:
            raise Conflict(
                f"{authority}: {error.strerror}", hint="choose another directory with --authority"
            ) from error
        _note(made, "ca init", cluster)
    typer.echo(f"{made.directory}: ca.crt goes to every node, ca.key stays here")


@app.command(
    epilog=examples(
        "farbus ca issue alice --role user --out ~/.farbus",
        "farbus ca issue node7 --role node --out node7 --days 90",
    )
)
def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom it names: a user, or a node by its own name.")],
    role: Annotated[Role, typer.Option("--role", help="What its holder may do.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the three files go.")],
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=AUTHORITY_DAYS, help="How long it is valid.")
    ] = (CERTIFICATE_DAYS),
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="NAME", help="Further DNS name or IP address; repeat for several."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a certificate that is there.")] = False,
) -> None:
    """Issue a certificate.

    It is written as ca.crt, NAME.crt and NAME.key (readable by you alone) into one directory.
    """
    for host in address or ():
        check_host(host, field="--address")
    with acting_for_owner(out):
        there = sorted(path.stem for path in Path(out).glob("*.crt") if path.stem != "ca")
    if there and there != [name]:
        raise Conflict(
            f"{out}: holds the certificate of {', '.join(there)}", hint="give each certificate a directory of its own"
        )
    if there and not force:
        raise Conflict(f"{out}: there is a certificate of {name} already", hint="--force replaces it")
    with _opened(authority) as issuer, _recorded(issuer, "ca issue", f"{role} {name}"):
        issued = issuer.issue(name, role, addresses=address or (), days=days)
        revocations = issuer.revocations()
    with acting_for_owner(out):
        try:
            make_directory(out)
            credentials = write_credentials(out, name, issued)
            write_private(Path(credentials.revocations), revocations, mode=0o644)
        except OSError as error:
            raise Conflict(f"{out}: {error.strerror}", hint="choose another directory with --out") from error
        told = f"{credentials.certificate}: {role} {name}, valid until {credentials.expires_at():%Y-%m-%d}"
    typer.echo(told)


@app.command(
    epilog=examples(
        "farbus ca renew /etc/farbus/scheduler                    with the authority's key, where it is",
        "farbus ca renew ~/.farbus --server control:7411          have the scheduler renew it",
    )
)
def renew(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the certificate.")],
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            envvar="FARBUS_SERVER",
            help="Have the scheduler renew it, by the certificate in DIR.",
            show_default=False,
        ),
    ] = "",
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=AUTHORITY_DAYS, help="How long it is valid.")
    ] = (CERTIFICATE_DAYS),
) -> None:
    """Renew a certificate, with a new key.

    Its files are replaced where they are; who uses it goes on and takes up
    the new one.  With --server the scheduler does it, which needs a certificate that is
    still valid; with the authority's key an expired one can be renewed too.
    """
    if server:
        from farbus.api.enrollment import renew_at  # noqa: PLC0415 - gRPC takes a third of a second to load

        with acting_for_owner(directory):
            credentials = find_credentials(directory)
            asyncio.run(renew_at(server, credentials))
            told = _renewed(credentials)
    else:
        with acting_for_owner(directory):
            credentials = find_credentials(directory)
            certificate, pem, _ = credentials.read_pair()
        holder = _described(identity_of(pem))
        with _opened(authority) as issuer, _recorded(issuer, "ca renew", holder):
            issued = issuer.renew(certificate, what=credentials.certificate, days=days)
            revocations = issuer.revocations()
        with acting_for_owner(directory):
            try:
                write_private(Path(credentials.authority), issued.authority, mode=0o644)
                replace_pair(credentials, issued)
                write_private(Path(credentials.revocations), revocations, mode=0o644)
            except OSError as error:
                raise Conflict(f"{directory}: {error.strerror}", hint="renew it as its owner") from error
            told = _renewed(credentials)
    typer.echo(told)


def _renewed(credentials: Credentials) -> str:
    until = credentials.expires_at()
    return f"{credentials.certificate}: {_described(credentials.identity())}, valid until {until:%Y-%m-%d}"


@app.command(
    epilog=examples(
        "farbus ca revoke alice                      all valid certificates of that name",
        "farbus ca revoke 3f21...c0                  the one with that serial number (farbus ca list -o wide)",
        "farbus ca revoke node7 --reason 'disk was stolen'",
    )
)
def revoke(
    what: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="Whose certificates, or which one.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept for farbus ca list.")] = "",
    authority: AuthorityOption = DEFAULT_AUTHORITY,
) -> None:
    """Revoke certificates.

    Of a stolen one revoke the name: its serial number leaves the
    certificates in force that the thief has had it renewed to.
    A scheduler with this directory as its ca_directory ends their connections
    within a second.  Copy ca.crl beside the ca.crt of any other.
    """
    with _opened(authority) as issuer, _recorded(issuer, "ca revoke", what) as targets:
        revoked = issuer.revoke(what, reason=bounded(reason))
        targets[:] = [f"{record.role} {record.name} {record.serial}" for record in revoked] or [what]
        left = [each for record in revoked for each in issuer.registry.valid_of(record.name, at=time.time())]
    for record in revoked:
        typer.echo(f"revoked {record.role} {record.name}, serial {record.serial}")
    if not revoked:
        typer.echo(f"revoked {what}, which has no certificate that is valid now")
    if left:
        name = left[0].name
        typer.echo(
            f"still valid, and perhaps renewed from this one: {len(left)} of {name}; farbus ca revoke {name} "
            "revokes them all",
            err=True,
        )
    elif not revoked or revoked[0].name == what:
        typer.echo(f"{what} is not renewed until it is issued again (farbus ca issue, farbus ca token)", err=True)
    typer.echo(f"{issuer.directory / REVOCATIONS} goes beside each ca.crt", err=True)


LIST_COLUMNS: list[Column[ListedCertificate]] = [
    Column("NAME", lambda each: each.name),
    Column("ROLE", lambda each: each.role),
    Column("STATE", lambda each: each.state, state=True),
    Column("EXPIRES", lambda each: each.expires_at),
    Column("DAYS", lambda each: str(each.days_left), right=True),
    Column("AUTHORITY", lambda each: each.authority, wide=True),
    Column("SERIAL", lambda each: each.serial, wide=True),
    Column("REVOKED", lambda each: each.revoked_at, wide=True),
    Column("REASON", lambda each: each.reason, wide=True),
]


@app.command(name="list", epilog=examples("farbus ca list", "farbus ca list -o json", "farbus ca list --all -o wide"))
def list_certificates(
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    include_all: Annotated[bool, typer.Option("--all", help="Also those that have expired.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what this authority has issued.

    Those that expire first stand at the front.  While one authority takes over
    from another, -o wide tells which of them has signed each; what is of one
    that nobody trusts any more is untrusted.
    """
    now = time.time()
    with _opened(authority) as issuer:
        records = issuer.registry.certificates()
        is_replacing = issuer.is_replacing
    listed = [
        ListedCertificate(
            serial=record.serial,
            name=record.name,
            role=record.role,
            state=_state(record, now, is_trusted=is_replacing or not record.of_earlier),
            expires_at=_text(record.expires_at),
            days_left=int((record.expires_at - now) // 86_400),
            revoked_at=_text(record.revoked_at) if record.revoked_at else "",
            reason=record.reason,
            authority="earlier" if record.of_earlier else "present",
        )
        for record in records
        if include_all or record.expires_at > now
    ]
    print_listing(listed, LIST_COLUMNS, output, nothing="nothing was issued yet")


def _state(record: CertificateRecord, now: float, *, is_trusted: bool) -> str:
    if record.revoked_at:
        return "revoked"
    if record.expires_at <= now:
        return "expired"
    if not is_trusted:
        return "untrusted"
    return "expires soon" if record.expires_at - now < SOON_DAYS * 86_400 else "valid"


@app.command(epilog=examples("farbus ca token node8", "farbus ca token node8 --ttl 15m"))
def token(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node that will join.")],
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="How long the token can be used.")] = "1h",
    authority: AuthorityOption = DEFAULT_AUTHORITY,
) -> None:
    """Make a token to join with.

    One machine can become NODE with it, once (farbus join).  Whoever has it
    can become that node: carry it as you would a password.
    """
    if not valid_name(node):
        raise InvalidInput(f"{node!r} can't name a node", hint="use 1 to 63 letters, digits, '_', '.', '@', '-'")
    ttl_s = parse_seconds(ttl, what="--ttl")
    if not MIN_TOKEN_S <= ttl_s <= MAX_TOKEN_S:
        raise InvalidInput(f"--ttl {ttl}: out of range", hint="use 1m to 168h")
    with _opened(authority) as issuer, _recorded(issuer, "ca token", f"node {node}"):
        secret = issuer.registry.create_token(node, ttl_s=ttl_s, now=time.time())
    typer.echo(str(Token(secret=secret, fingerprint=issuer.fingerprint)))


class Stage(enum.StrEnum):
    """Steps by which one authority takes over from another."""

    BEGIN = "begin"
    SWITCH = "switch"
    FINISH = "finish"


@app.command(
    epilog=examples(
        "farbus ca rotate begin     make the next authority; both are trusted, the old one signs",
        "farbus ca rotate switch    the next one signs from now on",
        "farbus ca rotate finish    the old one is trusted no more",
        "",
        "docs/security.md says what to wait for between them.",
    )
)
def rotate(
    stage: Annotated[Stage, typer.Argument(help="The step to take.")],
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    force: Annotated[
        bool, typer.Option("--force", help="Finish even where it shuts out holders of old certificates.")
    ] = False,
) -> None:
    """Replace the authority.

    Both are trusted while the certificates change over.
    """
    with _opened(authority) as issuer, _recorded(issuer, f"ca rotate {stage}", str(authority)):
        match stage:
            case Stage.BEGIN:
                issuer.begin_rotation()
                told = "the next authority is trusted; wait until ca.crt has reached everybody, then switch"
            case Stage.SWITCH:
                issuer.switch_rotation()
                told = "the next authority signs; wait until all certificates are renewed, then finish"
            case Stage.FINISH:
                issuer.finish_rotation(force=force)
                told = "the old authority is trusted no more"
    typer.echo(f"{issuer.directory}: {told}")


@contextlib.contextmanager
def _opened(authority: str) -> Iterator[Authority]:
    """Open an authority, and work with the rights of whom its directory belongs to."""
    with acting_for_owner(authority):
        yield Authority.open(authority)


@contextlib.contextmanager
def _recorded(issuer: Authority, did: str, target: str) -> Iterator[list[str]]:
    """Write into the authority's audit log how the block came out: a line for each target that it leaves."""
    targets = [target]
    try:
        yield targets
    except FarbusError as error:
        _note(issuer, did, target, outcome="failed", error=error.message)
        raise
    except OSError as error:
        _note(issuer, did, target, outcome="failed", error=str(error.strerror))
        raise Conflict(
            f"{issuer.directory}: {error.strerror}", hint="see that its disk has room and is writable"
        ) from error
    for each in targets:
        _note(issuer, did, each)


def _note(issuer: Authority, did: str, target: str, *, outcome: str = "ok", error: str = "") -> None:
    try:
        who = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        who = f"uid{os.getuid()}"
    record = AuditRecord(
        at=now_text(),
        who=who,
        role="local",
        method=did,
        target=bounded(target),
        outcome=outcome,
        error=bounded(error),
    )
    path = issuer.directory / FILE_NAME
    try:
        append_records(path, [record])
    except OSError as problem:
        raise Conflict(
            f"{path}: {problem.strerror}: {did} {target} is not on record, but its outcome is {outcome}",
            hint="see that its disk has room and is writable",
        ) from problem


def _described(identity: Identity) -> str:
    return f"{identity.role} {identity.name}"


def _text(moment: float) -> str:
    return f"{datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


@app.command(epilog=examples("farbus ca show ~/.farbus", "farbus ca show --authority ~/farbus-ca -o json"))
def show(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of a certificate.", show_default=False)
    ] = "",
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whose a certificate is.

    And how long it is valid; without DIR, the same of the authority's own.
    """
    with acting_for_owner(directory or authority):
        facts = _certificate_facts(find_credentials(directory)) if directory else _authority_facts(authority)
    if output is Output.JSON:
        print_json(facts)
        return
    typer.echo(
        f"{facts.certificate}: {facts.role} {facts.name}, valid until {facts.expires_at} ({facts.days_left} days)"
    )


def _certificate_facts(credentials: Credentials) -> CertificateFacts:
    identity = credentials.identity()
    return _facts(credentials.certificate, identity.name, identity.role, credentials.expires_at())


def _authority_facts(directory: str) -> CertificateFacts:
    path = Path(directory) / "ca.crt"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", hint="make an authority with farbus ca init") from error
    except ValueError as error:
        raise NotFound(f"{path}: not a PEM certificate", hint="make an authority with farbus ca init") from error
    name = certificate.subject.rfc4514_string().removeprefix("CN=")
    return _facts(str(path), name, "authority", certificate.not_valid_after_utc)


def _facts(path: str, name: str, role: str, expires_at: datetime.datetime) -> CertificateFacts:
    left = expires_at - datetime.datetime.now(datetime.UTC)
    return CertificateFacts(
        name=name, role=role, certificate=path, expires_at=f"{expires_at:%Y-%m-%dT%H:%M:%SZ}", days_left=left.days
    )
