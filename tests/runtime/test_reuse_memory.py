"""Freed memory stays with the process: later rounds of the same tensors fault no pages in."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import torch
from grpo_core.runtime.memory import reuse_freed_memory

if sys.argv[1] == "on":
    assert reuse_freed_memory()
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1 << 24) for _ in range(2)]  # 64 MiB each: 32768 pages of 4 KiB
    del held
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told")
def test_later_rounds_fault_no_pages_in() -> None:
    def last_round(switch: str) -> int:
        done = subprocess.run([sys.executable, "-c", ROUNDS, switch], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1])

    assert last_round("on") < 100
    assert last_round("off") > 1000
