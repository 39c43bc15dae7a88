"""Runs in a guest: ``farbus`` commands, in children of one process that has imported what they need.

The command takes seconds of an emulated processor to start, which a test that waits would pay again and again.  A
connection is a JSON line ``{"argv", "user", "pattern", "count"}``, answered when the command has ended by ``{"code",
"stdout", "stderr"}``.  With a ``pattern``, a regular expression, it is run again until its output has that, ``count``
times where one is given.  See :func:`tests.lab.cluster.farbus` for the other end.
"""

import importlib
import json
import os
import pwd
import re
import signal
import socket
import time

from farbus.cli import main

ADDRESS = ("127.0.0.1", 7400)

COMMANDS = ("attach", "detach", "devices", "explain", "fabric", "jobs", "leases", "logs", "moves", "nodes", "submit")

AGAIN_S = 1.0
"""Between the end of a command and its next run."""


def become(user):
    account = pwd.getpwnam(user or "root")
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
    os.chdir(account.pw_dir)
    if account.pw_uid:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


def said(descriptor):
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def is_asked(connection):
    """Say whether who has asked still waits."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True


def answer(connection):
    request = json.loads(connection.makefile().readline())
    become(request["user"])
    streams = {number: os.memfd_create(name) for number, name in ((1, "stdout"), (2, "stderr"))}
    for number, stream in streams.items():
        os.dup2(stream, number)
    pattern, count = request.get("pattern"), request.get("count")
    while True:
        code = main(request["argv"])
        found = len(re.findall(pattern, said(streams[1]), re.MULTILINE)) if pattern else 0
        if not pattern or (found == count if count is not None else found):
            break
        if not is_asked(connection):
            return
        for number in streams:
            os.lseek(number, 0, os.SEEK_SET)
            os.ftruncate(number, 0)
        time.sleep(AGAIN_S)
    reply = {"code": code, "stdout": said(streams[1]), "stderr": said(streams[2])}
    connection.sendall(json.dumps(reply).encode())


def serve():
    # Loaded here, and not by each child; nothing of gRPC runs before a child asks for it.
    importlib.import_module("farbus.api.client")
    for name in COMMANDS:
        importlib.import_module(f"farbus.cli.commands.{name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(ADDRESS)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            try:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection)
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    serve()
