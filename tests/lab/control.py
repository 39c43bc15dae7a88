"""Runs in a guest: the commands that a test sends over the serial port ``lab.control``.

One JSON object a line each way.  It begins with ``{"hello": BOOT_ID}``.  A
request ``{"id", "argv", "user", "input", "environment", "cwd", "limit_s"}`` is answered, when
the command has ended, by ``{"id", "code", "stdout", "stderr"}``; several run
at a time.  ``code`` is negative for a signal; for a command that ran past
``limit_s`` it is null, after the command and its process group were killed.
Bytes travel as base64.  Standard library only; see :mod:`tests.lab.guest` for the other end.
"""

import base64
import json
import os
import pwd
import signal
import subprocess
import threading
import time

PORT = "/dev/virtio-ports/lab.control"
PORT_LOOK_S = 0.1
"""Between two looks for the port, which udev has to name first."""

OUTPUT_LIMIT_BYTES = 16 * 2**20
"""Kept of each stream of a command's output: its end."""


def run(request):
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    account = pwd.getpwnam(request.get("user") or "root")
    environment |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    environment |= request.get("environment") or {}
    identity = {}
    if account.pw_uid:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    with subprocess.Popen(
        request["argv"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=request.get("cwd") or account.pw_dir,
        start_new_session=True,
        **identity,
    ) as process:
        try:
            stdout, stderr = process.communicate(base64.b64decode(request.get("input", "")), timeout=request["limit_s"])
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            code = None
    return {"code": code, "stdout": _encode(stdout), "stderr": _encode(stderr)}


def _encode(data):
    return base64.b64encode(data[-OUTPUT_LIMIT_BYTES:]).decode()


def serve():
    while not os.path.exists(PORT):
        time.sleep(PORT_LOOK_S)
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    writing = threading.Lock()

    def tell(answer):
        data = json.dumps(answer).encode() + b"\n"
        with writing:
            while data:
                data = data[os.write(port, data) :]

    def answer(request):
        try:
            result = run(request)
        except Exception as error:
            # Whatever it is, the test must hear of it.
            result = {"code": 127, "stdout": "", "stderr": _encode(f"{request['argv'][0]}: {error}\n".encode())}
        tell({"id": request["id"], **result})

    with open("/proc/sys/kernel/random/boot_id") as file:
        tell({"hello": file.read().strip()})
    # A file comes as one line of megabytes, in pieces: each is looked at once.
    pending = bytearray()
    while data := os.read(port, 2**16):
        pending += data
        if b"\n" not in data:
            continue
        *lines, pending = pending.split(b"\n")
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    serve()
