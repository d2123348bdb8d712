"""A child process for work that may hang: it has a hard time limit, is reused, and is really ended when late.

No signals and no alarms, so it works from any thread. The child is a fresh interpreter that imports only what it is
asked to call; it ends by itself when its parent dies, since its standard input is then closed.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


class WorkerError(RuntimeError):
    """The called function raised, or the child died; the message says which and why."""


class Worker:
    """Runs `target` functions one at a time. `target` is `module:function` or `file.py:function`."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def call(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float,
    ) -> Any:
        """`target(*args, **kwargs)` in the child, within `timeout` seconds. Arguments and result are pickled.

        Starting a child is not counted. Raises TimeoutError when late (the child is killed, the next call gets a fresh
        one) and WorkerError when the function raised or the child died.
        """
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            late = threading.Event()

            def kill() -> None:
                late.set()
                child.kill()

            timer = threading.Timer(timeout, kill)
            timer.start()
            try:
                _send(child.stdin, (target, tuple(args), dict(kwargs or {})))
                answer = _receive(child.stdout)
            except (OSError, EOFError):
                answer = None
            finally:
                timer.cancel()
            if answer is None:
                self._end()
                if late.is_set():
                    raise TimeoutError(f"{target} took more than {timeout:g} s and was ended")
                raise WorkerError(f"{target} ended its process")
        worked, value = answer
        if not worked:
            raise WorkerError(str(value))
        return value

    def close(self) -> None:
        """End the child. May be called twice; the next call starts another."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            command = [sys.executable, "-c", "from grpo_core.grading.worker import serve; serve()"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._child.stdin is not None and self._child.stdout is not None
            _send(self._child.stdin, list(sys.path))
            if _receive(self._child.stdout) != "ready":
                raise WorkerError("the child process for graders did not start")
        return self._child

    def _end(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._child = None


def load_function(target: str) -> Callable[..., Any]:
    """The function named by `module:function` or `file.py:function`.

    Raises ImportError, FileNotFoundError or AttributeError when it is not there.
    """
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            raise FileNotFoundError(f"no file {place}")
        spec = importlib.util.spec_from_file_location(f"grpo_user_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function: Callable[..., Any] = getattr(module, name)
    return function


def serve() -> None:
    """The child's loop. What the functions print goes to standard error, so that it cannot break the protocol."""
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    sys.path[:] = _receive(commands)
    _send(answers, "ready")
    known: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            target, args, kwargs = _receive(commands)
        except EOFError:
            return
        try:
            function = known.get(target) or known.setdefault(target, load_function(target))
            _send(answers, (True, function(*args, **kwargs)))
        except Exception as error:
            _send(answers, (False, f"{type(error).__name__}: {error}"))


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("!Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    (size,) = struct.unpack("!Q", header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)
