"""NCCL's collectives between two devices, and symmetric memory: python collectives.py processes|one|symmetric|multicast

Prints "right" if all that they gave is; it needs no kernel of PyTorch's own wheel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, distributed
from torch.cuda import nccl
from torch.distributed import _symmetric_memory as symmetric_memory

RANKS = 2
SIZES = (1, 1000, 300_000)


def values(seed: int, size: int) -> Tensor:
    return torch.randint(-1000, 1000, (size,), generator=torch.Generator().manual_seed(seed)).float()


def collectives(rank: int, size: int) -> list[bool]:
    """What this rank got of each collective, compared with what all ranks have."""
    own = [values(number, size) for number in range(RANKS)]
    total = own[0] + own[1]
    right = []

    tensor = own[rank].cuda()
    distributed.all_reduce(tensor)
    right.append(torch.equal(tensor.cpu(), total))

    tensor = own[rank].cuda()
    distributed.broadcast(tensor, 1)
    right.append(torch.equal(tensor.cpu(), own[1]))

    gathered = torch.empty(RANKS * size, device="cuda")
    distributed.all_gather_into_tensor(gathered, own[rank].cuda())
    right.append(torch.equal(gathered.cpu(), torch.cat(own)))

    whole = [values(number + RANKS, RANKS * size) for number in range(RANKS)]
    part = torch.empty(size, device="cuda")
    distributed.reduce_scatter_tensor(part, whole[rank].cuda())
    right.append(torch.equal(part.cpu(), (whole[0] + whole[1])[rank * size : (rank + 1) * size]))

    received = torch.empty(size, device="cuda")
    if rank:
        distributed.recv(received, 0)
        distributed.send(received, 0)
    else:
        distributed.send(own[0].cuda(), 1)
        distributed.recv(received, 1)
    right.append(torch.equal(received.cpu(), own[0]))
    return right


def work(rank: int, port: int, results: Any) -> None:
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    results.put([right for size in SIZES for right in collectives(rank, size)])
    torch.cuda.synchronize()
    distributed.destroy_process_group()


def share(rank: int, port: int, results: Any) -> None:
    """Memory of the device that the other rank reads and writes."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    size = SIZES[1]
    tensor = symmetric_memory.empty(size, device=f"cuda:{rank}")
    tensor.copy_(values(rank, size))
    torch.cuda.synchronize()
    handle = symmetric_memory.rendezvous(tensor, distributed.group.WORLD)
    other = handle.get_buffer(1 - rank, (size,), torch.float32)
    distributed.barrier()
    right = [torch.equal(other.cpu(), values(1 - rank, size))]
    distributed.barrier()
    other.copy_(values(rank + RANKS, size))
    torch.cuda.synchronize()
    distributed.barrier()
    results.put([*right, torch.equal(tensor.cpu(), values(1 - rank + RANKS, size))])
    distributed.barrier()
    distributed.destroy_process_group()


#: Each thread sums four numbers of all ranks.  A kernel of NVRTC takes integers of 32 bits.
ADD_UP = """
extern "C" __global__ void add_up(int high, int low, float *sum)
{
    unsigned long long multicast = (unsigned long long)high << 32 | (unsigned)low;
    int k = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    asm volatile("{ .reg .f32 a, b, c, d;"
                 "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {a, b, c, d}, [%0];"
                 "st.global.v4.f32 [%1], {a, b, c, d}; }"
                 :: "l"(multicast + 4 * k), "l"(sum + k) : "memory");
}
"""


def add_up(rank: int, port: int, results: Any) -> None:
    """What all ranks have, by the multicast address that PyTorch has made."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    threads, size = 256, 4096
    tensor = symmetric_memory.empty(size, device=f"cuda:{rank}")
    tensor.copy_(values(rank, size))
    torch.cuda.synchronize()
    address = symmetric_memory.rendezvous(tensor, distributed.group.WORLD).multicast_ptr
    distributed.barrier()
    low = address & 2**32 - 1
    total = torch.empty(size, device="cuda")
    torch.cuda._compile_kernel(ADD_UP, "add_up")(
        grid=(size // 4 // threads, 1, 1), block=(threads, 1, 1), args=(address >> 32, low - (low >> 31 << 32), total)
    )
    results.put([address != 0, torch.equal(total.cpu(), sum(values(number, size) for number in range(RANKS)))])
    distributed.barrier()
    distributed.destroy_process_group()


def processes(target: Callable[[int, int, Any], None] = work) -> bool:
    """A process for each device."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    ranks = [context.Process(target=target, args=(rank, port, results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    right = [results.get() for process in ranks if process.exitcode == 0]
    return len(right) == RANKS and all(map(all, right))


def one() -> bool:
    """One process for both devices."""
    right = []
    for size in SIZES:
        own = [values(number, size) for number in range(RANKS)]
        tensors = [tensor.to(f"cuda:{number}") for number, tensor in enumerate(own)]
        nccl.all_reduce(tensors)
        right += [torch.equal(tensor.cpu(), own[0] + own[1]) for tensor in tensors]
        tensors = [tensor.to(f"cuda:{number}") for number, tensor in enumerate(own)]
        nccl.broadcast(tensors)
        right += [torch.equal(tensor.cpu(), own[0]) for tensor in tensors]
    return all(right)


CASES: dict[str, Callable[[], bool]] = {
    "processes": processes,
    "one": one,
    "symmetric": lambda: processes(share),
    "multicast": lambda: processes(add_up),
}

if __name__ == "__main__":
    print("right" if CASES[sys.argv[1]]() else "wrong")
