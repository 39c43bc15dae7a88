"""Remoting over TCP is encrypted: who gets in, what somebody in the middle can do, and who is told what."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farbus.remoting import session as wire
from farbus.remoting.session import Server, write_session
from tests.remoting.cutter import Cutter
from tests.remoting.harness import ROOT, Remote, hello, listening
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, alive, wait_until

Build = Callable[[str], Path]
Lease = Callable[..., Remote]

NETWORK = {"FARBUS_TRANSPORT": "tcp"}


@dataclass
class Middle:
    """Somebody between client and server, who sees and changes what passes.

    ``out`` gets the bytes that the client sends, with the number of those before them, ``back`` those that
    the server sends; they return what is passed on.
    """

    target: tuple[str, int]
    out: Callable[[int, bytes], bytes] = lambda _, data: data
    back: Callable[[int, bytes], bytes] = lambda _, data: data
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    def serve(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(self.target)
            for pair in ((client, server, self.out, self.sent), (server, client, self.back, self.received)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(
        source: socket.socket, target: socket.socket, change: Callable[[int, bytes], bytes], seen: bytearray
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                before = len(seen)
                seen += data
                target.sendall(change(before, data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def through(remote: Remote) -> Iterator[Callable[..., Middle]]:
    """Put somebody between the lease's clients and its supervisor."""
    with contextlib.ExitStack() as stack:

        def start(**changes: Callable[[int, bytes], bytes]) -> Middle:
            middle = Middle(remote.supervisor.address, **changes)
            address, port = stack.enter_context(listening(middle.serve))
            write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
            return middle

        yield start


def altered(at: int, bit: int = 4) -> Callable[[int, bytes], bytes]:
    """Change one bit of the byte number ``at``."""

    def change(before: int, data: bytes) -> bytes:
        if not before <= at < before + len(data):
            return data
        position = at - before
        return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]

    return change


def status_of(connection: socket.socket) -> int:
    connection.settimeout(PATIENCE_S)
    data = connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL)
    assert len(data) == wire.HELLO_REPLY.size, "the supervisor has closed the connection"
    return int(wire.HELLO_REPLY.unpack(data)[3])


def failing(remote: Remote, build: Build, **changes: str) -> str:
    """Run a program that gets no session and return the one line that it says on stderr."""
    done = remote.run(build("remoting/events"), **NETWORK, **changes)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("farbus:") == 1, done.stderr
    return done.stderr


# What travels.


def test_neither_the_secret_nor_the_program_travels_in_the_clear(
    remote: Remote, build: Build, through: Callable[..., Middle]
) -> None:
    middle = through()
    done = remote.run(build("remoting/rows"), **NETWORK)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    passed = bytes(middle.sent + middle.received)
    assert len(middle.sent) > wire.HELLO.size
    for secret in (remote.secret, remote.secret.hex().encode(), b"rows", b"Software GPU", b"CUDA"):
        assert secret not in passed


def test_the_status_says_who_the_client_is(remote: Remote, build: Build) -> None:
    program = remote.start(build("remoting/wait_forever"), **NETWORK)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (session,) = remote.supervisor.sessions.sessions
    program.kill()
    program.communicate()
    assert (session.transport, session.program, session.client_pid) == ("tls", "wait_forever", program.pid)


# Somebody in the middle.


@pytest.mark.parametrize("at", [8, 16, 24, 32, 40, 48, 63, 64, 79, 80, 127])
def test_a_hello_that_was_changed_is_refused(
    remote: Remote, build: Build, through: Callable[..., Middle], at: int
) -> None:
    through(out=altered(at))
    assert "refuses the secret of this session" in failing(remote, build)
    assert remote.supervisor.pids == ()


@pytest.mark.parametrize("at", [wire.HELLO.size + offset for offset in (20, 80, 150)])
def test_a_handshake_that_was_changed_gets_no_session(
    remote: Remote, build: Build, through: Callable[..., Middle], at: int
) -> None:
    through(out=altered(at))
    assert "the TLS handshake failed" in failing(remote, build)
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")


def test_an_answer_that_was_changed_gets_no_session(
    remote: Remote, build: Build, through: Callable[..., Middle]
) -> None:
    through(back=altered(60))
    assert "the TLS handshake failed" in failing(remote, build)


def test_a_record_that_was_changed_is_sent_again_over_another_connection(
    remote: Remote, build: Build, through: Callable[..., Middle]
) -> None:
    through(out=altered(20_000))
    done = remote.run(build("remoting/streams_pinned"), **NETWORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    wait_until(lambda: any("goes on from" in line for line in remote.lines), "the session was resumed")


def test_a_record_that_was_changed_ends_a_session_that_is_not_resumed(
    remote: Remote, build: Build, through: Callable[..., Middle]
) -> None:
    through(out=altered(20_000))
    done = remote.run(build("remoting/streams_pinned"), **NETWORK, FARBUS_GRACE_S="0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the connection to the GPU at " in done.stderr
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")


def test_what_was_recorded_gets_nobody_in(remote: Remote, build: Build, through: Callable[..., Middle]) -> None:
    middle = through()
    assert remote.run(build("remoting/rows"), **NETWORK).returncode == 0
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")
    with socket.create_connection(remote.supervisor.address) as connection:
        connection.sendall(middle.sent)
        assert status_of(connection) == wire.HELLO_SECRET
    assert remote.supervisor.pids == ()
    assert any("says a hello again that was said before" in line for line in remote.lines)


def test_a_refused_client_that_goes_on_talking_is_hung_up_on(remote: Remote) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(hello(bytes(32)))
        assert status_of(connection) == wire.HELLO_SECRET
        # More than sockets hold: it is the supervisor that ends it.
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(bytes(64 << 20))


@contextlib.contextmanager
def answering_in_the_clear(remote: Remote, *, major: int, status: int, hangs_up: bool = False) -> Iterator[None]:
    """Have the session's server be one that answers every hello at once and without TLS, and perhaps hangs up."""
    reply = wire.HELLO_REPLY.pack(wire.HELLO_MAGIC, major, 0, status, 1, 0, 0, 0, 13000, 0, 0, b"\xff" * 64)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            said = connection.recv(wire.HELLO.size, socket.MSG_WAITALL)
            if wire.HELLO.unpack(said)[5] & wire.CAPABILITY_TLS:
                connection.sendall(reply)
            if hangs_up:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while not hangs_up and connection.recv(1 << 16):
                pass

    with listening(answer) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        yield


def test_nobody_can_talk_a_client_out_of_encryption(remote: Remote, build: Build) -> None:
    """Whoever takes the connection may refuse it, and nothing else."""
    with answering_in_the_clear(remote, major=wire.PROTOCOL_MAJOR, status=wire.HELLO_OK):
        assert "Protocol error" in failing(remote, build)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_an_older_server_is_told_from_one_without_tls(remote: Remote, build: Build, hangs_up: bool) -> None:
    with answering_in_the_clear(remote, major=1, status=wire.HELLO_VERSION, hangs_up=hangs_up):
        said = failing(remote, build)
    assert f"protocol 1.0 and this shim {wire.PROTOCOL_MAJOR}.{wire.PROTOCOL_MINOR}" in said


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "cert").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert", folder / "key"


def test_a_server_with_a_certificate_instead_of_the_secret_is_refused(
    remote: Remote, build: Build, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(wire.HELLO.size, socket.MSG_WAITALL)
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(1)

    with listening(answer) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        assert "the TLS handshake failed" in failing(remote, build)


# Sides that differ.


def test_a_client_without_tls_is_refused(remote: Remote, build: Build) -> None:
    address, port = remote.supervisor.address
    write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
    assert "set the same remoting_tls for the agents of both" in failing(remote, build)
    assert any("it does not use TLS" in line for line in remote.lines)
    assert remote.supervisor.pids == ()


def test_a_client_with_tls_is_refused_where_it_is_off(lease: Lease, build: Build) -> None:
    remote = lease(tls=False)
    address, port = remote.supervisor.address
    write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
    assert "set the same remoting_tls for the agents of both" in failing(remote, build)
    assert any("it asks for TLS, which is off here" in line for line in remote.lines)
    assert remote.supervisor.pids == ()


# No OpenSSL.

NO_OPENSSL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

void *dlopen(const char *name, int flags)
{
	void *(*real)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");

	return name && strstr(name, "libssl") ? NULL : real(name, flags);
}
"""


def compiled(source: str, target: Path, *flags: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is not installed")
    subprocess.run([compiler, "-x", "c", "-o", target, "-", *flags], input=source, text=True, check=True)
    return target


@pytest.fixture
def no_openssl(tmp_path: Path) -> str:
    """A library that hides OpenSSL from the processes into which it is preloaded."""
    return str(compiled(NO_OPENSSL, tmp_path / "no_openssl.so", "-shared", "-fPIC"))


def test_a_client_without_openssl_is_told_what_to_install(remote: Remote, build: Build, no_openssl: str) -> None:
    preload = f"{no_openssl}:{remote.environment()['LD_PRELOAD']}"
    assert "install OpenSSL 3" in failing(remote, build, LD_PRELOAD=preload)
    wait_until(lambda: remote.supervisor.pids == (), "the server has ended")


def test_a_server_without_openssl_tells_the_client(lease: Lease, build: Build, no_openssl: str) -> None:
    remote = lease(LD_PRELOAD=no_openssl)
    assert re.search(r"its node can't encrypt: no libssl.*install OpenSSL 3", failing(remote, build))


def test_without_encryption_openssl_is_not_needed(lease: Lease, build: Build, no_openssl: str) -> None:
    remote = lease(tls=False, LD_PRELOAD=no_openssl)
    preload = f"{no_openssl}:{remote.environment()['LD_PRELOAD']}"
    done = remote.run(build("remoting/rows"), **NETWORK, LD_PRELOAD=preload)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


# An older OpenSSL.

OLDER_OPENSSL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

void *dlopen(const char *name, int flags)
{
	void *(*real)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");

	if (name && strcmp(name, "libssl.so.3") == 0)
		return NULL;
	if (name && strcmp(name, "libssl.so.1.1") == 0 && real(FOLDER "/libcrypto.so.1.1", flags))
		return real(FOLDER "/libssl.so.1.1", flags);
	return real(name, flags);
}
"""


@pytest.fixture
def older_openssl(tmp_path: Path) -> str:
    """A library that gives the processes into which it is preloaded OpenSSL 1.1.1 in place of 3."""
    folder = os.environ.get("FARBUS_TEST_OPENSSL_1_1")
    if folder is None:
        pytest.skip("FARBUS_TEST_OPENSSL_1_1 names no folder with libssl.so.1.1 and libcrypto.so.1.1")
    flags = ("-shared", "-fPIC", f'-DFOLDER="{folder}"', "-ldl")
    return str(compiled(OLDER_OPENSSL, tmp_path / "older_openssl.so", *flags))


@pytest.fixture(params=["client", "server", "both"])
def mixed(request: pytest.FixtureRequest, lease: Lease, older_openssl: str) -> tuple[Remote, dict[str, str]]:
    """A lease, and what its programs' environment needs: one side has OpenSSL 1.1.1, or both have."""
    remote = lease() if request.param == "client" else lease(LD_PRELOAD=older_openssl)
    shim = remote.environment()["LD_PRELOAD"]
    return remote, {} if request.param == "server" else {"LD_PRELOAD": f"{older_openssl}:{shim}"}


@pytest.mark.parametrize("name", ["rows", "streams_pinned"])
def test_openssl_1_1_encrypts_too(mixed: tuple[Remote, dict[str, str]], build: Build, name: str) -> None:
    remote, changes = mixed
    done = remote.run(build(f"remoting/{name}"), **NETWORK, **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_session_with_openssl_1_1_is_resumed(mixed: tuple[Remote, dict[str, str]], build: Build) -> None:
    remote, changes = mixed
    cutter = Cutter(remote.supervisor.address, lambda *_: None, cut_bytes=lambda: 300_000)
    with cutter as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(build("remoting/streams_pinned"), **NETWORK, **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts > 0


def test_with_openssl_1_1_a_program_that_is_cut_while_it_exits_is_resumed(
    mixed: tuple[Remote, dict[str, str]], tmp_path: Path
) -> None:
    remote, changes = mixed
    with Cutter(remote.supervisor.address, lambda *_: None, cut_bytes=lambda: 100_000) as network:
        address, port = network.address
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        done = remote.run(build_calls("resume/late", tmp_path), **NETWORK, **changes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert network.cuts > 0


def test_openssl_1_1_refuses_a_changed_handshake(mixed: tuple[Remote, dict[str, str]], build: Build) -> None:
    remote, changes = mixed
    middle = Middle(remote.supervisor.address, out=altered(wire.HELLO.size + 80))
    with listening(middle.serve) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret)])
        assert "the TLS handshake failed" in failing(remote, build, **changes)


def test_a_process_with_openssl_1_1_has_no_other(older_openssl: str, remote: Remote, build: Build) -> None:
    preload = f"{older_openssl}:{remote.environment()['LD_PRELOAD']}"
    program = remote.start(build("remoting/wait_forever"), **NETWORK, LD_PRELOAD=preload)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    program.kill()
    program.communicate()
    assert "libssl.so.1.1" in maps
    assert "libssl.so.3" not in maps


def test_openssl_is_not_loaded_where_nothing_is_encrypted(remote: Remote, build: Build) -> None:
    program = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT="shm")
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    maps = Path(f"/proc/{program.pid}/maps").read_text()
    program.kill()
    program.communicate()
    assert "libssl" not in maps
    assert server


# Programs with an OpenSSL of their own.

SHARED = """
import ctypes, ssl, sys
sys.path.insert(0, {root!r})

def talk():
    # A handshake that fails, whose errors are nobody else's, and one's own that go on.
    mine, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(mine, theirs, server_hostname="x")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    mine.write(b"no record of TLS at all")
    try:
        client.do_handshake()
        raise SystemExit("a handshake with nobody")
    except ssl.SSLError as error:
        assert "WRONG_VERSION_NUMBER" in str(error) or "record" in str(error).lower(), error

talk()
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
talk()
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
sent, got = bytes(range(256)) * 4096, ctypes.create_string_buffer(1 << 20)
assert cuda.cuMemcpyHtoD_v2(address, sent, ctypes.c_size_t(1 << 20)) == 0
talk()
assert cuda.cuMemcpyDtoH_v2(got, address, ctypes.c_size_t(1 << 20)) == 0
assert got.raw == sent
print("ok")
"""


def test_a_program_that_uses_openssl_too(remote: Remote) -> None:
    done = remote.run(sys.executable, "-c", SHARED.format(root=str(ROOT)), **NETWORK)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


EXPORTS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* A program that has another OpenSSL linked into itself, and shows it. */
#define SHOWN(name) void *name(void) { puts("called: " #name); abort(); }
SHOWN(SSL_CTX_new) SHOWN(SSL_new) SHOWN(OPENSSL_init_ssl) SHOWN(OPENSSL_init_crypto) SHOWN(EVP_CIPHER_CTX_new)
SHOWN(EVP_CipherInit_ex) SHOWN(CRYPTO_malloc) SHOWN(CRYPTO_zalloc) SHOWN(CRYPTO_free) SHOWN(BIO_new)

typedef int (*call)(unsigned);
static void *cuda;

/* CUDA is used to the very end: behind what OpenSSL does at exit. */
static void at_exit(void)
{
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
	unsigned long long address;

	puts(allocate(&address, 4096) == 0 ? "ok" : "not allocated");
}

int main(void)
{
	int (*get)(int *, int), (*retain)(void **, int), (*set)(void *), device;
	void *context;

	atexit(at_exit);
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	get = dlsym(cuda, "cuDeviceGet");
	retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	set = dlsym(cuda, "cuCtxSetCurrent");
	return ((call)dlsym(cuda, "cuInit"))(0) || get(&device, 0) || retain(&context, device) || set(context);
}
"""


def test_a_program_that_exports_an_openssl_of_its_own_and_uses_cuda_at_exit(remote: Remote, tmp_path: Path) -> None:
    program = compiled(EXPORTS, tmp_path / "exports", "-rdynamic", "-ldl")
    done = remote.run(program, **NETWORK)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


# Where the secret is.


def memory_has(pid: int, wanted: tuple[bytes, ...]) -> bool:
    """Look through all that a process can write."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            if not mode.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            with contextlib.suppress(OSError, OverflowError):
                if end - start < 1 << 30 and any(
                    each in os.pread(memory.fileno(), end - start, start) for each in wanted
                ):
                    return True
    return False


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_secret_is_in_no_memory_once_the_session_is_open(remote: Remote, build: Build, transport: str) -> None:
    program = remote.start(build("remoting/wait_forever"), FARBUS_TRANSPORT=transport)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    # Twelve bytes are not there by chance, and a part of it would be as bad.
    wanted = (remote.secret[:12], remote.secret[-12:], remote.secret.hex().encode()[:24])
    try:
        # What is looked for would be found: the transport's name is there.
        assert memory_has(server, (b"farbus_remoting_server", b"farbus.remoting.server"))
        assert not memory_has(program.pid, wanted)
        assert not memory_has(server, wanted)
    finally:
        program.kill()
        program.communicate()


def test_the_secret_is_in_no_argument_environment_or_log(remote: Remote, build: Build) -> None:
    program = remote.start(build("remoting/wait_forever"), **NETWORK)
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    (server,) = remote.supervisor.pids
    told = b"".join(
        Path(f"/proc/{pid}/{what}").read_bytes() for pid in (program.pid, server) for what in ("cmdline", "environ")
    )
    program.kill()
    _, err = program.communicate()
    for text in (told, err.encode(), "\n".join(remote.lines).encode()):
        assert remote.secret not in text
        assert remote.secret.hex().encode() not in text


# How many, and how long.


def test_a_client_that_leaves_in_the_midst_of_the_handshake_leaves_no_server(remote: Remote) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(hello(remote.secret, capabilities=wire.CAPABILITY_TLS) + b"\x16\x03\x01\x01\x00")
        wait_until(lambda: len(remote.supervisor.pids) == 1, "a server was started")
        (server,) = remote.supervisor.pids
    wait_until(lambda: not alive(server), "the server has ended")


@pytest.mark.slow
def test_a_handshake_that_stalls_is_given_up(remote: Remote) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=60) as connection:
        connection.sendall(hello(remote.secret, capabilities=wire.CAPABILITY_TLS) + b"\x16\x03\x01\x01\x00")
        wait_until(lambda: len(remote.supervisor.pids) == 1, "a server was started")
        (server,) = remote.supervisor.pids
        assert connection.recv(1) == b""
    wait_until(lambda: not alive(server), "the server has ended")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_64_programs_at_once(remote: Remote, build: Build, transport: str) -> None:
    program = build("remoting/rows")
    running = [remote.start(program, FARBUS_TRANSPORT=transport) for _ in range(64)]
    ends = [each.communicate(timeout=300) for each in running]
    assert [each.returncode for each in running] == [0] * 64, [err for _, err in ends if err]
    assert [out for out, _ in ends] == ["ok\n"] * 64
