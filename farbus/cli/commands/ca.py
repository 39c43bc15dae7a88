"""``farbus ca``: the cluster's authority and its certificates."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from farbus.api.authority import AUTHORITY_DAYS, CERTIFICATE_DAYS, Authority, Credentials, write_credentials
from farbus.api.identity import Role
from farbus.cli.connection import find_credentials
from farbus.cli.listing import print_json
from farbus.cli.options import Output, OutputOption, command_app, examples
from farbus.errors import Conflict, NotFound
from farbus.model.value import Value

app = command_app()

AuthorityOption = Annotated[
    str,
    typer.Option(
        "--authority", metavar="DIR", envvar="FARBUS_CA", help="Directory of the authority: keep it to yourself."
    ),
]
DEFAULT_AUTHORITY = "/etc/farbus/ca"


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
    try:
        made = Authority.create(authority, cluster=cluster)
    except OSError as error:
        raise Conflict(f"{authority}: {error.strerror}", hint="choose another directory with --authority") from error
    typer.echo(f"{made.directory}: ca.crt goes to every node, ca.key stays here")


@app.command(
    epilog=examples(
        "farbus ca issue alice --role user --out ~/.farbus",
        "farbus ca issue node7 --role node --out node7 --days 90",
    )
)
def issue(
    name: Annotated[str, typer.Argument(help="Whom it names: a user, or a node by its own name.")],
    role: Annotated[Role, typer.Option("--role", help="What its holder may do.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the three files go.")],
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    days: Annotated[int, typer.Option("--days", min=1, max=AUTHORITY_DAYS, help="How long it is valid.")] = (
        CERTIFICATE_DAYS
    ),
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="NAME", help="Further DNS name or IP address; repeat for several."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a certificate that is there.")] = False,
) -> None:
    """Issue a certificate: ca.crt, NAME.crt and NAME.key (readable by you alone) in one directory."""
    issuer = Authority.open(authority)
    target = Path(out)
    there = sorted(path.stem for path in target.glob("*.crt") if path.stem != "ca")
    if there and there != [name]:
        raise Conflict(
            f"{out}: holds the certificate of {', '.join(there)}", hint="give each certificate a directory of its own"
        )
    if there and not force:
        raise Conflict(f"{out}: there is a certificate of {name} already", hint="--force replaces it")
    try:
        credentials = write_credentials(out, name, issuer.issue(name, role, addresses=address or (), days=days))
    except OSError as error:
        raise Conflict(f"{out}: {error.strerror}", hint="choose another directory with --out") from error
    typer.echo(f"{credentials.certificate}: {role} {name}, valid until {credentials.expires_at():%Y-%m-%d}")


@app.command(epilog=examples("farbus ca show ~/.farbus", "farbus ca show --authority ~/farbus-ca -o json"))
def show(
    directory: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Directory of a certificate.", show_default=False)
    ] = "",
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whose a certificate is and how long it is valid; without DIR, show the authority's own."""
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
    from cryptography import x509  # noqa: PLC0415

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
