"""What training programs do beside operations: python training.py CASE

Each case prints "right" if what it computed is; it needs no kernel of PyTorch's own wheel.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

BATCHES, BATCH = 4, 8
SIZE = 4096


def values(seed: int, size: int = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def tell(right: bool) -> None:
    print("right" if right else "wrong")


# ---- loaders of data ----


class Numbered(Dataset[Tensor]):
    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> Tensor:
        return values(index, 1000)


def loader(method: str) -> None:
    """Workers make batches, a thread without a CUDA context pins them."""
    batches = DataLoader(
        Numbered(),
        batch_size=BATCH,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        multiprocessing_context=method,
    )
    right = []
    for _ in range(2):
        for number, batch in enumerate(batches):
            there = batch.to("cuda", non_blocking=True)
            expected = torch.stack([values(number * BATCH + one, 1000) for one in range(BATCH)])
            right.append(batch.is_pinned() and torch.equal(there.cpu(), expected))
    tell(len(right) == 2 * BATCHES and all(right))


# ---- processes ----


def consume(tensors: Any, answers: Any) -> None:
    while (item := tensors.get()) is not None:
        seed, tensor, event = item
        if event is not None:
            event.wait()
        right = torch.equal(tensor.cpu(), values(seed))
        tensor[:16].copy_(torch.full((16,), float(seed)))
        torch.cuda.synchronize()
        del item, tensor, event
        answers.put(right)


def shared() -> None:
    """Tensors of the device in another process, which writes to them."""
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(tensors, answers))
    consumer.start()
    right = []
    for seed in range(4):
        tensor, event = values(seed).cuda(), torch.cuda.Event(interprocess=True)
        event.record()
        if seed % 2:
            torch.cuda.synchronize()
        tensors.put((seed, tensor, None if seed % 2 else event))
        right.append(answers.get() and tensor[:16].cpu().tolist() == [float(seed)] * 16)
        del tensor, event
    tensors.put(None)
    consumer.join()
    tell(all(right) and consumer.exitcode == 0)


def fork() -> None:
    torch.empty(1).cuda()
    child = os.fork()
    if not child:
        try:
            torch.empty(1).cuda()
        except RuntimeError as error:
            os._exit(0 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    tell(status == 0 and torch.equal(values(1).cuda().cpu(), values(1)))


def rank(number: int, port: int, results: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    total, told = values(number).cuda(), values(number + 2).cuda()
    torch.distributed.all_reduce(total)
    torch.distributed.broadcast(told, 0)
    results.put(torch.allclose(total.cpu(), values(0) + values(1)) and torch.equal(told.cpu(), values(2)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def gloo() -> None:
    """Tensors of the device between two processes of torch.distributed."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    ranks = [context.Process(target=rank, args=(number, port, results)) for number in range(2)]
    for process in ranks:
        process.start()
    right = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    tell(all(right) and [process.exitcode for process in ranks] == [0, 0])


# ---- one process ----


def threads() -> None:
    right = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(20):
                here = values(number * 100 + turn).pin_memory()
                there = here.to("cuda", non_blocking=True)
                back = torch.empty(SIZE).pin_memory()
                back.copy_(there, non_blocking=True)
                done = torch.cuda.Event()
                done.record()
                done.synchronize()
                right.append(torch.equal(back, here))

    running = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    tell(len(right) == 80 and all(right))


def memory() -> None:
    """Until none is left, and then on; the allocator is PYTORCH_CUDA_ALLOC_CONF's."""
    kept = []
    try:
        while True:
            kept.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    filled = len(kept)
    kept.clear()
    torch.cuda.empty_cache()
    tell(filled > 1 and torch.cuda.memory_allocated() == 0 and torch.equal(values(1).cuda().cpu(), values(1)))


CASES: dict[str, Callable[[], None]] = {
    "loader-fork": lambda: loader("fork"),
    "loader-spawn": lambda: loader("spawn"),
    "shared": shared,
    "fork": fork,
    "gloo": gloo,
    "threads": threads,
    "memory": memory,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
