"""The child process: a hard limit that counts the call alone, a real end, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.grading.math_answers import grade
from grpo_core.grading.worker import Worker, WorkerError, load_function

TOWER = r"\boxed{9^{9^{9^{9}}}}"

FUNCTIONS = """
from __future__ import annotations
import dataclasses, os, subprocess, sys, time
import neighbour
time.sleep(1.0)

@dataclasses.dataclass
class Record:
    pid: int

def pid():
    return Record(os.getpid()).pid
def doubled(x):
    return neighbour.twice(x)
def nap(seconds):
    time.sleep(seconds)
    return seconds
def grandchild(note):
    child = subprocess.Popen(["sleep", "60"])
    open(note, "w").write(str(child.pid))
    child.wait()
def noisy():
    print("text on standard output")
    os.write(1, b"bytes on its descriptor")
    subprocess.run(["echo", "and from a program"])
    return sys.stdin.readline()
def leave():
    sys.exit(3)
def die():
    os._exit(3)
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "neighbour.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "mine.py").write_text(FUNCTIONS)
    return str(folder / "mine.py")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(found) and not found.startswith("Z")


def gone(pid: int, within: float) -> bool:
    until = time.monotonic() + within
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def test_the_import_does_not_count_and_the_child_is_kept(worker: Worker, file: str) -> None:
    first = worker.call(f"{file}:pid", timeout=0.5)
    assert worker.call(f"{file}:pid", timeout=0.5) == first != os.getpid()
    assert worker.call("math:comb", (5, 2), timeout=1) == 10
    assert worker.call(f"{file}:doubled", (), {"x": 4}, timeout=1) == 8


def test_kf35_late_work_is_ended_and_the_next_call_has_normal_speed(worker: Worker) -> None:
    worker.call("time:sleep", (0,), timeout=5)
    assert worker._child is not None
    late = worker._child.pid
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"more than 0\.3 s"):
        worker.call("time:sleep", (60,), timeout=0.3)
    assert time.monotonic() - began < 10
    assert gone(late, within=5)
    assert worker.call("math:comb", (5, 2), timeout=1) == 10


def test_kf35_grading_from_many_threads_with_one_endless_answer() -> None:
    grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", timeout=5)  # the algebra library is imported once
    asked = [(TOWER, "1", 0.5, False)] + [
        (rf"\boxed{{\sqrt{{{4 * n}}}}}", rf"2\sqrt{{{n}}}", 5.0, True) for n in (2, 3, 5)
    ]
    got: dict[int, object] = {}

    def one(place: int) -> None:
        response, gold, limit, _ = asked[place]
        try:
            got[place] = grade(response, gold, timeout=limit)
        except BaseException as error:
            got[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {place: wanted for place, (_, _, _, wanted) in enumerate(asked)}
    began = time.monotonic()
    assert grade(r"\boxed{\sqrt{28}}", r"2\sqrt{7}", timeout=5)
    assert time.monotonic() - began < 10


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_kf35_what_the_function_started_is_ended_too(worker: Worker, file: str, tmp_path: Path) -> None:
    worker.call(f"{file}:pid", timeout=5)
    note, began = tmp_path / "pid", time.monotonic()
    with pytest.raises(TimeoutError):
        worker.call(f"{file}:grandchild", (str(note),), timeout=0.5)
    assert time.monotonic() - began < 10
    assert gone(int(note.read_text()), within=5)


def test_output_and_input_of_the_function_do_not_reach_the_protocol(worker: Worker, file: str) -> None:
    assert worker.call(f"{file}:noisy", timeout=5) == ""
    assert worker.call("math:comb", (5, 2), timeout=1) == 10


def test_failures_of_the_function_are_told_apart(worker: Worker, file: str) -> None:
    with pytest.raises(WorkerError, match="math:sqrt: ValueError"):
        worker.call("math:sqrt", (-1,), timeout=1)
    with pytest.raises(WorkerError, match="SystemExit: 3"):
        worker.call(f"{file}:leave", timeout=1)
    with pytest.raises(WorkerError, match="ended its process"):
        worker.call(f"{file}:die", timeout=1)
    with pytest.raises(WorkerError, match="did you mean sqrt"):
        worker.call("math:sqrtt", (4,), timeout=1)
    with pytest.raises(Exception, match="pickle"):
        worker.call("math:sqrt", (lambda: None,), timeout=1)
    assert worker.call("math:sqrt", (4,), timeout=1) == 2


def test_an_interrupted_call_leaves_no_answer_for_the_next(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_core.grading import worker as module

    worker.call("math:comb", (5, 2), timeout=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_receive", lambda stream: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            worker.call("math:comb", (6, 2), timeout=1)
    assert worker.call("math:comb", (7, 2), timeout=1) == 21


def test_a_dropped_worker_takes_its_child_along(file: str) -> None:
    worker = Worker()
    pid = worker.call(f"{file}:pid", timeout=5)
    assert alive(pid)
    del worker
    assert gone(pid, within=1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the interval timer")
@pytest.mark.parametrize("busy", [False, True])
def test_no_child_outlives_a_killed_parent(busy: bool) -> None:
    code = (
        "from grpo_core.grading.worker import Worker\nimport time\nw = Worker()\n"
        "w.call('time:sleep', (0,), timeout=5)\nprint(w._child.pid, flush=True)\n"
        + ("w.call('re:match', ('(a+)+$', 'a' * 60 + 'b'), timeout=1)" if busy else "time.sleep(60)")
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child, within=4 if busy else 1)


def test_the_child_does_not_pay_for_torch(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text("import sys\ndef loaded(name):\n    return name in sys.modules\n")
    grade_once = (r"\sqrt{8}", r"2\sqrt{2}")
    assert worker.call("grpo_core.grading.math_answers:compare_symbolic", grade_once, timeout=30) is True
    look = f"{tmp_path / 'look.py'}:loaded"
    assert worker.call(look, ("sympy",), timeout=1)
    assert not any(worker.call(look, (name,), timeout=1) for name in ("torch", "transformers", "pydantic"))


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_function(str(tmp_path / "none.py") + ":f")
    with pytest.raises(AttributeError, match="math has no sqr; did you mean sqrt"):
        load_function("math:sqr")
