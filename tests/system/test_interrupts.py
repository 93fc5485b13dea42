"""Ctrl-C reaches Python although a library has replaced the handler of SIGINT."""

import contextlib
import signal
import subprocess
import sys

import pytest

# What MindSpore does at every run of a graph, in miniature: native code takes SIGINT, here to die of it.
TAKEN = """
import ctypes, hashlib, os, signal, sys, threading, time
from ms_eagle.system import interrupts
if "start" in sys.argv:
    interrupts.start()
taken = ctypes.CDLL(None).signal
taken.argtypes = [ctypes.c_int, ctypes.c_void_p]
taken(signal.SIGINT, None)  # SIG_DFL
caught = 0
while caught < 2:
    try:
        print("ready", flush=True)
        {wait}
    except KeyboardInterrupt:
        caught += 1
"""


def start(wait, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", TAKEN.format(wait=wait), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_without_it_the_process_dies():
    running = start("time.sleep(60)")
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    assert (running.returncode, out) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    "wait", ["time.sleep(60)", "sys.stdin.readline()", "while True: pass", "threading.Event().wait()"]
)
def test_every_ctrl_c_is_a_keyboard_interrupt(wait):
    running = start(wait, "start")
    for _ in range(2):
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
    running.wait(timeout=30)  # before its standard input is closed, which would end a read
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (0, b"", b"")


def test_a_further_one_ends_native_code_that_does_not_return():
    running = start("hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)", "start")
    assert running.stdout.readline() == b"ready\n"
    for _ in range(200):  # several may arrive as one
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(0.1)
            break
    assert running.returncode == 130
    running.communicate(timeout=30)


def test_a_process_that_ignores_it_goes_on_ignoring_it():
    program = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from ms_eagle.system import interrupts\ninterrupts.start()\n"
        "import ctypes; taken = ctypes.CDLL(None).signal; taken.argtypes = [ctypes.c_int, ctypes.c_void_p]\n"
        "taken(signal.SIGINT, None)\n"  # as a graph's run does
        "os.kill(os.getpid(), signal.SIGINT)\nprint('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "alive\n")
