"""Exit statuses, the one-line errors and the shared options, in real processes where a process matters."""

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ms_eagle.cli import command_line
from ms_eagle.errors import UserError
from ms_eagle.paths import ROOT


def program(body):
    """A process that runs ``main(argv)`` with this body under `command_line.run`."""
    indented = textwrap.indent(body, "    ")
    return [
        sys.executable,
        "-c",
        "import os, signal, sys, time\n"
        "from ms_eagle.cli import command_line\nfrom ms_eagle.errors import UserError\n"
        f"def main(argv):\n{indented}\ncommand_line.run(main)\n",
    ]


def process(body, *arguments):
    return subprocess.run([*program(body), *arguments], capture_output=True, text=True, timeout=60)


def test_done():
    done = process("print('out', argv)\nreturn 0", "a", "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out ['a', 'b']\n", "")


def test_a_user_error_is_one_line_and_status_2():
    done = process("raise UserError('found x;\\n expected y')")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: found x; expected y\n")


def test_what_files_hold_is_shown_without_its_escapes():
    done = process("command_line.say('a\\x1b[31m', 'b\\x9bü')\nreturn 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\\x1b[31m\nb\\x9bü\n", "")


def test_anything_else_is_a_traceback_and_status_1():
    done = process("raise RuntimeError('odd')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: odd\n")


@pytest.mark.parametrize(
    "body",
    [
        "raise MemoryError",
        "raise RuntimeError('std::bad_alloc')",
        "raise RuntimeError('Allocate memory failed\\n---\\n')",
        "raise RuntimeError('Resource temporarily unavailable')",
        "raise ImportError('libx.so: failed to map segment from shared object')",
        "try: raise MemoryError\nexcept MemoryError: raise ValueError('half a table')",
    ],
)
def test_a_lack_of_memory_is_one_line_and_status_2_whoever_says_it(body):
    done = process(f"import atexit\natexit.register(os.abort)\nprint('kept')\n{body}")
    assert (done.returncode, done.stdout) == (2, "kept\n")
    assert re.fullmatch(r"error: out of memory: [^\n]*ulimit[^\n]*\n", done.stderr)


@pytest.mark.parametrize(("share", "status"), [(1.02, 2), (2, 1)])
def test_an_error_without_a_reason_is_a_lack_of_memory_where_the_address_space_is_used_up(share, status):
    done = process(
        "import resource\nused = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (int(used * {share}),) * 2)\n"
        "raise RuntimeError('Unknown Error!\\n---\\n')"
    )
    assert done.returncode == status
    assert ("out of memory" in done.stderr) == (status == 2)


@pytest.mark.parametrize("mebibytes", [100, 900])
def test_an_address_space_too_small_is_one_line(mebibytes):
    command = f"ulimit -v {mebibytes << 10} && exec {sys.executable} tools/infer.py --prompt hello"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("error: out of memory[^\n]*\n", done.stderr)


def test_ctrl_c_is_status_130_without_a_traceback():
    done = process("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_reader_that_goes_away_is_no_error(quiet):
    begin = "command_line.begin(False)\n" if quiet else ""
    body = f"{begin}for _ in range(100000):\n    print('line')\nreturn 0"
    writer = subprocess.Popen(program(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(timeout=60) != -signal.SIGPIPE


def parser():
    made = command_line.Parser("[options]", "Does a thing.", "examples:\n  do it")
    made.add_config_options()
    made.add_common_options()
    return made


@pytest.mark.parametrize("arguments", [["--nothing"], ["stray"], ["--config"], ["--conf", "x"], ["--set"]])
def test_usage_errors_are_user_errors_that_point_to_the_help(arguments):
    with pytest.raises(UserError, match="--help"):
        parser().parse_args(arguments)


def test_options():
    args = parser().parse_args(["--config", "a.yaml", "--set", "x.y=1", "--set", "x.z=a=b", "--verbose"])
    assert args.config == Path("a.yaml")
    assert args.overrides == ["x.y=1", "x.z=a=b"]
    assert args.verbose
    assert parser().parse_args([]).overrides == []


def test_the_default_configuration_is_found_from_anywhere():
    assert parser().parse_args([]).config.is_absolute()
    assert parser().parse_args([]).config.is_file()


def test_help_keeps_its_lines_and_lists_the_exit_statuses():
    text = parser().format_help()
    assert "examples:\n  do it\n" in text
    for status in ("0 ", "1 ", "2 ", "130 "):
        assert f"\n  {status}" in text
    assert max(map(len, text.splitlines())) <= 110


def test_native_output_is_hidden_and_shown_after_an_unexpected_error():
    body = (
        "print('before')\ncommand_line.begin('--verbose' in argv)\n"
        "os.write(1, b'native out\\n'); os.write(2, b'native err\\n')\nprint('after')\n"
        "print('ours', file=sys.stderr)\n"
        "if 'fail' in argv: raise RuntimeError('odd')\nreturn 0"
    )
    done = process(body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\nafter\n", "ours\n")
    done = process(body, "fail")
    assert done.returncode == 1
    assert done.stdout == "before\nafter\n"
    assert "RuntimeError: odd" in done.stderr
    assert done.stderr.endswith("native out\nnative err\n")
    done = process(body, "--verbose")
    assert (done.stdout, done.stderr) == ("before\nnative out\nafter\n", "native err\nours\n")


def test_user_errors_do_not_show_hidden_output():
    done = process("command_line.begin(False)\nos.write(2, b'noise\\n')\nraise UserError('wrong')")
    assert (done.returncode, done.stderr) == (2, "error: wrong\n")


def shell(body, redirection):
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {redirection}', "bash", *program(body)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("begin", ["", "command_line.begin(False)\n"])
@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device_and_a_lost_answer_is_told(begin, redirection):
    body = (
        f"{begin}print('message', file=sys.stderr)\n"
        "assert (sys.stdin.isatty(), sys.stdin.read()) == (False, '')\n"
        "with open(os.devnull) as file: assert file.fileno() > 2\n"
        "print('out')\nreturn 3"
    )
    done = shell(body, redirection if "<" in redirection else f"{redirection} </dev/null")
    lost = ">&-" in redirection.replace("2>&-", "")
    assert (done.returncode, done.stdout) == ((1, "") if lost else (3, "out\n"))
    told = "error: cannot write the answer: standard output is closed\n" if lost else ""
    assert done.stderr == ("" if "2>&-" in redirection else f"message\n{told}")


@pytest.mark.parametrize("begin", ["", "command_line.begin(False)\n"])
@pytest.mark.parametrize(
    "rest",
    ["return 0", "while True: print('answer', flush=True)", "sys.stdout.write('a')\nraise SystemExit(0)"],
)
def test_a_full_disk_is_one_line_and_status_1(begin, rest):
    done = shell(f"{begin}print('answer', end='')\n{rest}", ">/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "error: cannot write the answer: No space left on device\n",
    )


def test_messages_that_cannot_be_written_are_dropped():
    body = "command_line.begin(False)\nprint('figures', file=sys.stderr)\nprint('out')\nreturn 0"
    done = shell(body, "2>/dev/full")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert shell("raise UserError('wrong')", "2>/dev/full").returncode == 2


def test_ctrl_c_runs_no_exit_hooks():
    """Those of a half imported library abort."""
    body = "import atexit\natexit.register(os.abort)\nprint('kept')\nraise KeyboardInterrupt"
    for begin in ("", "command_line.begin(False)\n"):
        done = process(begin + body)
        assert (done.returncode, done.stdout, done.stderr) == (130, "kept\n", "interrupted\n")


@pytest.mark.parametrize("tool", ["infer", "check_head", "trace_view", "benchmark_kernels"])
def test_tools_import_nothing_slow_before_ctrl_c_is_in_hand(tool):
    slow = {"numpy", "pydantic", "rich", "tokenizers", "mindspore"}
    tools = ROOT / "tools"
    code = f"import sys\nsys.path.insert(0, {str(tools)!r})\nimport {tool}\n"
    code += f"print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
