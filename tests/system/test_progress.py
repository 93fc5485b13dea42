import io

import pytest
from rich.console import Console

from ms_eagle.system.progress import Progress


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=100, color_system=None), text


def run(progress: Progress) -> None:
    with progress.bytes("fetching [x]", 2000) as outer:
        outer.advance(500)
        outer.reach(1500)
        with progress.steps("sorting", 3) as inner:
            inner.advance()
            inner.advance(2)
    with progress.bytes("unknown size") as step:
        step.reach(70)


def test_silent_where_nobody_watches() -> None:
    for terminal, quiet in ((False, False), (True, True)):
        target, text = console(terminal)
        progress = Progress(quiet=quiet, console=target)
        assert not progress.visible
        run(progress)
        assert text.getvalue() == ""


def test_a_terminal_sees_counts_in_their_units() -> None:
    target, text = console(True)
    progress = Progress(console=target)
    assert progress.visible
    run(progress)
    shown = text.getvalue()
    assert "fetching [x]" in shown
    assert "1.5 kB/2.0 kB" in shown
    assert "3/3" in shown
    assert "70 bytes" in shown


@pytest.mark.parametrize(
    ("seconds", "left"), [(0.5, "0:04 left"), (100.0, "11:40 left"), (500.0, "58:20 left")]
)
def test_the_time_left_is_told_after_two_jobs_however_slow(seconds: float, left: str) -> None:
    now = [0.0]
    text = io.StringIO()
    target = Console(file=text, force_terminal=True, width=100, color_system=None, get_time=lambda: now[0])
    with Progress(console=target).steps("slow", 10) as step:
        step.reach(1)  # as a run that is continued
        for _ in range(2):
            now[0] += seconds
            step.advance()
    assert left in text.getvalue()


def test_the_line_is_gone_after_a_failure() -> None:
    target, text = console(True)
    progress = Progress(console=target)
    for _ in range(2):  # the second run fails if the first left its display open
        try:
            with progress.steps("failing", 3):
                raise KeyError("stop")
        except KeyError:
            pass
    assert text.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_a_pipe_is_no_terminal_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = Progress()
    assert not progress.visible
    run(progress)
    assert capsys.readouterr() == ("", "")


def test_bars_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    run(Progress(console=Console(stderr=True, force_terminal=True, width=100)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sorting" in captured.err
