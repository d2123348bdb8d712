"""Memory of this process and its device."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

GIB = 1 << 30


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
