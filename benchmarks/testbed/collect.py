"""Train the candidates of the testbed on its sets and add the results to the table.

Every candidate is evaluated by the code of a search, rung by rung: a third of the first fold's training, then each
fold. The fold models predict the test rows. At the end, the ten best candidates of each set are trained on all rows.
Results that are in the table are not computed again, so that the command can be stopped at any time and repeated.

    python benchmarks/testbed/collect.py --data DIR --out benchmarks/testbed/table
    python benchmarks/testbed/collect.py --data DIR --out benchmarks/testbed/table --calibrate

The second command needs an otherwise idle machine. It repeats the first rung of every candidate on two sets, and
compares wall-clock time with the processor time of the table. Costs are processor seconds times that ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from sets import SETS, DrawnSet, TuningSet, draw_set
from specs import COUNT, ENCODER, TableSpec, list_specs, with_encoder
from table import CALIBRATION, SPECS, Entry, Rung, SetInfo, SetTable, Table, load_set, read_specs, write_specs

from headhunt.storage import hold_lock, remove, write_json

NINTH = 1 / 9
REFITTED = 10
FIRST_SPECS = 5  # these are trained on every set before any other
EXTRA_DELAY = 24  # main sets get this many more candidates before the others go on
SMART_DELAY = 48  # candidates trained with SMART take three times as long as others, and come later
CALIBRATED_SETS = ("subj", "rte")
SEED = 0


@dataclass(frozen=True)
class Job:
    """One candidate on one set."""

    set_name: str
    item: TableSpec
    kind: str = "evaluate"
    """`evaluate`, `refit` (train on all rows) or `calibrate` (time the first rung)."""


@dataclass(frozen=True)
class Settings:
    """Paths and sizes that all jobs share."""

    data: Path
    encoder: str
    scratch: Path
    rows: int | None = None
    test_rows: int = 0


@dataclass(frozen=True)
class Result:
    """Outcome of a job: the facts of its set, its entry and its arrays."""

    job: Job
    info: SetInfo
    shared: dict[str, np.ndarray]
    """Arrays of the set."""
    entry: Entry | None
    arrays: dict[str, np.ndarray]
    seconds: float


def run_job(job: Job, settings: Settings) -> Result:
    """Run a job in this process, with one thread."""
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        return replace(_run(job, settings, Path(folder)), seconds=time.perf_counter() - started)


def _run(job: Job, settings: Settings, folder: Path) -> Result:
    from headhunt.data import Task
    from headhunt.engine.trial_runner import TrialRunner
    from headhunt.engine.workers import RunnerSettings
    from headhunt.evaluation import DEFAULT_METRIC
    from headhunt.run.directory import RunDirectory
    from headhunt.run.task import open_task, save_task

    chosen = SETS[job.set_name]
    drawn = draw_set(chosen, settings.data, folder / "rows", settings.rows, settings.test_rows)
    task = Task.load(drawn.train, test=drawn.test, problem_type=chosen.problem_type)  # type: ignore[arg-type]
    directory = RunDirectory(folder / "run")
    save_task(task, directory.task)
    metric = DEFAULT_METRIC[task.problem_type]
    runner = TrialRunner(RunnerSettings(directory=str(folder / "run"), metric=metric, seed=SEED, threads=1))
    evaluated = np.concatenate([rows for _, rows in runner.folds])
    test_targets = open_task(directory.task, ("test",)).splits["test"].targets
    shared = {
        "rows": evaluated.astype(np.int32),
        "folds": np.repeat(np.arange(len(runner.folds)), [len(rows) for _, rows in runner.folds]).astype(np.int8),
        "targets": runner.targets[evaluated],
        "test_targets": test_targets,
    }
    info = _facts(job.set_name, chosen, drawn, metric, runner, len(test_targets))
    spec = with_encoder(job.item.spec, settings.encoder)
    steps = {"evaluate": _evaluate, "refit": _refit, "calibrate": _calibrate}[job.kind]
    entry, arrays = steps(runner, job.item.hash, spec, folder)
    return Result(job, info, shared, entry, arrays, 0.0)


def _facts(name: str, chosen: TuningSet, drawn: DrawnSet, metric: str, runner: Any, test_rows: int) -> SetInfo:
    return SetInfo(
        name=name,
        source=chosen.folder,
        problem_type=chosen.problem_type,
        metric=metric,
        pair=chosen.pair,
        rows=len(runner.targets),
        test_rows=test_rows,
        outputs=max(1, len(runner.task.labels)),
        folds=len(runner.folds),
        fingerprint=drawn.fingerprint,
        encoder=ENCODER,
    )


def _rung_fractions(runner: Any, solved: bool) -> list[tuple[float, int | None]]:
    """Return the fraction and the number of training rows of each rung; None is all rows."""
    if len(runner.folds) == 1:  # rungs are numbers of rows
        return [(1 / 3, round(len(runner.folds[0][0]) / 3)), (1.0, None)]
    folds = [((number + 1) / len(runner.folds), None) for number in range(len(runner.folds))]
    return folds if solved else [(NINTH, None), *folds]  # a solved head has no steps


def _evaluate(runner: Any, key: str, spec: Any, folder: Path) -> tuple[Entry, dict[str, np.ndarray]]:
    """Train a candidate rung by rung and predict the test rows with its fold models."""
    from headhunt.run.directory import read_predictions, read_test_predictions
    from headhunt.study.requests import EvaluateTrial, PredictTestRowsByFold

    warm_up(runner, spec)
    reset_peak_memory()
    rungs: list[Rung] = []
    arrays: dict[str, np.ndarray] = {}
    predictions, earlier = folder / "predictions.npz", None
    for number, (fraction, rows) in enumerate(_rung_fractions(runner, spec.recipe.is_solved)):
        checkpoint = folder / "checkpoints" / str(number)
        request = EvaluateTrial(
            trial=1, spec=spec, seed=SEED, rung=number, fraction=fraction, rows=rows, predictions=predictions,
            checkpoint=checkpoint, resume_from=earlier if rows is None else None,
        )  # fmt: skip
        rungs.append(_time(runner, request))
        if rungs[-1].outcome != "ok":
            break
        outputs = read_predictions(predictions)[1]
        if number == 0:
            arrays["early"] = outputs
        if fraction == 1:
            arrays["out_of_fold"] = outputs
        if earlier is not None:
            shutil.rmtree(earlier)
        earlier = checkpoint if rows is None else None
    entry = Entry(key, rungs[-1].outcome, tuple(rungs), round(peak_memory_mb(), 1))
    if entry.complete:
        began = time.process_time()
        test = folder / "test.npz"
        runner.run(PredictTestRowsByFold(trial=1, spec=spec, seed=SEED, checkpoint=checkpoint, predictions=test))
        arrays["test"] = read_test_predictions(test)
        entry = replace(entry, test_cpu_seconds=round(time.process_time() - began, 3))
    return entry, arrays


def _time(runner: Any, request: Any) -> Rung:
    """Run one rung and return its outcome and times; an error is an outcome too."""
    speed = training_gflops()
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        outcome = runner.run(request)
        kind, score, extra = outcome.outcome, outcome.score, outcome.extra
    except Exception as error:
        kind, score, extra = "error", None, {"message": f"{type(error).__name__}: {error}"[:500]}
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return Rung(
        fraction=request.fraction,
        outcome=kind,
        score=score,
        seconds=round(seconds, 3),
        cpu_seconds=round(cpu_seconds, 3),
        training_gflops=round((speed + training_gflops()) / 2, 1),
        training_seconds=extra.get("training_seconds"),
        message=str(extra.get("message", "")),
    )


def training_gflops(steps: int = 12) -> float:
    """Return the speed of training one layer of the encoder: shared machines change theirs, and some have bfloat16."""
    import torch
    from transformers import BertConfig, BertModel

    from headhunt.training.device import autocast
    from headhunt.training.dropout import quick_dropout

    config = BertConfig(vocab_size=2, hidden_size=384, num_hidden_layers=1, intermediate_size=1536)
    device, tokens = torch.device("cpu"), torch.zeros(32, 32, dtype=torch.long)
    with torch.random.fork_rng(devices=[]):
        model = BertModel(config, add_pooling_layer=False).train()
        began = time.process_time()
        with quick_dropout(model, device), autocast(device, "auto"):
            for _ in range(steps):
                model(tokens).last_hidden_state.float().sum().backward()
    weights = sum(parameter.numel() for parameter in model.encoder.parameters())
    return 6 * steps * tokens.numel() * weights / max(1e-6, time.process_time() - began) / 1e9


def _refit(runner: Any, key: str, spec: Any, folder: Path) -> tuple[Entry | None, dict[str, np.ndarray]]:
    """Train a candidate on all rows and predict the test rows. The entry carries the time alone."""
    from headhunt.run.directory import read_test_predictions
    from headhunt.study.requests import FitAllRows, PredictTestRows

    warm_up(runner, spec)
    began = time.process_time()
    outcome = runner.run(FitAllRows(trial=1, spec=spec, seed=SEED, out=folder / "model"))
    seconds = round(time.process_time() - began, 3)
    if outcome.outcome != "ok":
        return None, {}
    test = folder / "test.npz"
    runner.run(PredictTestRows(trial=1, spec=spec, seed=SEED, model=folder / "model", predictions=test))
    return Entry(key, "ok", (), 0.0, refit_cpu_seconds=seconds), {"refit": read_test_predictions(test)[0]}


def _calibrate(runner: Any, key: str, spec: Any, folder: Path) -> tuple[Entry, dict[str, np.ndarray]]:
    """Time the first rung of a candidate, with the same work as in the collection."""
    from headhunt.study.requests import EvaluateTrial

    warm_up(runner, spec)
    fraction, rows = _rung_fractions(runner, spec.recipe.is_solved)[0]
    request = EvaluateTrial(
        trial=1, spec=spec, seed=SEED, rung=0, fraction=fraction, rows=rows, predictions=folder / "predictions.npz",
        checkpoint=folder / "checkpoints" / "0",
    )  # fmt: skip
    rung = _time(runner, request)
    return Entry(key, rung.outcome, (rung,), 0.0), {}


def warm_up(runner: Any, spec: Any) -> None:
    """Store the activations that a candidate reads, as earlier candidates of a search would have done."""
    from headhunt.engine.trial_runner import FromCachedActivations
    from headhunt.study.requests import Request

    if spec.recipe.is_solved:
        return
    with FromCachedActivations(runner, runner.open(spec, np.arange(2), Request(trial=0, spec=spec, seed=SEED)), spec):
        pass


def reset_peak_memory() -> None:
    """Forget the peak memory of this process, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process in megabytes; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")), 0.0)


class Collection:
    """A table that grows.

    Args:
        folder: Directory of the table.
        specs: The candidates, by whether they are for pairs.
        names: Names of the sets.
    """

    def __init__(self, folder: Path, specs: dict[bool, list[TableSpec]], names: Sequence[str]) -> None:
        self.folder, self.specs, self.names = folder, specs, list(names)
        existing = [name for name in self.names if (folder / f"{name}.json").exists()]
        self.sets: dict[str, SetTable] = {name: load_set(folder, name) for name in existing}

    def jobs(self) -> Iterator[Job]:
        """Yield the evaluations that are missing, the most valuable first."""
        ranked: list[tuple[int, Job]] = []
        for name in self.names:
            chosen = SETS[name]
            done = self.sets[name].entries if name in self.sets else {}
            for place, item in enumerate(self.specs[chosen.pair][: chosen.specs]):
                if not item.suits(chosen.problem_type):
                    continue
                delay = EXTRA_DELAY if chosen.specs is not None and place >= FIRST_SPECS else 0
                delay += SMART_DELAY if item.spec.recipe.smart is not None and place >= FIRST_SPECS else 0
                if item.hash not in done:
                    ranked.append((place + delay, Job(name, item)))
        yield from (job for _, job in sorted(ranked, key=lambda pair: pair[0]))

    def refits(self) -> Iterator[Job]:
        """Yield the missing training runs on all rows, of the best candidates of each set."""
        for name, table in self.sets.items():
            by_hash = {item.hash: item for item in self.specs[SETS[name].pair]}
            for spec in table.best(REFITTED):
                if spec in by_hash and f"{spec}.refit" not in table.arrays:
                    yield Job(name, by_hash[spec], "refit")

    def add(self, result: Result) -> None:
        """Add a result and write the files of its set."""
        name = result.job.set_name
        table = self.sets.get(name) or SetTable(result.info, {}, dict(result.shared))
        if table.info.fingerprint != result.info.fingerprint:
            raise ValueError(f"{name} must be drawn from the same data as before; its rows differ.")
        entry = result.entry
        if entry is None:
            return
        if result.job.kind == "refit":
            entry = replace(table.entries[entry.spec], refit_cpu_seconds=entry.refit_cpu_seconds)
        self.sets[name] = table.with_entry(entry, result.arrays)
        self.sets[name].save(self.folder)


def run_all(jobs: Iterator[Job], settings: Settings, workers: int) -> Iterator[Result]:
    """Run jobs in order, each in a process of its own; yield results as they finish.

    A new process has used no memory for other candidates. If it dies, its job is left for the next call of the command.
    """
    context = multiprocessing.get_context("spawn")
    running: dict[Any, tuple[Job, Any]] = {}
    while True:
        for job in islice(jobs, workers - len(running)):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_result, args=(sender, job, settings), daemon=True)
            process.start()
            sender.close()
            running[receiver] = job, process
        if not running:
            return
        for receiver in wait(list(running)):
            job, process = running.pop(receiver)
            try:
                yield receiver.recv()
            except EOFError:
                process.join()
                print(
                    f"{job.kind} {job.set_name} {job.item.hash}: the process ended with {process.exitcode}", flush=True
                )
            receiver.close()
            process.join()


def _send_result(sender: Any, job: Job, settings: Settings) -> None:
    sender.send(run_job(job, settings))
    sender.close()


def calibrate(args: argparse.Namespace, settings: Settings) -> None:
    """Time the first rung of candidates of the table and write the ratios of quiet to processor seconds."""
    table = Table(args.out)
    ratios = table.quiet_ratios()
    for name in (name for name in CALIBRATED_SETS if name in table.sets and name in args.sets):
        stored = table.sets[name]
        items = {item.hash: item for item in table.specs(stored.info.pair)}
        missing = [spec for spec in stored.scored if spec in items and spec not in ratios]
        for result in run_all(iter([Job(name, items[spec], "calibrate") for spec in missing]), settings, 1):
            if result.entry is not None and result.entry.complete:
                spec, quiet = result.entry.spec, result.entry.rungs[0]
                seconds = quiet.seconds * quiet.speed
                ratios[spec] = round(seconds / max(stored.entries[spec].rungs[0].reference_seconds, 0.01), 4)
                print(f"{name} {spec}: {seconds:.1f} s, ratio {ratios[spec]:.2f}", flush=True)
                write_json(args.out / CALIBRATION, {"schema": 1, "ratios": ratios})


def parse_arguments() -> argparse.Namespace:
    from measure import options

    parser = options(__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS), help="sets to work on")
    parser.add_argument("--workers", type=int, default=2, help="processes with one thread each")
    parser.add_argument("--more", type=int, default=0, help="space-filling draws to add to the candidates")
    parser.add_argument("--scratch", type=Path, default=None, metavar="DIR", help="directory for temporary files")
    parser.add_argument("--calibrate", action="store_true", help="measure costs on a quiet machine")
    args = parser.parse_args()
    if args.out is None:
        parser.error("--out must name the directory of the table.")
    return args


def open_specs(folder: Path, more: int, quick: bool) -> dict[bool, list[TableSpec]]:
    """Return the candidates of the table. A stored list stays, even if the default space has changed since."""
    stored = read_specs(folder) if (folder / SPECS).exists() else None
    specs = stored or {pair: list_specs(pair, 4 if quick else COUNT) for pair in (False, True)}
    if quick and stored is None:
        specs = {pair: [item.with_epochs(1.0) for item in items] for pair, items in specs.items()}
    for pair, items in specs.items() if more else ():
        known = {item.hash for item in items}
        drawn = [item for item in list_specs(pair, len(items) + 2 * more) if item.hash not in known]
        specs[pair] = items + drawn[:more]
    if stored is None or more:
        write_specs(folder, specs)
    return specs


def main() -> None:
    args = parse_arguments()
    from measure import encoder_folder

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="testbed-"))
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["HEADHUNT_CACHE"] = str(scratch / "cache")
    args.out.mkdir(parents=True, exist_ok=True)
    rows, test_rows = (60, 30) if args.quick else (None, 0)
    settings = Settings(args.data, encoder_folder(args.encoder), scratch, rows, test_rows)
    with hold_lock(scratch / "collect.lock"):
        for leftover in scratch.glob("tmp*"):  # of processes that were killed
            remove(leftover)
        if args.calibrate:
            calibrate(args, settings)
            return
        collection = Collection(args.out, open_specs(args.out, args.more, args.quick), args.sets)
        left, done = len(list(collection.jobs())), 0
        for kind in ("jobs", "refits"):
            for result in run_all(getattr(collection, kind)(), settings, args.workers):
                collection.add(result)
                done += 1
                entry = result.entry
                score = next((rung.score for rung in reversed(entry.rungs)), None) if entry else None
                print(
                    f"{time.strftime('%H:%M:%S')} {done}/{left} {result.job.kind} {result.job.set_name}"
                    f" {result.job.item.origin} {result.job.item.hash}: {entry.outcome if entry else 'failed'}"
                    f" {score} in {result.seconds:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
