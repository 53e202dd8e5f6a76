"""How a process computes: threads, allocator. Nothing here changes a number but `threads`."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from konsil.config import ComputeConfig
from konsil.errors import ConfigError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEEP_BYTES = 1 << 30


def prepare_process(compute: ComputeConfig) -> None:
    """Set up this process to compute for sites, once."""
    check_device(compute.device)
    torch.set_num_threads(compute.threads)
    if compute.device != "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
    keep_freed_memory()


@contextmanager
def settings_kept() -> Iterator[None]:
    """For guests of a process: torch's settings are afterwards what they were."""
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    gentle = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=gentle)


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    kind = device.split(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("compute.device = cuda: no CUDA device here; use device: cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("compute.device = mps: no Apple GPU here; use device: cpu")


def keep_freed_memory() -> None:
    """Let glibc keep freed memory instead of giving it back after every batch.

    Activations are megabytes that are freed and wanted again at once; returning them to the
    kernel costs a page fault each time (1.7 times the whole training time at 256 x 256).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
