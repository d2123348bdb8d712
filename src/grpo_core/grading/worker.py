"""A child process for work that may hang: it has a hard time limit, is reused, and is really ended when late.

The caller needs no signals, so any thread may call. The child is a fresh interpreter that imports only what it is asked
for. It ends when its parent dies: at once when idle, since its commands end there, and by its own alarm when busy.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

START_LIMIT = 120.0
"""Seconds a child may take to import what is called; that is not part of a call's limit."""

GRACE = 2.0
"""Seconds after the limit at which the child ends itself, which matters only when the parent is gone."""


class WorkerError(RuntimeError):
    """The called function raised or cannot be imported, or the child died; the message says which and why."""


class Worker:
    """Runs functions one at a time in a child process, started at the first call."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], Any] = lambda: None
        self._imported: set[str] = set()
        self._lock = threading.Lock()

    def call(
        self, target: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, timeout: float
    ) -> Any:
        """`target(*args, **kwargs)` in the child, within `timeout` seconds; what is passed and returned is pickled.

        `target` is `module:function` or `file.py:function`. Starting a child and importing `target` are not counted.
        Raises TimeoutError when late: the child and what it started are killed, and the next call gets a fresh one.
        Raises WorkerError when the function raised, cannot be imported, or ended its process.
        """
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            if target not in self._imported:
                self._ask(target, None, START_LIMIT)
                self._imported.add(target)
            return self._ask(target, (tuple(args), dict(kwargs or {})), timeout)

    def close(self) -> None:
        """End the child. May be called twice; the next call starts another."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        # The path goes first: without it the child may not find this package.
        code = f"import sys; sys.path[:] = {sys.path!r}; from grpo_core.grading.worker import serve; serve()"
        # A session of its own: Ctrl-C in the terminal is the parent's affair, and a kill reaches grandchildren too.
        self._child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._stop = weakref.finalize(self, _stop, self._child)

    def _end(self) -> None:
        self._stop()
        self._child = None
        self._imported.clear()

    def _ask(self, target: str, arguments: Any, limit: float) -> Any:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        request = pickle.dumps((target, arguments, limit + GRACE))
        late = threading.Event()

        def kill() -> None:
            late.set()
            _kill(child)

        timer = threading.Timer(limit, kill)
        timer.daemon = True
        timer.start()
        reply: tuple[bool, Any] | None = None
        try:
            _send(child.stdin, request)
            reply = pickle.loads(_receive(child.stdout))
        except (OSError, EOFError):
            pass
        finally:
            timer.cancel()
            timer.join()
            # Ctrl-C comes here too: an answer left in the pipe would be taken for the next one.
            if reply is None or late.is_set():
                self._end()
        if reply is None and late.is_set():
            doing = "call" if arguments else "import"
            raise TimeoutError(f"{target}: the {doing} took more than {limit:g} s and was ended")
        worked, value = reply or (False, "the function ended its process")
        if not worked:
            raise WorkerError(f"{target}: {value}")
        return value


def load_function(target: str) -> Callable[..., Any]:
    """The function named by `module:function` or `file.py:function`; a file may import its neighbours.

    Raises FileNotFoundError or AttributeError when it is not there, and whatever importing it raises.
    """
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            raise FileNotFoundError(f"no file {place}")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        spec = importlib.util.spec_from_file_location(f"grpo_user_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, dir(module), 1)
        raise AttributeError(f"{place} has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
    function: Callable[..., Any] = getattr(module, name)
    return function


def serve() -> None:
    """The child's loop. It keeps both pipes to itself: what functions print goes to standard error."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    known: dict[str, Callable[..., Any]] = {}
    while True:
        try:
            target, arguments, limit = pickle.loads(_receive(commands))
        except EOFError:
            return
        try:
            _alarm(limit)
            function = known.get(target) or known.setdefault(target, load_function(target))
            reply = pickle.dumps((True, arguments and function(*arguments[0], **arguments[1])))
        except (Exception, SystemExit) as error:
            reply = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        _alarm(0)
        _send(answers, reply)


def _alarm(seconds: float) -> None:
    """The system ends this process after so many seconds, whatever it is busy with; 0 calls that off."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _stop(child: subprocess.Popen[bytes]) -> None:
    _kill(child)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and, where the system has sessions, whatever it started."""
    if child.poll() is not None:
        return
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(struct.pack("!Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    (size,) = struct.unpack("!Q", header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
