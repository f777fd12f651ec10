"""A search from data to model: what `headhunt search`, `resume` and `status` do.

Hides the order of things around the study: the run directory that needs nothing but itself, workers, the best model so
far on disk, the time kept for the end, and the end: the best candidate trained on all rows, the mean of the best, the
test rows looked at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headhunt.data import Task, open_task, read_about, save_task
from headhunt.errors import HeadhuntError
from headhunt.evaluation import DEFAULT_METRIC, check_metric, evaluate, greedy_mean
from headhunt.ledger import Outcome, Request, RunError, State, Trial
from headhunt.run import TASK, Run
from headhunt.space import Space
from headhunt.spec import DEFAULT_ENCODER, Recipe, Spec
from headhunt.study.candidates import Candidates
from headhunt.study.executor import Executor, Inline
from headhunt.study.study import Limits, Study

if TYPE_CHECKING:
    from headhunt.predictor import Predictor

SETTINGS, RESULT, MODEL, MODELS, ENSEMBLE = "search.json", "result.json", "model", "models", "ensemble"
STARTER = -1  # the trial number of the first model, which is no candidate
LARGEST_RESERVE = 0.35  # share of the time that is kept for the end at most
MEMBERS = 6  # candidates whose mean is offered at most
DISK = 8 << 30  # bytes of checkpoints


@dataclass(frozen=True)
class Settings:
    """What a search was asked to do; kept in the run directory, so that it can be taken up again."""

    encoder: str
    space: dict[str, Any]
    strategy: str = "bohb"
    metric: str = "accuracy"
    time: float | None = 600.0
    trials: int | None = None
    target: float | None = None
    seed: int = 0
    workers: int | None = None
    ray: str | None = None
    device: str | None = None
    precision: str = "auto"
    trust_remote_code: bool = False

    def write(self, folder: Path) -> None:
        """Keeps the settings."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / SETTINGS, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Reads what `write` kept.

        Raises:
            RunError: If there is no run in the folder.
        """
        try:
            return cls(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{folder} must be the folder of a search; {SETTINGS} cannot be read ({error}).") from None


class View(Protocol):
    """Who is shown how a search goes."""

    def begin(self, search: Search, state: State, deadline: float | None) -> None:
        """The search begins, or is taken up."""

    def update(self, state: State, deadline: float | None, stage: str) -> None:
        """Something may have changed."""

    def end(self) -> None:
        """The search is over."""


class Search:
    """A search in its run directory, under way or over.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: str | Path) -> None:
        self.run_dir = Path(folder)
        self.settings = Settings.read(self.run_dir)
        self.about = read_about(self.run_dir / TASK)

    def __repr__(self) -> str:
        state = self.state
        best = state.best
        found = f"best {best.best[1]:.4f}" if best and best.best else "nothing yet"
        return f"Search({str(self.run_dir)!r}: {len(state.trials)} trials, {found})"

    @property
    def state(self) -> State:
        """What the ledger holds now."""
        return Run(self.run_dir).state

    @property
    def best(self) -> Trial | None:
        """The best candidate so far."""
        return self.state.best

    @property
    def result(self) -> dict[str, Any]:
        """What the search ended with; empty while it goes on."""
        path = self.run_dir / RESULT
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @property
    def model_dir(self) -> Path | None:
        """The best model on disk."""
        return best_model(self.run_dir, self.state)

    def leaderboard(self) -> list[dict[str, Any]]:
        """Candidates with a score, best first."""
        rows = []
        for trial in self.state.leaderboard():
            assert trial.best is not None
            rung, score = trial.best
            seconds = round(sum(result.seconds for result in trial.results.values()), 2)
            rows.append(
                {
                    "trial": trial.number,
                    "score": score,
                    "rung": rung,
                    "origin": trial.origin,
                    "seconds": seconds,
                    "spec": Spec.from_dict(trial.spec),
                }
            )
        return rows

    def load(self) -> Predictor:
        """The best model."""
        from headhunt.api import load

        folder = self.model_dir
        if folder is None:
            raise RunError(f"{self.run_dir} has no model yet.")
        return load(folder)


def search(
    data: Any,
    *,
    out: str | Path | None = None,
    encoder: str | None = None,
    time: str | float | None = "10m",
    trials: int | None = None,
    target: float | None = None,
    space: str | Path | Space = "default",
    strategy: str = "bohb",
    metric: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    view: View | None = None,
    **options: Any,
) -> Search:
    """Searches for the best head and recipe, and ends with a model.

    Args:
        data: A `Task`, or anything `Task.load` takes.
        out: The run directory; a new one in `runs/` unless given.
        encoder: A Hugging Face name or a folder.
        time: Seconds, or as "90s", "10m", "1h30m", from now until all is done; None for no limit.
        trials: Candidates at most.
        target: A score that ends the search.
        space: "default", "paper", a file, or a `Space`.
        strategy: How candidates are chosen.
        metric: What candidates are compared by; accuracy unless the task asks for another.
        workers: Processes that train side by side; 0 trains in this one; one per core or GPU unless given.
        ray: The address of a Ray cluster.
        seed: For everything that is left to chance.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        view: Who is shown how it goes.
        options: Passed on to `Task.load`: text, text_b, label, kind, test, limit …

    Returns:
        The search, over.
    """
    began = clock.time()
    limit = seconds(time)
    Limits(limit, trials, target)  # refuses what makes no sense before any work is done
    task = data if isinstance(data, Task) else Task.load(data, seed=seed, **options)
    metric = metric or DEFAULT_METRIC[task.kind]
    check_metric(task.kind, metric)
    encoder = encoder or DEFAULT_ENCODER
    layers = layers_in(encoder, trust_remote_code)
    chosen = space if isinstance(space, Space) else Space.load(str(space), layers)
    folder = Path(out) if out is not None else free_folder(task.name)
    if (folder / "ledger.jsonl").exists():
        raise RunError(f"{folder} holds a search already: headhunt resume {folder}, or give another --out.")
    settings = Settings(
        encoder=encoder,
        space=chosen.to_dict(),
        strategy=strategy,
        metric=metric,
        time=limit,
        trials=trials,
        target=target,
        seed=seed,
        workers=workers,
        ray=ray,
        device=device,
        precision=precision,
        trust_remote_code=trust_remote_code,
    )
    save_task(task, folder / TASK)
    settings.write(folder)
    return _Hunt(folder, settings, began, limit, view).go()


def resume(
    folder: str | Path,
    *,
    time: str | float | None = None,
    trials: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    view: View | None = None,
) -> Search:
    """Takes a search up where it was left.

    Args:
        folder: The run directory.
        time: How much longer; what was left of the first limit unless given.
        trials: Candidates at most, those before included; as first asked unless given.
        workers: As for `search`; as first asked unless given.
        ray: As for `search`.
        view: Who is shown how it goes.
    """
    began = clock.time()
    folder = Path(folder)
    settings = Settings.read(folder)
    state = Run(folder).state if (folder / "ledger.jsonl").exists() else State()  # it may have died before
    limit = seconds(time)
    if limit is None and settings.time is not None:
        limit = 0.0 if state.ended == "time" else settings.time - state.elapsed
        if limit <= 0 and trials is None:
            raise RunError(
                f"The search had {settings.time:.0f} s and has used them. Give --time for how much longer it may go on."
            )
        limit = limit if limit > 0 else None
    changes = {"trials": trials, "workers": workers, "ray": ray}
    changed = {**asdict(settings), **{name: value for name, value in changes.items() if value is not None}}
    return _Hunt(folder, Settings(**changed), began, limit, view).go()


class _Hunt:
    """One go at a search: from opening the run to the model."""

    def __init__(self, folder: Path, settings: Settings, began: float, limit: float | None, view: View | None) -> None:
        self.folder, self.settings, self.view = folder, settings, view
        self.about = read_about(folder / TASK)
        self.deadline = None if limit is None else began + limit
        self.limit = limit
        self.rows = self.about["rows"]["train"]
        self._stop = threading.Event()
        self.study: Study | None = None
        self.stage = "starting"
        self.parts = parts_of(self.about)

    def go(self) -> Search:
        """Searches, ends, and gives back what was found."""
        search = Search.__new__(Search)
        search.run_dir, search.settings, search.about = self.folder, self.settings, self.about
        with Run(self.folder, write=True) as run:
            if self.view:
                self.view.begin(search, run.state, self.deadline)
            executor = self._executor()
            try:
                self._study(run, executor)
            finally:
                executor.close()
                if self.view:
                    self.view.end()
        return search

    def _executor(self) -> Executor:
        settings = self.settings
        bench: dict[str, Any] = {
            "folder": str(self.folder.absolute()),
            "metric": settings.metric,
            "seed": settings.seed,
            "device": settings.device,
            "precision": settings.precision,
            "trust_remote_code": settings.trust_remote_code,
        }
        if settings.workers == 0:
            from headhunt.trial import Bench

            here = Bench(**bench)
            return Inline(lambda request: here.run(request, self._stop.is_set))
        from headhunt.study import ray_executor as ray

        count = settings.workers or ray.here()
        bench |= {"threads": 1} if settings.device in (None, "cpu") and not _has_gpu() else {}
        bench |= {} if settings.ray else {"memory": int(0.8 * ray.memory() / count)}
        return ray.RayWorkers("headhunt.trial:Bench", bench, workers=settings.workers, address=settings.ray)

    def _study(self, run: Run, executor: Executor) -> None:
        settings = self.settings
        space = Space.from_dict(settings.space)
        candidates = Candidates(
            space, encoder=settings.encoder, pair=self.about["columns"]["text_b"] is not None, rows=self.rows
        )
        left = None if self.deadline is None else max(0.1, self.deadline - clock.time())
        study = Study(
            run,
            candidates,
            executor,
            strategy=settings.strategy,
            limits=Limits(left, settings.trials, settings.target),
            seed=settings.seed,
            task=self.about["fingerprint"],
            disk=DISK,
            versions=versions(),
            watch=self._watch,
        )
        self.study = study
        if run.state.model is None:
            study.chores.append(self._starter())
        self.stage = "searching"
        with interruptible(self._interrupt):
            reason = study.go()
        if executor.workers == 0:
            raise HeadhuntError("There are no workers left.")
        self._refuse_hopeless(study)
        with interruptible(None):
            self._stop.clear()
            _End(self, study, executor, reason).go()

    def _interrupt(self) -> None:
        """First Ctrl-C: no more candidates; what was found so far is brought to its end."""
        self._stop.set()
        if self.study is not None:
            self.study.stop("interrupted")

    def _starter(self) -> Request:
        """The first model: the mean of the token vectors and one layer, on the encoder as it came. It takes seconds."""
        recipe = Recipe(epochs=20.0, rate=1e-2, freeze="all")
        head = {"pooling": "mean"} | ({"siamese": "concat"} if self.about["columns"]["text_b"] is not None else {})
        spec = Spec.from_dict({"encoder": self.settings.encoder, "head": head, "recipe": asdict(recipe)})
        return Request(
            trial=STARTER,
            spec=spec.to_dict(),
            rung=0,
            fraction=1.0,
            seed=self.settings.seed,
            checkpoint=str(self.folder.absolute() / MODELS / "starter"),
            deadline=self.deadline,
            job="refit",
        )

    def _watch(self, study: Study) -> None:
        """After every round of results: keep the best on disk, and enough time for the end."""
        state = study.state
        if self.deadline is not None:
            study.deadline = self.deadline - self.reserve(study)
        self._keep_best(study)
        if self.view:
            self.view.update(state, self.deadline, self.stage)

    def _keep_best(self, study: Study) -> None:
        state = study.state
        if state.model is not None:
            point(self.folder, state.model["folder"])
        best = best_whole(study, self.parts)
        if best is None or (state.model and state.model["trial"] == best.number):
            return
        if any(chore.trial == best.number for chore in study.chores) or best.number == getattr(self, "_asked", None):
            return
        resume_from = study.held(best.number)
        if resume_from is not None:
            self._asked = best.number
            study.chores.append(self.request(study, best, "deliver", resume=resume_from))

    def request(self, study: Study, trial: Trial, job: str, **fields: Any) -> Request:
        """A request beside the search about one trial."""
        known = {"checkpoint": str(self.folder.absolute() / MODELS / f"{trial.number:06d}"), "deadline": self.deadline}
        return Request(
            trial=trial.number,
            spec=trial.spec,
            rung=0,
            fraction=1.0,
            seed=study.seed_of(trial.number),
            shrink=2**trial.shrinks,
            job=job,
            **{**known, **fields},
        )

    def refit_seconds(self, study: Study, trial: Trial) -> float:
        """How long a candidate will train on all rows, judged by what it took so far."""
        fractions = study.ladder.fractions
        done = max((rung for rung, result in trial.results.items() if result.score is not None), default=None)
        if done is None or fractions[done] == 0:
            return 0.0
        spent = sum(trial.results[rung].seconds for rung in trial.results if rung <= done and fractions[rung] > 0)
        whole = spent / (fractions[done] * self.parts)  # seconds of one training
        share = (self.parts - 1) / self.parts if self.parts > 1 else 1.0
        return whole / share

    def reserve(self, study: Study) -> float:
        """Seconds that are kept for the end: the best and the plain head trained on all rows, and the test rows."""
        assert self.limit is not None
        trials = study.state.trials
        known = [trial for trial in (study.state.best, trials[0] if trials else None) if trial is not None]
        training = max((self.refit_seconds(study, trial) for trial in known), default=0.0)
        test = self.about["rows"].get("test", 0)
        one_pass = training / max(1.0, Spec.from_dict(known[0].spec).recipe.epochs) / 3 if known else 0.0
        answers = one_pass * test / max(1, self.rows) * (2 + MEMBERS * self.parts / max(1, study.executor.workers))
        return min(LARGEST_RESERVE * self.limit, 1.25 * training + answers + 5.0)

    def _refuse_hopeless(self, study: Study) -> None:
        """Where nothing at all could be trained, the reason is the answer."""
        state = study.state
        failed = [result for trial in state.trials for result in trial.results.values() if result.outcome == "error"]
        if failed and state.best is None and state.model is None:
            raise HeadhuntError(
                f"No candidate could be trained. The first one failed with: {failed[0].extra['message']}"
            )


class _End:
    """The end of a search: models trained on all rows, the mean of the best, the test rows once."""

    def __init__(self, hunt: _Hunt, study: Study, executor: Executor, reason: str) -> None:
        self.hunt, self.study, self.executor, self.reason = hunt, study, executor, reason
        self.folder = hunt.folder
        self.state = study.state

    def go(self) -> None:
        """Does all of it, as far as the time goes; a model is there in any case."""
        study, hunt = self.study, self.hunt
        best = best_whole(study, hunt.parts)
        plain = self.state.trials[0] if self.state.trials else None
        members = self.members()
        self._tell("training the best candidate on all rows")
        refits = {}
        for trial in {t.number: t for t in (best, plain) if t is not None and t.best is not None}.values():
            folder = self.folder.absolute() / MODELS / f"{trial.number:06d}-all"
            if not (folder / "headhunt.json").exists():
                refits[trial.number] = hunt.request(study, trial, "refit", checkpoint=str(folder))
        answers_share = hunt.reserve(study) * 0.3 if hunt.deadline is not None else 0.0
        self._work(list(refits.values()), None if hunt.deadline is None else hunt.deadline - answers_share - 1.0)
        chosen = self._final_model(best)
        if chosen is not None:
            place(chosen, self.folder / MODEL)
        self._tell("answering the test rows, once")
        tests = self._answers(chosen, best, plain, members) if "test" in hunt.about["rows"] else {}
        result = self._result(chosen, best, plain, members, tests)
        _write_json(self.folder / RESULT, result)

    def members(self) -> list[Trial]:
        """The candidates whose mean is at least as good as the best alone, on rows none of them has seen."""
        top = self.study.ladder.top
        full = [trial for trial in self.state.leaderboard() if trial.best and trial.best[0] == top]
        full = [trial for trial in full if self.study.run.predictions(trial.number, top).exists()][:30]
        if len(full) < 2:
            return []
        outputs, rows = [], None
        for trial in full:
            with np.load(self.study.run.predictions(trial.number, top), allow_pickle=False) as found:
                outputs.append(found["outputs"])
                rows = found["rows"]
        task = open_task(self.folder / TASK)
        targets = np.concatenate([task.splits[n].targets for n in ("train", "validation") if n in task.splits])
        assert rows is not None
        chosen = greedy_mean(task.kind, self.hunt.settings.metric, outputs, targets[rows], MEMBERS)
        return [full[i] for i in chosen if self.study.held(full[i].number)]

    def _work(self, requests: list[Request], deadline: float | None) -> dict[int, Outcome]:
        """Gives requests to the workers and waits for them, no longer than until the deadline."""
        done: dict[int, Outcome] = {}
        for request in requests:
            fields = {**request.to_dict(), "deadline": deadline}
            self.executor.submit(Request(**fields))
        waiting = len(requests)
        while waiting and (deadline is None or clock.time() < deadline + 1.0):
            left = 1.0 if deadline is None else min(1.0, max(0.05, deadline + 1.0 - clock.time()))
            for request, outcome in self.executor.wait(left):
                waiting -= 1
                done[request.trial] = outcome
            if self.hunt.view:
                self.hunt.view.update(self.state, self.hunt.deadline, self.hunt.stage)
        if waiting:
            self.executor.stop()
        return done

    def _final_model(self, best: Trial | None) -> Path | None:
        if best is not None:
            whole = self.folder / MODELS / f"{best.number:06d}-all"
            if (whole / "headhunt.json").exists():
                return whole
        return best_model(self.folder, self.state)

    def _answers(
        self, chosen: Path | None, best: Trial | None, plain: Trial | None, members: list[Trial]
    ) -> dict[str, np.ndarray]:
        """What the models answer to the test rows; those there was no time for are left out."""
        hunt, study = self.hunt, self.study
        wanted: dict[str, Request] = {}

        def ask(name: str, trial: Trial, source: str) -> None:
            path = self.folder.absolute() / "test" / f"{name}.npz"
            wanted[name] = hunt.request(study, trial, "answer", resume=source, predictions=str(path), checkpoint="")

        anyone = best or plain
        if chosen is not None and anyone is not None:
            ask("model", anyone, str(chosen.absolute()))
        if plain is not None:
            folder = self.folder / MODELS / f"{plain.number:06d}-all"
            if (folder / "headhunt.json").exists():
                ask("plain", plain, str(folder.absolute()))
        for trial in members:
            held = study.held(trial.number)
            if held is not None:
                ask(f"{trial.number:06d}", trial, held)
        for request in wanted.values():
            Path(request.predictions).unlink(missing_ok=True)
        self._work(list(wanted.values()), None if hunt.deadline is None else hunt.deadline - 1.0)
        found = {}
        for name, request in wanted.items():
            if Path(request.predictions).exists():
                with np.load(request.predictions, allow_pickle=False) as answers:
                    found[name] = answers["outputs"]
        names = [f"{trial.number:06d}" for trial in members]
        if names and all(name in found for name in names):
            found["mean"] = np.mean([found[name] for name in names], axis=0)
        return {name: found[name] for name in ("model", "plain", "mean") if name in found}

    def _result(
        self,
        chosen: Path | None,
        best: Trial | None,
        plain: Trial | None,
        members: list[Trial],
        tests: Mapping[str, np.ndarray],
    ) -> dict[str, Any]:
        state, settings, about = self.state, self.hunt.settings, self.hunt.about
        result: dict[str, Any] = {
            "schema": 1,
            "reason": self.reason,
            "metric": settings.metric,
            "trials": len(state.trials),
            "results": len(state.settled),
            "seconds": round(state.elapsed, 1),
            "model": None if chosen is None else str(Path(MODEL)),
            "model_from": None if chosen is None else chosen.name,
            "best": _summary(best),
            "plain": _summary(plain),
            "mean_of": [trial.number for trial in members],
            "judged_on": f"{self.hunt.parts} parts, out of fold" if self.hunt.parts > 1 else "held-out rows",
            "rungs": rung_table(state, self.study.ladder.fractions),
            "versions": versions(),
        }
        if tests:
            test = open_task(self.folder / TASK, ("test",)).splits["test"]
            result["test"] = {
                name: evaluate(about["kind"], outputs, test.targets, about["labels"]).to_dict()["scores"]
                for name, outputs in tests.items()
            }
            result["test_rows"] = len(test)
        return result

    def _tell(self, stage: str) -> None:
        self.hunt.stage = stage
        if self.hunt.view:
            self.hunt.view.update(self.state, self.hunt.deadline, stage)


def best_whole(study: Study, parts: int) -> Trial | None:
    """The best candidate that has at least one whole training behind it."""
    fractions = study.ladder.fractions
    whole = [rung for rung, fraction in enumerate(fractions) if fraction * parts >= 1 - 1e-9]
    ranked = [
        ((rung, result.score, -trial.number), trial)
        for trial in study.state.trials
        for rung, result in trial.results.items()
        if rung in whole and result.score is not None
    ]
    return max(ranked, key=lambda item: item[0])[1] if ranked else None


def best_model(folder: Path, state: State) -> Path | None:
    """The best model on disk: the final one, or the best so far."""
    if state.ended and (folder / MODEL / "headhunt.json").exists():
        return folder / MODEL
    if state.model is not None and (folder / MODELS / state.model["folder"] / "headhunt.json").exists():
        return folder / MODELS / state.model["folder"]
    return folder / MODEL if (folder / MODEL / "headhunt.json").exists() else None


def rung_table(state: State, fractions: tuple[float, ...]) -> list[dict[str, Any]]:
    """What each rung cost and gave."""
    table = []
    for rung, fraction in enumerate(fractions):
        results = [trial.results[rung] for trial in state.trials if rung in trial.results]
        scores = [result.score for result in results if result.score is not None]
        table.append(
            {
                "rung": rung,
                "fraction": fraction,
                "results": len(results),
                "promoted": sum(trial.bracket < rung <= trial.reached for trial in state.trials),
                "failed": len(results) - len(scores),
                "seconds": round(sum(result.seconds for result in results), 1),
                "best": max(scores, default=None),
            }
        )
    return table


def parts_of(about: Mapping[str, Any]) -> int:
    """In how many parts candidates are judged; see `trial.plan`."""
    small = about["rows"]["train"] < 2000 and "validation" not in about["rows"]
    return 3 if small else 1


def point(folder: Path, name: str) -> None:
    """Lets `RUN/best` lead to the best model so far, at once, where the system has such links."""
    link, fresh = folder / "best", folder / f".best.{os.getpid()}"
    target = f"{MODELS}/{name}"
    try:
        if link.is_symlink() and str(link.readlink()) == target:
            return
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target, target_is_directory=True)
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)


def place(source: Path, target: Path) -> None:
    """Puts a model folder in place, whole or not at all."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, copy_function=_link_or_copy)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def interruptible(first: Callable[[], None] | None) -> Iterator[None]:
    """Ctrl-C calls `first` once; after that, or where there is none, it ends the program as usual."""
    if threading.current_thread() is not threading.main_thread() or first is None:
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        first()

    if before is signal.SIG_IGN:  # a job in the background, which Ctrl-C is not meant for
        yield
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def seconds(time: str | float | None) -> float | None:
    """A time as "90s", "10m", "1h30m" or a number of seconds; "none" for no limit.

    Raises:
        HeadhuntError: If it is none of these.
    """
    if time is None or time == "none":
        return None
    if isinstance(time, int | float):
        return float(time)
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", time.strip().lower())
    try:
        found = [float(part or 0) for part in match.groups()] if match and time.strip() else []
    except ValueError:
        found = []
    if not found or sum(found) <= 0 or not math.isfinite(sum(found)):
        raise HeadhuntError(f"The time must be as 90s, 10m or 1h30m; found {time!r}.")
    return found[0] * 3600 + found[1] * 60 + found[2]


def free_folder(name: str) -> Path:
    """A folder in `runs/` that is not there yet."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "search"
    folder = Path("runs") / safe
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{safe}-{number}"
        number += 1
    return folder


def layers_in(encoder: str, trust_remote_code: bool = False) -> int:
    """How many layers an encoder has, read off its configuration."""
    from headhunt.modeling.build import load_config

    return int(load_config(encoder, trust_remote_code).num_hidden_layers)


def versions() -> dict[str, str]:
    """What a result depends on."""
    from headhunt.trial import versions as of_a_trial

    return of_a_trial()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _summary(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    rung, score = trial.best or (None, None)
    return {"trial": trial.number, "rung": rung, "score": score, "spec": trial.spec}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
