"""Verbs for :mod:`tests.verbs.peer` by pyverbs, over a kernel's device (Debian: python3-pyverbs; PyPI: extra ``rdma``).

pyverbs has no request of no parts, so that what writes nothing has one of no bytes, and its completion channels have no
descriptor: who waits looks again and again.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

try:
    import pyverbs.enums as e
except ModuleNotFoundError:  # newer ones call it otherwise
    import pyverbs.libibverbs_enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from tests.verbs.peer import Done, Opcode, Region

MOST_GIDS = 256
MOST_DONE = 64
HOPS = 64
TIMEOUT, RETRIES, RECEIVER_TIMER = 14, 6, 12
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ

OPCODES = {
    Opcode.WRITE: e.IBV_WR_RDMA_WRITE,
    Opcode.WRITE_WITH_IMMEDIATE: e.IBV_WR_RDMA_WRITE_WITH_IMM,
    Opcode.SEND: e.IBV_WR_SEND,
    Opcode.SEND_WITH_IMMEDIATE: e.IBV_WR_SEND_WITH_IMM,
    Opcode.READ: e.IBV_WR_RDMA_READ,
}


class PyverbsRegion:
    def __init__(self, domain: PD, count: int) -> None:
        self._region = MR(domain, count, ACCESS)
        self.address: int = self._region.buf
        self.local_key: int = self._region.lkey
        self.remote_key: int = self._region.rkey

    def put(self, at: int, data: bytes) -> None:
        self._region.write(data, len(data), at)

    def get(self, at: int, count: int) -> bytes:
        return bytes(self._region.read(count, at))

    def close(self) -> None:
        self._region.close()


class PyverbsLine:
    descriptor = None

    def __init__(self, door: PyverbsDoor, sends: int, receives: int) -> None:
        self._door = door
        self._queue = CQ(door.context, sends + receives)
        wanted = QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        self._pair = QP(door.domain, QPInitAttr(e.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=wanted))
        attributes = QPAttr(port_num=door.port)
        attributes.qp_access_flags = ACCESS
        self._pair.to_init(attributes)
        self._nothing = SGE(door.nowhere.address, 0, door.nowhere.local_key)
        self.number: int = self._pair.qp_num

    def connect(self, number: int, *, theirs: int, ours: int, mtu: int, gid: bytes) -> None:
        route = GlobalRoute(dgid=GID(_spelt(gid)), sgid_index=self._door.index, hop_limit=HOPS)
        attributes = QPAttr(port_num=self._door.port)
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=self._door.port)
        attributes.path_mtu = mtu
        attributes.dest_qp_num = number
        attributes.rq_psn = theirs
        attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = RECEIVER_TIMER
        attributes.sq_psn = ours
        attributes.timeout = TIMEOUT
        attributes.retry_cnt = attributes.rnr_retry = RETRIES
        attributes.max_rd_atomic = 1
        # From RTR to RTS by way of both.
        self._pair.to_rts(attributes)

    def receive(self, count: int) -> None:
        for _ in range(count):
            self._pair.post_recv(RecvWR(num_sge=1, sg=[self._nothing]))

    def post(
        self, opcode: Opcode, region: Region | None, at: int, count: int, *, to: int, key: int, immediate: int
    ) -> None:
        assert region is None or isinstance(region, PyverbsRegion)
        part = SGE(region.address + at, count, region.local_key) if region else self._nothing
        request = SendWR(
            opcode=OPCODES[opcode],
            num_sge=1,
            sg=[part],
            imm_data=socket.htonl(immediate),
            send_flags=e.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(key, to)
        self._pair.post_send(request)

    def poll(self) -> Sequence[Done]:
        _, done = self._queue.poll(MOST_DONE)
        return [
            Done(each.wr_id, each.status, bool(each.opcode & e.IBV_WC_RECV), socket.ntohl(each.imm_data))
            for each in done
        ]

    def arm(self) -> None:
        """There is nothing to be told by."""

    def stop(self) -> None:
        self._pair.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def close(self) -> None:
        self._pair.close()
        self._queue.close()


class PyverbsDoor:
    """The kernel's device with an address; pyverbs closes it with the process."""

    def __init__(self, gid: bytes) -> None:
        for device in get_device_list():
            self.context = Context(name=device.name.decode())
            for entry in self.context.query_gid_table(MOST_GIDS):
                if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and _packed(entry.gid_str()) == gid:
                    self.port, self.index = entry.port_num, entry.gid_index
                    break
            else:
                continue
            break
        else:
            raise LookupError(f"no RDMA device has the GID {_spelt(gid)}")
        self.gid = gid
        self.mtu: int = self.context.query_port(self.port).active_mtu
        self.domain = PD(self.context)
        self.nowhere = PyverbsRegion(self.domain, 8)

    def region(self, count: int) -> PyverbsRegion:
        return PyverbsRegion(self.domain, count)

    def line(self, *, sends: int, receives: int) -> PyverbsLine:
        return PyverbsLine(self, sends, receives)

    def close(self) -> None:
        """Nothing is left to be done."""


def _spelt(gid: bytes) -> str:
    return ipaddress.IPv6Address(gid).exploded


def _packed(gid: str) -> bytes:
    return ipaddress.IPv6Address(gid).packed
