"""A search from data to model: what `headhunt search`, `resume` and `status` do.

Hides the order of things around the study: the run directory that needs nothing but itself, workers, the best model so
far on disk, and the time kept for the verdict.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headhunt.data import Task
from headhunt.engine import ablation, final_test
from headhunt.engine.final_test import write_json
from headhunt.errors import HeadhuntError
from headhunt.evaluation import DEFAULT_METRIC, check_metric
from headhunt.report import model_card as card
from headhunt.run.directory import TASK, Run, folds_of
from headhunt.run.ledger import Request, RunError, State, Trial
from headhunt.run.task import read_about, save_task
from headhunt.spec import DEFAULT_ENCODER, NAMED, Recipe, Space, Spec
from headhunt.study.candidates import Candidates
from headhunt.study.executors import Executor, Inline
from headhunt.study.study import Limits, Study

if TYPE_CHECKING:
    from headhunt.predictor import Predictor

SETTINGS = "search.json"
STARTER = -1  # the trial number of the first model, which is no candidate
STARTER_ROWS = 40_000  # texts it sees at most, however many there are
LARGEST_RESERVE = 0.35  # share of the time that is kept for the end at most
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
    max_latency: float | None = None
    max_size: float | None = None
    calibrate: bool = False
    max_length: int | None = None

    def write(self, folder: Path) -> None:
        """Keeps the settings."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SETTINGS, asdict(self))

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

    def command(self, about: Mapping[str, Any], space: str) -> list[str]:
        """The command that asks for the same search, option by option; the data is where the user has it.

        Args:
            about: What the data says of itself.
            space: The name of the space, or of a file that holds it.
        """
        columns = about["columns"]
        given: dict[str, Any] = {
            "--encoder": self.encoder,
            "--max-length": self.max_length,
            "--time": "none" if self.time is None else f"{self.time:g}s",
            "--trials": self.trials,
            "--target": self.target,
            "--text": columns["text"],
            "--text-b": columns["text_b"],
            "--label": columns["label"],
            "--problem-type": about["problem_type"],
            "--space": space,
            "--strategy": self.strategy,
            "--metric": self.metric,
            "--workers": self.workers,
            "--seed": self.seed,
            "--device": self.device,
            "--precision": self.precision,
            "--max-latency": None if self.max_latency is None else f"{self.max_latency:g}ms",
            "--max-size": None if self.max_size is None else f"{self.max_size:g}MB",
        }
        words = [f"{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
        flags = {"--trust-remote-code": self.trust_remote_code, "--calibrate": self.calibrate}
        return ["headhunt search DATA", *words, *(name for name, on in flags.items() if on)]


class View(Protocol):
    """Who is shown how a search goes."""

    def begin(self, folder: Path, name: str, state: State, deadline: float | None) -> None:
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

    def _repr_html_(self) -> str:
        from headhunt.report import notebook

        return notebook.search_card(self)

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
        path = self.run_dir / final_test.RESULT
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @property
    def model_dir(self) -> Path | None:
        """The best model on disk."""
        return final_test.best_model(self.run_dir, self.state)

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
        from headhunt.predictor import Predictor

        folder = self.model_dir
        if folder is None:
            raise RunError(no_model(self.run_dir))
        return Predictor.load(folder)


def no_model(folder: Path) -> str:
    """What to do where a search has not come to its first model."""
    return f"There is no model in {folder} yet; go on searching: headhunt resume {folder} --time 10m"


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
    max_latency: str | float | None = None,
    max_size: str | float | None = None,
    calibrate: bool = False,
    max_length: int | None = None,
    view: View | Literal[False] | None = None,
    **options: Any,
) -> Search:
    """Searches for the best head and recipe, and ends with a model.

    Args:
        data: A `Task`, or anything `Task.load` takes.
        out: The run directory; a new one in `runs/` unless given.
        encoder: A Hugging Face name or a folder.
        time: Seconds, or as "90s", "10m", "1h30m", from now until all is done; None for no limit.
        trials: Candidates at most.
        target: A score that ends the search, at most 1, as 0.9; for mse, which counts as its negative, below 0.
        space: "default", "paper", a file, or a `Space`.
        strategy: How candidates are chosen.
        metric: What candidates are compared by; accuracy unless the task asks for another.
        workers: Processes that train side by side; 0 trains in this one; one per core or GPU unless given.
        ray: The address of a Ray cluster.
        seed: For everything that is left to chance.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        max_latency: Milliseconds one text may take in the median, as 20 or "20ms", on one thread of a CPU or a GPU.
        max_size: Megabytes of weights, as 60 or "60MB".
        calibrate: Whether the delivered model's probabilities are set right by a temperature.
        max_length: Tokens that every candidate reads of a text, the rest is cut; 128 unless given, or the space says.
        view: Who is shown how it goes; a card in a notebook unless given, nobody where False.
        options: Passed on to `Task.load`: text, text_b, label, problem_type, test, limit …

    Returns:
        The search, over.
    """
    began = clock.time()
    limit = seconds(time)
    Limits(limit, trials, target)  # refuses what makes no sense before any work is done
    task = data if isinstance(data, Task) else Task.load(data, seed=seed, **options)
    metric = metric or DEFAULT_METRIC[task.problem_type]
    check_metric(task.problem_type, metric)
    check_target(target, metric)
    encoder = encoder or DEFAULT_ENCODER
    layers = layers_in(encoder, trust_remote_code)
    if max_length is not None:
        from headhunt.modeling.build import check_length

        check_length(max_length, encoder, trust_remote_code)
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
        max_latency=amount(max_latency, {"ms": 1.0, "s": 1000.0}, "latency", "20ms"),
        max_size=amount(max_size, {"mb": 1.0, "gb": 1000.0, "kb": 0.001}, "size", "60MB"),
        calibrate=calibrate,
        max_length=max_length,
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
    view: View | Literal[False] | None = None,
) -> Search:
    """Takes a search up where it was left.

    Args:
        folder: The run directory.
        time: How much longer, "none" for no limit; what was left of the first limit unless given.
        trials: Candidates at most, those before included; as first asked unless given.
        workers: As for `search`; as first asked unless given.
        ray: As for `search`.
        view: As for `search`.
    """
    began = clock.time()
    folder = Path(folder)
    settings = Settings.read(folder)
    state = Run(folder).state if (folder / "ledger.jsonl").exists() else State()  # it may have died before
    limit, whole = seconds(time), seconds(time)
    if time is None and settings.time is not None:
        done = state.ended == "time" and (folder / final_test.RESULT).exists()
        limit, whole = 0.0 if done else settings.time - state.elapsed, settings.time
        if limit <= 0 and trials is None:
            raise RunError(
                f"The search had {settings.time:.0f} s and has used them. Give --time for how much longer it may go on."
            )
        limit = limit if limit > 0 else None
    changes = {"trials": trials, "workers": workers, "ray": ray}
    changed = {**asdict(settings), **{name: value for name, value in changes.items() if value is not None}}
    return _Hunt(folder, Settings(**changed), began, limit, view, whole).go()


def verdict(
    folder: str | Path,
    *,
    seeds: int = 3,
    time: str | float | None = None,
    workers: int | None = None,
    view: View | Literal[False] | None = None,
) -> Search:
    """Reaches the verdict of a search again, with the winner and the plain head trained with several seeds.

    Args:
        folder: The run directory.
        seeds: How often each is trained on all rows; what was trained before counts.
        time: How long it may take; no limit unless given.
        workers: As for `search`; as first asked unless given.
        view: As for `search`.
    """
    began, limit = clock.time(), seconds(time)
    settings = Settings.read(Path(folder))
    settings = settings if workers is None else replace(settings, workers=workers)
    reason = Search(folder).state.ended or "resumed"
    hunt = _Hunt(Path(folder), settings, began, limit, view)
    with hunt.open() as study:
        study.run.append({"kind": "end", "reason": reason})  # first: what follows is no searching
        hunt.describe(final_test.reach(hunt.case(study), reason, seeds))
    return Search(folder)


def ablate(
    folder: str | Path,
    *,
    seeds: int = 1,
    time: str | float | None = None,
    workers: int | None = None,
    view: View | Literal[False] | None = None,
) -> dict[str, Any]:
    """Finds out why the winner won: each of its parts taken out, each item of its recipe put back.

    Args:
        folder: The run directory.
        seeds: How often each variant is judged.
        time: How long it may take; no limit unless given.
        workers: As for `search`; as first asked unless given.
        view: As for `search`.

    Returns:
        What `ablation.json` holds.
    """
    began, limit = clock.time(), seconds(time)
    search = Search(folder)
    settings = search.settings if workers is None else replace(search.settings, workers=workers)
    told = search.result.get("best")
    best = told["trial"] if told else search.best.number if search.best else None
    if best is None:
        raise RunError(f"{folder} has no winner yet.")
    reason = search.state.ended or "resumed"
    hunt = _Hunt(Path(folder), settings, began, limit, view)
    with hunt.open() as study:
        study.run.append({"kind": "end", "reason": reason})  # first: what follows is no searching
        return ablation.ablate(hunt.case(study), best, seeds)


class _Hunt:
    """One go at a search: from opening the run to the model."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        began: float,
        limit: float | None,
        view: View | Literal[False] | None,
        whole: float | None = None,
    ) -> None:
        self.folder, self.settings = folder, settings
        self.view: View | None = (_card(settings.metric) if view is None else view) or None
        self.about = read_about(folder / TASK)
        self.deadline = None if limit is None else began + limit
        self.whole = whole or limit or 0.0
        """The time the search was given in all, of which this may be the rest; what is kept for the end is a share."""
        self.rows = self.about["rows"]["train"]
        self._stop = threading.Event()
        self.study: Study | None = None
        self.stage = "starting"
        self.folds = folds_of(self.about["rows"])
        self._seen = 0  # settled results that were looked at
        self._best: tuple[tuple[int, float, int], Trial] | None = None
        self._asked: int | None = None  # the trial whose model was last asked for
        self._shown: list[str] = []  # models that `best` has led to

    def go(self) -> Search:
        """Searches, reaches the verdict, and gives back what was found."""
        with self.open() as study:
            if study.state.model is None:
                study.chores.append(self._starter(study.candidates.plain().recipe.max_length))
            (self.folder / final_test.RESULT).unlink(missing_ok=True)  # of a search that was over before
            self.stage = "searching"
            with interruptible(self._interrupt):
                reason = study.go()
            self._refuse_hopeless(study)
            self._stop.clear()
            self.describe(final_test.reach(self.case(study), reason))
        return Search(self.folder)

    @contextmanager
    def open(self) -> Iterator[Study]:
        """The run, opened for writing, with workers and a study that has caught up with its ledger."""
        # Workers of a cluster are elsewhere: what they are told to write must not depend on where they stand.
        with Run(self.folder.absolute(), write=True) as run:
            if self.view:
                self.view.begin(self.folder, self.about["name"], run.state, self.deadline)
            executor = self._executor()
            try:
                self.study = self._catch_up(run, executor)
                yield self.study
            finally:
                executor.close()
                if self.view:
                    self.view.end()

    def _executor(self) -> Executor:
        settings = self.settings
        bench: dict[str, Any] = {
            "folder": str(self.folder.absolute()),
            "metric": settings.metric,
            "seed": settings.seed,
            "device": settings.device,
            "precision": settings.precision,
            "trust_remote_code": settings.trust_remote_code,
            "max_latency": settings.max_latency,
            "max_size": settings.max_size,
        }
        if settings.workers == 0:
            from headhunt.engine.trial_runner import TrialRunner

            here = TrialRunner(**bench)
            return Inline(lambda request: here.run(request, self._stop.is_set))
        from headhunt.study import ray_executor as ray

        count = settings.workers or ray.here()
        bench |= {"threads": 1} if settings.device in (None, "cpu") and not _has_gpu() else {}
        bench |= {} if settings.ray else {"memory": int(0.8 * ray.memory() / count)}
        return ray.RayWorkers(
            "headhunt.engine.trial_runner:TrialRunner", bench, workers=settings.workers, address=settings.ray
        )

    def _catch_up(self, run: Run, executor: Executor) -> Study:
        settings = self.settings
        pair = self.about["columns"]["text_b"] is not None
        space = Space.from_dict(settings.space)
        left = None if self.deadline is None else max(0.1, self.deadline - clock.time())
        layers = layers_in(settings.encoder, settings.trust_remote_code)
        return Study(
            run,
            Candidates(
                space,
                encoder=settings.encoder,
                pair=pair,
                rows=self.rows,
                layers=layers,
                max_length=settings.max_length,
            ),
            executor,
            strategy=settings.strategy,
            limits=Limits(left, settings.trials, settings.target),
            seed=settings.seed,
            task=self.about["fingerprint"],
            disk=DISK,
            versions=versions(),
            watch=self._watch,
        )

    def _interrupt(self) -> None:
        """First Ctrl-C: no more candidates; what was found so far is brought to its end."""
        self._stop.set()
        if self.study is not None:
            self.study.stop("interrupted")

    def _starter(self, max_length: int) -> Request:
        """The first model: the mean of the token vectors and one layer, on the encoder as it came. It takes seconds."""
        epochs = min(20.0, STARTER_ROWS / self.rows)
        recipe = Recipe(epochs=epochs, learning_rate=1e-2, freeze="all", max_length=max_length)
        head = {"pooling": "mean"} | ({"siamese": "concat"} if self.about["columns"]["text_b"] is not None else {})
        spec = Spec.from_dict({"encoder": self.settings.encoder, "head": head, "recipe": asdict(recipe)})
        return Request(
            trial=STARTER,
            spec=spec.to_dict(),
            rung=0,
            fraction=1.0,
            seed=self.settings.seed,
            checkpoint=str(self.folder.absolute() / final_test.MODELS / "starter"),
            deadline=self.deadline,
            job="refit",
        )

    def _watch(self, study: Study) -> None:
        """After every round of results: keep the best on disk, and enough time for the end."""
        state = study.state
        for number, rung in state.settled[self._seen :]:
            ranked = final_test.rank_whole(study, self.folds, state.trials[number], rung)
            if ranked is not None and (self._best is None or ranked > self._best[0]):
                self._best = ranked, state.trials[number]
        self._seen = len(state.settled)
        best = self._best[1] if self._best else None
        if self.deadline is not None:
            study.deadline = self.deadline - min(LARGEST_RESERVE * self.whole, self.case(study).reserve(best))
        self._keep_best(study, best)
        if self.view:
            self.view.update(state, self.deadline, self.stage)

    def _keep_best(self, study: Study, best: Trial | None) -> None:
        state = study.state
        if state.model is not None and state.model["folder"] not in self._shown[-1:]:
            point(self.folder, state.model["folder"])
            self._shown.append(state.model["folder"])
            # Somebody may still be loading the one before; and who was best once may be so again.
            for old in set(self._shown[:-2]) - set(self._shown[-2:]):
                shutil.rmtree(self.folder / final_test.MODELS / old, ignore_errors=True)
            del self._shown[:-2]
        if best is None or best.number == self._asked or (state.model and state.model["trial"] == best.number):
            return
        resume_from = study.held(best.number)
        if resume_from is not None:
            self._asked = best.number
            place = str(self.folder.absolute() / final_test.MODELS / f"{best.number:06d}")
            study.chores.append(self.case(study).request(best, "deliver", resume=resume_from, checkpoint=place))

    def case(self, study: Study) -> final_test.FinalEvaluation:
        """What the verdict is about."""

        def tell(stage: str) -> None:
            self.stage = stage or self.stage
            if self.view:
                self.view.update(study.state, self.deadline, self.stage)

        return final_test.FinalEvaluation(
            folder=self.folder,
            about=self.about,
            metric=self.settings.metric,
            folds=self.folds,
            study=study,
            executor=study.executor,
            deadline=self.deadline,
            tell=tell,
            calibrate=self.settings.calibrate,
        )

    def describe(self, result: Mapping[str, Any]) -> None:
        """Writes the card of what is delivered, and of the winner where that is another model the user is told of."""
        name = self.settings.space.get("name")
        shown = self.settings if card.hub_name(self.settings.encoder) else replace(self.settings, encoder="ENCODER")
        command = " ".join(shown.command(self.about, str(name) if name in NAMED else "space.json"))
        cards = {result.get("model"): result}
        if result["verdict"]["delivered"] == "plain" and result.get("winner_model"):
            cards[result["winner_model"]] = {**result, "verdict": {**result["verdict"], "delivered": "winner"}}
        for model, told in cards.items():
            if model is not None:
                card.write(self.folder / model, about=self.about, result=told, command=command)

    def _refuse_hopeless(self, study: Study) -> None:
        """Where nothing at all could be trained, the reason is the answer."""
        state = study.state
        failed = [result for trial in state.trials for result in trial.results.values() if result.outcome == "error"]
        if failed and state.best is None and state.model is None:
            raise HeadhuntError(
                f"No candidate could be trained. The first one failed with: {failed[0].extra['message']}"
            )


def point(folder: Path, name: str) -> None:
    """Lets `RUN/best` lead to the best model so far, at once, where the system has such links."""
    link, fresh = folder / "best", folder / f".best.{os.getpid()}"
    target = f"{final_test.MODELS}/{name}"
    try:
        if link.is_symlink() and str(link.readlink()) == target:
            return
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target, target_is_directory=True)
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)


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


def check_target(target: float | None, metric: str) -> None:
    """Refuses a target that no score can reach.

    Raises:
        HeadhuntError: If it is one.
    """
    most, example = (0, "-0.1, the negative of the error") if metric == "mse" else (1, "0.9")
    if target is not None and not target <= most:
        raise HeadhuntError(f"The target must be at most {most}, as {example}; found {target:g}.")


def amount(given: str | float | None, units: Mapping[str, float], what: str, example: str) -> float | None:
    """A number with its unit, in the first of the units.

    Raises:
        HeadhuntError: If it is none.
    """
    if given is None or isinstance(given, int | float):
        return given
    match = re.fullmatch(r"([\d.]+)\s*([a-z]*)", given.strip().lower())
    factor = units.get(match[2] or next(iter(units))) if match else None
    try:
        value = float(match[1]) * factor if match and factor else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise HeadhuntError(f"The largest {what} must be as {example}; found {given!r}.")
    return value


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
    from headhunt.engine.trial_runner import versions as of_a_trial

    return of_a_trial()


def _card(metric: str) -> View | None:
    """In a notebook, a card that follows the search."""
    from headhunt.report import notebook

    return notebook.live_card(metric)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
