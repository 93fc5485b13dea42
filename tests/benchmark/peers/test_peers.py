"""tools/benchmark_peers.py: real peers on a tiny model, and scripted ones that fail in every way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.sessions import save_model, write_config

from ms_eagle.benchmark.peers import report as peer_report
from ms_eagle.benchmark.peers.catalogue import TEACHER, Peer
from ms_eagle.benchmark.peers.comparison import Plan, compare
from ms_eagle.benchmark.peers.models import Arrivals, Timing
from ms_eagle.benchmark.peers.process import PeerFailure, PeerProcess
from ms_eagle.benchmark.peers.timing import Difference, Result, first_difference, run
from ms_eagle.config.sections import load_config
from ms_eagle.errors import UserError
from ms_eagle.paths import ROOT
from ms_eagle.system import machine
from ms_eagle.system.progress import Progress

TOOL = ROOT / "tools" / "benchmark_peers.py"
SILENT = Progress(quiet=True)


@pytest.fixture(scope="module")
def config_path(tmp_path_factory):
    root = tmp_path_factory.mktemp("peers")
    return write_config(root / "c.yaml", save_model(root / "model"), temperature=0.8)


def test_real_peers_write_the_same_tokens(config_path):
    names = [TEACHER, "transformers", "transformers-lookup", "llama.cpp"]
    arguments = ["--config", config_path, "--set", f"model.cache_dir={config_path.parent / 'cache'}"]
    arguments += ["--limit", "2", "--new-tokens", "6", "--rounds", "2", "--json"]
    done = subprocess.run(
        [sys.executable, TOOL, *arguments, "--threads", "1", "--peers", *names],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [peer["name"] for peer in report["peers"]] == names
    ours, *others = [
        peer for peer in report["peers"] if peer["name"] != "llama.cpp" or peer["status"] == "ok"
    ]
    assert (report["threads"], report["new_tokens"], report["rounds"]) == (1, 6, 2)
    assert ours["ratio"] == {"median": 1.0, "p10": 1.0, "p90": 1.0}
    assert len(others) >= 2
    for peer in (ours, *others):
        assert (peer["status"], peer["differences"]) == ("ok", [])
        assert [answer["token_ids"] for answer in peer["prompts"]] == [
            answer["token_ids"] for answer in ours["prompts"]
        ]
        assert {len(answer["rounds"]) for answer in peer["prompts"]} == {2}
        assert peer["peak_bytes"] > 10e6
        assert 0 < peer["first_token_seconds"] < peer["load_seconds"]
    table = peer_report.lines(report)
    for peer in report["peers"]:
        assert sum(line.startswith(f"{peer['name']} ") for line in table) in (1, 2)
    absent = [peer for peer in report["peers"] if peer["status"] != "ok"]
    assert all("pip install" in peer["reason"] for peer in absent)


# Scripted peers, in real processes.

FAKE = """
import os, signal, sys, time
from multiprocessing.connection import Connection
from ms_eagle.benchmark.peers import models as peer_models, worker as peer_worker

class Fake:
    facts = {"version": "1"}

    def __init__(self, behaviour):
        self.behaviour, self.asked = behaviour, 0
        if behaviour == "does not load":
            raise FileNotFoundError("no weights\\nhere")

    def generate(self, prompt, count):
        self.asked += 1
        if self.behaviour == "raises" and self.asked == 3:
            raise ValueError("too many")
        if self.behaviour == "is killed" and self.asked == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.behaviour == "hangs":
            time.sleep(60)
        tokens = [sum(prompt) + i for i in range(count)]
        if self.behaviour == "differs" and self.asked == 5 and count > 4:
            tokens[4] = 0
        return peer_models.Timing(tuple(tokens), 0.5, 1, 0.5 + count)

    def margin(self, tokens, one, other):
        return float(len(tokens) + one + other)

peer_models.KINDS["fake"] = peer_models.KINDS["transformers"] = Fake
sys.excepthook = peer_worker.last_words
peer_worker.serve(Connection(int(sys.argv[1])))
"""
FAKE_COMMAND = (sys.executable, "-c", FAKE)


def fake(behaviour, kind="fake", packages=()):
    return Peer(behaviour, kind, packages, lambda progress: {"behaviour": behaviour})


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return False


class Impatient(PeerProcess):
    """Gives a worker all the time to load, and next to none to answer."""

    def ask(self, call, *arguments):
        self._timeout = 0.5
        return super().ask(call, *arguments)


def test_failing_peers_are_rows_and_leave_no_process():
    started = []

    def start():
        kind = Impatient if len(started) == 4 else PeerProcess
        started.append(kind(60.0, command=FAKE_COMMAND))
        return started[-1]

    def refuse(progress):
        raise UserError("no such form")

    peers = [
        *(fake(each) for each in ("good", "does not load", "raises", "is killed", "hangs")),
        fake("differs", kind="transformers"),
        fake("absent", packages=("json", "no_such_module_at_all")),
        Peer("refused", "fake", (), refuse),
    ]
    results = {
        r.peer.name: r
        for r in run(peers, [[1, 2], [3]], new_tokens=5, rounds=2, start=start, progress=SILENT)
    }
    assert {name: result.failure for name, result in results.items()} == {
        "good": None,
        "does not load": "FileNotFoundError: no weights here",
        "raises": "ValueError: too many",
        "is killed": "killed by SIGKILL",
        "hangs": "no answer within 0.5 s",
        "differs": None,
        "absent": "no_such_module_at_all not installed: pip install -e '.[peers]' in the clone",
        "refused": "no such form",
    }
    assert [name for name, result in results.items() if result.missing] == ["absent"]
    good = results["good"]
    assert good.facts == {"version": "1"}
    assert [[t.token_ids for t in rounds] for rounds in good.timings] == [[(3, 4, 5, 6, 7)] * 2] * 2
    assert good.differences == []
    # Its fifth answer, of which two were to warm up, is the second round's of one of the prompts.
    (difference,) = results["differs"].differences
    prompt = [[1, 2], [3]][difference.prompt]
    assert difference == Difference(difference.prompt, 4, 7, 0, len(prompt) + 4 + 7.0)
    assert len(started) == 6
    assert all(is_gone(process._process.pid) for process in started)


def test_a_peer_is_stopped_while_it_is_not_asked():
    process = PeerProcess(20.0, command=FAKE_COMMAND)
    try:
        process.load("fake", {"behaviour": "good"})
        stat = Path(f"/proc/{process._process.pid}/stat")
        assert wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        assert process.ask("generate", [1], 2)["token_ids"] == [1, 2]
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(PeerFailure, match="SIGKILL"):
            process.ask("generate", [1], 2)
    finally:
        process.close()
    process.close()


PARENT = """
import sys
from ms_eagle.system import interrupts
from ms_eagle.benchmark.peers.catalogue import Peer
from ms_eagle.benchmark.peers.timing import run
from ms_eagle.benchmark.peers.process import PeerProcess
from ms_eagle.system.progress import Progress

interrupts.start()

def start():
    process = PeerProcess(60.0, command=(sys.executable, "-c", sys.argv[1]))
    print(process._process.pid, flush=True)
    return process

def fake(name):
    return Peer(name, "fake", (), lambda progress: {"behaviour": name})

peers = [fake("good"), fake("hangs")]
run(peers, [[1]], new_tokens=2, rounds=1, start=start, progress=Progress(quiet=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_peer_outlives_its_parent(number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, FAKE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with parent:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        time.sleep(0.5)  # by now one of them hangs, most likely; any moment must do
        parent.send_signal(number)
        parent.wait(20)
    assert parent.returncode != 0
    assert wait_for(lambda: all(map(is_gone, workers)))


# Figures.


def timing(rate, first=0.1, tokens=(1, 2, 3)):
    return Timing(tokens, first, 1, first + 2 / rate)


def result(name, rates, **fields):
    timings = [[timing(rate) for rate in rounds] for rounds in rates]
    return Result(fake(name), timings=timings, load_seconds=1.5, peak_bytes=5_000_000, **fields)


def test_a_rate_counts_what_came_after_the_first_arrival():
    assert Timing((1, 2, 3, 4, 5), 0.5, 2, 2.0).rate == 2.0
    assert Timing((1, 2), 0.5, 2, 0.5).rate is None


def test_arrivals_keep_what_was_asked_for():
    arrivals = Arrivals(4)
    with pytest.raises(RuntimeError, match="0 tokens came, 4 were asked for"):
        arrivals.timing()
    arrivals.take([1, 2])
    arrivals.take([3, 4, 5])
    noted = arrivals.timing()
    assert (noted.token_ids, noted.burst) == ((1, 2, 3, 4), 2)
    assert 0 < noted.first <= noted.total


def test_the_earliest_difference_of_all_rounds_counts():
    assert first_difference((1, 2, 3), [(1, 2, 3), (1, 2, 3)]) is None
    assert first_difference((1, 2, 3), [(1, 2, 9), (1, 7, 3)]) == (1, 7)


COMMON = {
    "model": "m", "threads": 2, "new_tokens": 3, "rounds": 2,
    "prompts": [{"name": "a", "tokens": 5}, {"name": "b", "tokens": 7}],
    "load_before": [0.1, 0.0, 0.0], "load_after": [2.0, 0.0, 0.0], "elsewhere": 0.2,
}  # fmt: skip


def test_ratios_pair_prompts_and_rounds():
    teacher = result(TEACHER, [[10, 20], [40, 80]])
    other = result("x", [[5, 30], [20, 40]])
    got = peer_report.ratio(other, teacher)
    assert {key: round(value, 6) for key, value in got.items()} == {"median": 0.5, "p10": 0.5, "p90": 1.2}
    burst = Result(fake("all at once"), timings=[[Timing((1,), 0.1, 1, 0.1)] * 2] * 2)
    assert peer_report.ratio(burst, teacher) is None


def test_the_table_says_everything():
    results = [
        result(TEACHER, [[12, 20], [40, 88]], facts={"kernels": "native"}),
        result(
            "x", [[6, 10], [20, 44]], differences=[Difference(0, 1, 7, 8, 2e-5), Difference(1, 2, 7, 9, 0.3)]
        ),
        Result(fake("y"), failure="no answer within 2 s", timings=[[], []]),
        Result(fake("z"), failure="z not installed: pip install z", missing=True, timings=[[], []]),
    ]
    report = json.loads(json.dumps(peer_report.record(results, COMMON)))
    assert report["idle"] is False
    assert [peer["status"] for peer in report["peers"]] == ["ok", "ok", "failed", "missing"]
    text = "\n".join(" ".join(line.split()) for line in peer_report.lines(report))
    apart = "transformers' logits of the two are"
    for line in (
        "m, float32, 2 threads; 2 prompts of 5 to 7 tokens, 3 new tokens, 2 rounds",
        "load average 0.10 before, 2.00 after; others used 20 % of the CPU",
        "warning: the machine was not idle: these figures cannot be relied on",
        "ms_eagle 40.0 1.00 1.00-1.00 100.0 1.5 5 2 of 2",
        "x 20.0 0.50 0.50-0.50 100.0 1.5 5 0 of 2",
        "y failed: no answer within 2 s",
        "z missing: z not installed: pip install z",
        "ms_eagle kernels native",
        f"x: prompt 1 differs from token 2 on: id 8, not 7; {apart} 2.0e-05 apart: a tie",
        f"x: prompt 2 differs from token 3 on: id 9, not 7; {apart} 3.0e-01 apart: NOT a tie",
        "tokens/s by prompt ms_eagle x",
        "a (5 tokens) 16.0 8.0",
        "b (7 tokens) 64.0 32.0",
    ):
        assert line in text.split("\n")


def test_without_the_teacher_there_are_no_ratios():
    report = peer_report.record([result("x", [[5, 10], [20, 40]])], COMMON)
    assert report["peers"][0]["ratio"] is None
    assert any(line.startswith("x ") and " - " in line for line in peer_report.lines(report))


def test_work_of_others_is_what_is_busy_without_us(tmp_path, monkeypatch):
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", stat)
    own = [0.0]
    monkeypatch.setattr(machine.os, "times", lambda: os.times_result((own[0], 0.0, 2.0, 0.0, 0.0)))
    # user nice system idle iowait irq softirq steal guest guest_nice, in ticks; guest is in user already
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 9\n")
    watch = machine.Watch()
    assert watch.elsewhere() is None
    stat.write_text("cpu " + " ".join(str(tick * n) for n in (4, 1, 1, 10, 2, 0, 1, 1, 7, 7)) + "\n")
    own[0] = 3.0
    assert watch.elsewhere() == pytest.approx((8 - 3) / 20)
    stat.unlink()
    assert watch.elsewhere() is None


# Refusals.


@pytest.mark.parametrize(
    ("overrides", "plan", "words"),
    [
        (["model.dtype=bfloat16"], {}, "model.dtype is bfloat16"),
        (["execution.device=Ascend"], {}, "execution.device is Ascend"),
        ([], {"names": ["llamacpp"]}, "no peer 'llamacpp'.*llama.cpp"),
        ([], {"names": ["ms_eagle-eagle3"]}, "no peer 'ms_eagle-eagle3' for this configuration"),
        ([], {"new_tokens": 128}, "prompt p has .* tokens, which with 128 new ones are more"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(config_path, overrides, plan, words):
    config = load_config(config_path, overrides)
    with pytest.raises(UserError, match=words):
        compare(
            config, [("p", "Hello")], Plan(**{"new_tokens": 4, "rounds": 1, "threads": 1, **plan}), SILENT
        )


def test_too_little_memory_is_refused(config_path, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    with pytest.raises(UserError, match="choose fewer with --peers"):
        compare(load_config(config_path), [("p", "Hello")], Plan(4, 1, 1), SILENT)


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--assistant", "/nowhere"], ["--prompts", "/nowhere"]]
)
def test_usage_errors_are_one_line(arguments):
    done = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert arguments[0] in done.stderr or arguments[1] in done.stderr
