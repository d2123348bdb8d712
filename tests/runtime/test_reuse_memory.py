"""Freed memory stays with the process: after some rounds the same tensors fault no pages in."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import torch
from grpo_core.runtime.memory import reuse_freed_memory

if sys.argv[1] == "on":
    assert reuse_freed_memory()
for _ in range(40):  # an aligned block leaves a sliver behind that may keep its hole too small: that settles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1 << 24) for _ in range(2)]  # 64 MiB each: 32768 pages of 4 KiB
    del held
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told")
def test_rounds_come_to_fault_no_pages_in() -> None:
    def faults(switch: str) -> list[int]:
        done = subprocess.run([sys.executable, "-c", ROUNDS, switch], capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    assert statistics.median(faults("on")[-10:]) < 100
    assert min(faults("off")) > 1000
