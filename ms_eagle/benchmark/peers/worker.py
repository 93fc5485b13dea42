"""The process of one peer: ``python -m ms_eagle.benchmark.peers.worker DESCRIPTOR``.

It answers JSON objects, one a message, on the socket that it inherits as ``DESCRIPTOR``; standard output and
error belong to the libraries. The first message says which model to load. An exception ends the process: its
traceback and one last line that sums it up are on standard error, and the other end sees the socket close.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from ms_eagle.benchmark.peers.models import KINDS, PeerModel
from ms_eagle.errors import UserError
from ms_eagle.system import quiet

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST = 200  # characters of a summary


def serve(connection: Connection) -> None:
    """Load the model of the first message, then answer until the other end closes.

    First message: ``{"kind": ..., "settings": {...}, "parent": pid}``, answered by ``{"facts": {...}}``.
    Then ``{"call": name, "arguments": [...]}``, answered by the method's value.
    """
    first = json.loads(connection.recv_bytes())
    _die_with(first["parent"])
    model: PeerModel = KINDS[first["kind"]](**first["settings"])
    _send(connection, {"facts": model.facts})
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        value = getattr(model, request["call"])(*request["arguments"])
        _send(connection, value if isinstance(value, float) else asdict(value))


def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception hook: the traceback, then one line for whoever reads the last one."""
    traceback.print_exception(kind, error, trace)
    name = "" if isinstance(error, UserError) else f"{kind.__name__}: "
    print(" ".join(f"{name}{error}".split())[:_LONGEST], file=sys.stderr)


def _send(connection: Connection, value: Any) -> None:
    connection.send_bytes(json.dumps(value).encode())


def _die_with(parent: int) -> None:
    """Be killed by the system when the parent dies, however it dies; Linux alone has this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        sys.exit("the parent is gone")


if __name__ == "__main__":
    sys.excepthook = last_words
    quiet.start(verbose=False)
    serve(Connection(int(sys.argv[1])))
