"""Memory of this process and its device, and how freed memory is used again."""

from __future__ import annotations

import ctypes
import platform
import resource
import sys
from pathlib import Path

import torch

GIB = 1 << 30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def reuse_freed_memory() -> bool:
    """Let malloc keep what torch frees on the CPU, for the next tensor; returns whether that is possible here.

    glibc maps every large tensor afresh and hands it back when freed, so each one costs a page fault for 4 KiB: a
    third of a training step. Needs glibc; elsewhere (musl, macOS, Windows) nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, GIB)) and bool(libc.mallopt(M_TRIM_THRESHOLD, -1))


def memory_metrics() -> dict[str, float]:
    """`memory/rss_gb` now, `memory/peak_gb` so far, and the device's peak where there is one; GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    figures = {"memory/peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}
    statm = Path("/proc/self/statm")
    if statm.exists():
        figures["memory/rss_gb"] = int(statm.read_text().split()[1]) * resource.getpagesize() / GIB
    if torch.cuda.is_available():
        figures["memory/device_gb"] = torch.cuda.memory_allocated() / GIB
        figures["memory/device_peak_gb"] = torch.cuda.max_memory_allocated() / GIB
    return figures
