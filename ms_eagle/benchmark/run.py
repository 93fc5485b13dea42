"""One benchmark from its configuration to its files: manifest, turns, summary and report.

Everything is kept as soon as it is known, and read again by the next process in the same directory.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mindspore as ms

from ms_eagle.benchmark import charts, identity, turn_log
from ms_eagle.benchmark.figures import summary, values
from ms_eagle.benchmark.page import page
from ms_eagle.benchmark.pair import EnginePair, check_drafter
from ms_eagle.benchmark.plan import Question, names, plan, shard
from ms_eagle.benchmark.runner import Runner
from ms_eagle.chat.session import generation_options
from ms_eagle.checkpoints import pointer
from ms_eagle.config.sections import Config
from ms_eagle.deployment.bundle import WEIGHTS, Bundle
from ms_eagle.deployment.manifest import FILE as BUNDLE_MANIFEST
from ms_eagle.drafters.registry import kind_of
from ms_eagle.errors import UserError
from ms_eagle.pages import plot as svg_plot
from ms_eagle.paths import PACKAGE
from ms_eagle.system import files, json_file
from ms_eagle.system.distributed import Worker
from ms_eagle.system.progress import Progress
from ms_eagle.system.provenance import revision, weight_hashes

STARTUP = "startup.json"
PROFILE = "profile.json"
SUMMARY = "summary.json"
REPORT = "report.html"
PLOT = "speedup.svg"
_START_SECONDS = 600.0  # for another worker to appear


@dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        config: the whole configuration.
        prompts: files of questions.
        limit: at most so many turns of them; None takes all.
        out: the directory of the run.
        profiled: how many turns the stage profile runs; 0 makes none.
        deployed: the bundle to measure, instead of the model that the configuration names.
    """

    config: Config
    prompts: tuple[Path, ...]
    limit: int | None
    out: Path
    profiled: int = 0
    deployed: Bundle | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        summary: as in ``summary.json``; None on a worker that does not lead.
        incomplete: by rank, how many turns a worker left undone.
    """

    summary: dict[str, Any] | None
    incomplete: dict[int, int]


def run(job: Job, progress: Progress, worker: Worker | None = None) -> Outcome:
    """Run a job, or what is left of it.

    Raises:
        UserError: a mistake in the configuration or the prompts, or the directory holds another run.
        KeyboardInterrupt: Ctrl-C; a further call goes on from there.
    """
    worker = worker or Worker()
    check_drafter(job.config)
    questions = plan(job.prompts, job.limit)
    wanted = identity.identity(job.config, job.prompts, job.limit)
    if job.deployed is not None:
        wanted["bundle"] = files.sha256(job.deployed.path(BUNDLE_MANIFEST))
    identity.claim(job.out, wanted)
    own = shard(questions, worker.rank, worker.ranks)
    alone = worker.ranks == 1
    path = job.out / turn_log.MERGED if alone else turn_log.rank_file(job.out, worker.rank)
    log = turn_log.TurnLog(path, turn_log.collect(job.out))
    config = job.config if alone else share_cores(job.config, worker.ranks)
    try:
        runner = Runner(config, log, lambda: _load(job, config, worker, progress), progress)
        try:
            runner.run(own)
        except KeyboardInterrupt:
            kept = sum(log.measured(name) for name in names(own))
            progress.note(
                f"{kept} of {len(names(own))} turns are kept in {job.out}; the same command goes on"
            )
            raise
        if not worker.leads:
            return Outcome(None, {})
        others = [rank for rank in range(worker.ranks) if rank != worker.rank]
        with progress.steps("waiting for the other workers") as step:
            turn_log.await_workers(job.out, others, _START_SECONDS, step.advance)
        if job.profiled and not (job.out / PROFILE).exists():
            profile = _profile(job, runner, questions, progress)
            json_file.write_object(job.out / PROFILE, profile)
    finally:
        log.close()
    incomplete = _incomplete(job.out, questions, worker.ranks)
    return Outcome(finish(job, questions, wanted, incomplete), incomplete)


def finish(
    job: Job, questions: Sequence[Question], wanted: Mapping[str, Any], incomplete: Mapping[int, int]
) -> dict[str, Any]:
    """Merge the turns, and write what is made of them."""
    records = turn_log.merge(job.out, names(questions))
    profile = _read(job.out / PROFILE)
    manifest = {**wanted, **_read(job.out / STARTUP)}
    whole = summary(records, profile.get("stage_ms"), manifest)
    whole["planned_turns"] = len(names(questions))
    whole["incomplete_ranks"] = {str(rank): count for rank, count in incomplete.items()}
    whole["profile"] = profile or None
    json_file.write_object(job.out / SUMMARY, whole)
    files.write_text(job.out / REPORT, page(whole, records))
    turns = [record for record in records if "error" not in record]
    if turns:
        plot = charts.speedup_plot(values(turns, "speedup"), whole["speedup"])
        files.write_text(job.out / PLOT, svg_plot.standalone(plot))
    return whole


def share_cores(config: Config, ranks: int) -> Config:
    """The configuration of one of several workers on a machine: its share of the cores, unless it says."""
    if config.execution.threads is not None:
        return config
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    execution = config.execution.model_copy(update={"threads": threads})
    return config.model_copy(update={"execution": execution})


def _load(job: Job, config: Config, worker: Worker, progress: Progress) -> EnginePair:
    """The engines, compiled and warm; the leader keeps what they are made of."""
    if job.deployed is None:
        from ms_eagle.benchmark.engines import Pair  # the model code, which a bundle does without

        pair = Pair.load(config, progress)
    else:
        from ms_eagle.benchmark.deployed import load_pair

        pair = load_pair(job.deployed, config, progress)
    with progress.steps("compiling and warming up"):
        pair.warm_up(generation_options(config, pair.teacher.tokenizer))
    if not worker.leads:
        return pair
    described = _describe(job, config, pair, worker, progress)
    known = _read(job.out / STARTUP)
    where = identity.difference(known.get("weights", described["weights"]), described["weights"], "weights")
    if where is not None:
        raise UserError(f"{job.out} was begun with other weights: {where}; name another --out")
    json_file.write_object(job.out / STARTUP, described)
    return pair


def _describe(
    job: Job, config: Config, pair: EnginePair, worker: Worker, progress: Progress
) -> dict[str, Any]:
    """What only a loaded run knows."""
    graphs = pair.speculative.graphs
    return {
        "git": revision(PACKAGE),
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": ms.get_context("device_target"),
        "kernels": graphs.facts.kernels,
        "drafter": graphs.facts.drafter,
        "tree": {
            "budget": config.tree.budget,
            "depth": config.tree.depth,
            "branch": config.tree.branch,
        },
        "workers": worker.ranks,
        "threads": config.execution.threads,
        "load_average": round(os.getloadavg()[0], 2),
        "load_s": pair.speculative.load_seconds,
        "compile_s": pair.teacher.compile_seconds + pair.speculative.compile_seconds,
        "warm_up_s": pair.warm_up_seconds,
        "weights": _weights(job, config, pair, progress),
    }


def _weights(job: Job, config: Config, pair: EnginePair, progress: Progress) -> dict[str, Any]:
    """Hashes of the weights of model and head; of a bundle, in which both are one, its manifest's."""
    if job.deployed is not None:
        recorded = [record.model_dump() for record in job.deployed.manifest.files]
        return {"model": [record for record in recorded if record["name"] == WEIGHTS], "head": None}
    teacher = pair.teacher.directory
    weights = {"model": weight_hashes(teacher, progress, pointer.files(teacher)), "head": None}
    kind = kind_of(config)
    if kind.locate is not None:
        weights["head"] = weight_hashes(kind.locate(config, progress), progress)
    return weights


def _profile(job: Job, runner: Runner, questions: Sequence[Question], progress: Progress) -> dict[str, Any]:
    from ms_eagle.benchmark.profile import profile

    return profile(runner.ready(), job.config, questions, job.profiled, progress)


def _incomplete(directory: Path, questions: Sequence[Question], ranks: int) -> dict[int, int]:
    found = turn_log.collect(directory)
    left = {
        rank: sum(name not in found for name in names(shard(questions, rank, ranks))) for rank in range(ranks)
    }
    return {rank: count for rank, count in left.items() if count}


def _read(path: Path) -> dict[str, Any]:
    return json_file.read_object(path) if path.exists() else {}
