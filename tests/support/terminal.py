"""A process that a person sits at."""

import os
import pty
import select
import subprocess
import termios
import time

from support.commands import environment


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, arguments, directory):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            arguments, stdin=slave, stdout=slave, stderr=slave, cwd=directory, env=environment()
        )
        os.close(slave)
        self.seen = ""

    def send(self, text):
        os.write(self.master, text.encode())

    @property
    def echoes(self):
        """Whether keys are shown as they are pressed."""
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)

    def wait_for(self, text):
        """Read until ``text`` appears, and drop everything up to its end."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.seen!r}"
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def wait_for_answer(self):
        """Wait for the first text of an answer, which comes when readline is done with the line."""
        self.wait_for("\x1b[?2004l\r")
        while not self.seen.strip():
            self.seen += os.read(self.master, 65536).decode(errors="replace")

    def close(self):
        """End what is still running."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)
