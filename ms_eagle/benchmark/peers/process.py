"""A peer in a process of its own, which runs only while it is asked something."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

WORKER = (sys.executable, "-m", "ms_eagle.benchmark.peers.worker")
_TAIL = 20_000  # bytes of a dead worker's output that are searched for its last words


class PeerFailure(Exception):
    """A peer gave no answer; the message is one line that says why."""


class PeerProcess:
    """Starts a worker, asks it, and ends it with all its children.

    Between questions the worker is stopped: threads that spin for more work would take the cores from the
    peer whose turn it is. It leads a session of its own, so that Ctrl-C reaches the parent alone.
    """

    def __init__(self, timeout: float, verbose: bool = False, command: Sequence[str] = WORKER) -> None:
        """Start ``command DESCRIPTOR``, which must speak the protocol of `worker`.

        Args:
            timeout: seconds that an answer may take.
            verbose: let the libraries print on standard error.
            command: what to run.
        """
        self._timeout, self._began = timeout, time.perf_counter()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._socket, theirs = multiprocessing.Pipe()
        output = sys.__stderr__.fileno() if verbose else self._log.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def load(self, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Load the model; the worker's answer, and under ``ready`` the seconds since the process began.

        Raises:
            PeerFailure: see ``ask``.
        """
        answer = self._exchange({"kind": kind, "settings": dict(settings), "parent": os.getpid()})
        return {**answer, "ready": time.perf_counter() - self._began}

    def ask(self, call: str, *arguments: Any) -> Any:
        """Call a method of the model; its value in JSON's terms.

        Raises:
            PeerFailure: the worker died, or took too long and was ended.
        """
        return self._exchange({"call": call, "arguments": arguments})

    def peak_memory(self) -> int | None:
        """Most bytes that were resident at a time, mapped files included; None if it is unknown."""
        try:
            with open(f"/proc/{self._process.pid}/status", encoding="ascii") as lines:
                kilobytes = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
        except OSError:
            return None
        return None if kilobytes is None else 1024 * int(kilobytes)

    def close(self) -> None:
        """Kill the worker and its children, and wait for it; a second call does nothing."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._log.close()

    def _exchange(self, request: Mapping[str, Any]) -> Any:
        self._signal(signal.SIGCONT)
        try:
            self._socket.send_bytes(json.dumps(request).encode())
            if not self._socket.poll(self._timeout):
                raise PeerFailure(f"no answer within {self._timeout:g} s")
            answer = json.loads(self._socket.recv_bytes())
        except (EOFError, OSError) as error:
            raise PeerFailure(self._last_words()) from error
        except ValueError as error:
            raise PeerFailure("its answer is not JSON") from error
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        """Why a worker whose socket is closed has ended: its last line, or its status."""
        try:
            status = self._process.wait(10)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace").strip()
        return text.splitlines()[-1] if text else f"exit status {status}"
