"""Search for the best head and recipe: the functions behind `headhunt search`, `resume`, `verdict` and `ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headhunt.data import Task, load_unlabelled
from headhunt.engine.ablation import run_ablation
from headhunt.engine.driver import Resources, SearchDriver, View, config_of_encoder
from headhunt.engine.earlier_runs import learn
from headhunt.engine.options import (
    MEGABYTES,
    MILLISECONDS,
    check_choices,
    check_decisions,
    check_deliver,
    check_device,
    check_pretraining,
    check_target,
    choose_metric,
    load_task,
    new_run_directory,
    parse_duration,
    parse_quantity,
)
from headhunt.engine.preloading import has_gpu, preload_workers
from headhunt.engine.workers import rows_within
from headhunt.errors import HeadhuntError
from headhunt.report.notebook import search_summary
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import read_state
from headhunt.run.results import AblationResult, SearchResult
from headhunt.run.schema import RunError
from headhunt.run.settings import SearchSettings
from headhunt.run.state import State, Trial
from headhunt.run.task import TaskInfo, save_task, save_unlabelled
from headhunt.spec import DEFAULT_ENCODER, NAMED, Choice, Space, Spec
from headhunt.study.budget import Limits, TimeBudget

if TYPE_CHECKING:
    from headhunt.predictor import Predictor

SAMPLE_TEXTS = 200  # from which the language is guessed


@dataclass(frozen=True)
class LeaderboardRow:
    """A trial with a score."""

    trial: int
    score: float
    rung: int
    origin: str
    seconds: float
    spec: Spec


class Search:
    """A handle on a run directory, while its search runs and after it has ended.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: str | Path) -> None:
        self.directory = RunDirectory(Path(folder))
        self.settings: SearchSettings = self.directory.read_settings()
        self.task: TaskInfo = self.directory.read_task_info()

    def __repr__(self) -> str:
        state = self.state
        best = state.best
        score = f"best {best.best[1]:.4f}" if best and best.best else "no score yet"
        return f"Search({str(self.run_dir)!r}: {len(state.trials)} trials, {score})"

    def _repr_html_(self) -> str:
        return search_summary(self.run_dir)

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def state(self) -> State:
        """The current state of the search."""
        return read_state(self.directory)

    @property
    def best(self) -> Trial | None:
        """The best trial so far."""
        return self.state.best

    @property
    def result(self) -> SearchResult | None:
        """The result of the search; None while it runs."""
        return self.directory.read_result()

    @property
    def model_dir(self) -> Path | None:
        """The best model on disk."""
        state = self.state
        return self.directory.best_model(state.model.folder if state.model else None, state.ended is not None)

    def leaderboard(self) -> list[LeaderboardRow]:
        """Return trials with a score, best first."""
        return [
            LeaderboardRow(
                trial.number, trial.best[1], trial.best[0], trial.origin, round(trial.seconds, 2), trial.spec
            )
            for trial in self.state.leaderboard()
            if trial.best is not None
        ]

    def load(self, *, trust_remote_code: bool = False) -> Predictor:
        """Load the best model.

        Args:
            trust_remote_code: Whether code that came with the encoder may run.

        Raises:
            RunError: If there is none yet.
        """
        from headhunt.predictor import Predictor  # torch takes a while to load

        folder = self.model_dir
        if folder is None:
            raise RunError(f"{self.run_dir} has no model yet. Resume the search to get one.")
        return Predictor.load(folder, trust_remote_code=trust_remote_code)


def search(
    data: Any,
    *,
    out: str | Path | None = None,
    encoder: str | Sequence[str] | None = None,
    time: str | float | None = "10m",
    trials: int | None = None,
    target: float | None = None,
    space: str | Path | Space = "default",
    strategy: str = "prior",
    known_recipes: bool = True,
    learn_from: Sequence[str | Path] = (),
    rungs: bool = True,
    metric: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    max_latency: str | float | None = None,
    max_size: str | float | None = None,
    max_memory: str | float | None = None,
    calibrate: bool = False,
    reject: float | None = None,
    reject_label: str | None = None,
    max_length: int | None = None,
    deliver: str = "best",
    unlabelled: Any = None,
    pretrain: bool | None = None,
    started: float | None = None,
    view: View | Literal[False] | None = None,
    **options: Any,
) -> Search:
    """Search for the best head and recipe, and end with a model.

    Args:
        data: A `Task`, or anything `Task.load` takes. `load_tasks` and `join_tasks` return several tasks as one.
        out: The run directory; by default a new one in `runs/`.
        encoder: A Hugging Face model name or a directory; several to choose from; or "auto". The plain head has the
            first one.
        time: Total time, as seconds or "90s", "10m", "1h30m"; None for no limit.
        trials: Maximum number of trials.
        target: A score that ends the search, at most 1, such as 0.9; for mse, which counts as its negative, below 0.
        space: "default", "paper", "encoder", a file, or a `Space`.
        strategy: Search strategy.
        known_recipes: Whether to begin with recipes that performed well on other tasks.
        learn_from: Directories of earlier searches on similar data. Their best candidates are tried early.
        rungs: Whether to compare candidates on less than full training first, and to promote the best.
        metric: Metric that trials are compared by; by default that of the problem type.
        workers: Number of worker processes; 0 trains in this one; by default one per core or GPU.
        ray: Address of a Ray cluster; "local" starts Ray on this machine, which is the default with GPUs and on systems
            other than Linux.
        seed: Random seed.
        device: "cuda", "mps" or "cpu"; by default the fastest available.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        max_latency: Maximum median latency for one text, as 20 or "20ms", on one CPU thread or a GPU.
        max_size: Maximum size of the weights, as 60 or "60MB".
        max_memory: Maximum memory of a worker process, as 4000 or "4GB"; candidates that need more are left out.
        calibrate: Whether to calibrate probabilities with temperature scaling, of classes or of several labels.
        reject: Share of the texts that the delivered model answers, such as 0.9; it rejects those it is least sure of.
            Probabilities are then calibrated too. By default all are answered.
        reject_label: Class of texts that fit no other class: they are rejected, and `reject` is 0.9 by default.
        max_length: Maximum number of tokens per text; by default 128, or what the space says.
        deliver: "best" delivers the winner, or the plain head if that is better on validation rows; "ensemble" also the
            mean of several models if that is better, within the limits; "plain-unless-proven" the plain head, unless
            the test rows prove that the winner is better.
        unlabelled: Texts without labels, as for `load_texts`: a file or a list. Texts of test rows are left out.
        pretrain: Whether to try the first encoder also after further pretraining on masked tokens of the training texts
            and the unlabelled ones; by default if there are unlabelled ones.
        started: Seconds since 1970 from which the time counts; by default the call.
        view: Shows progress; by default a live view in a notebook. False shows nothing.
        options: Passed to `Task.load`: text, text_b, label, problem_type, test, limit …

    Returns:
        A handle on the finished search.
    """
    seconds = parse_duration(time)
    Limits(seconds, trials, target)  # refuses invalid limits before any work is done
    budget = TimeBudget(seconds, started=started)
    check_choices(strategy, precision, workers)
    check_device(device, ray)
    preload_workers(workers, device, ray)
    task = load_task(data, seed, options, max_rows=rows_within(seconds, options.get("limit"), device, ray))
    metric = choose_metric(task, metric)
    check_target(target, metric)
    check_deliver(deliver, task)
    check_decisions(task, calibrate, reject, reject_label)
    size = parse_quantity(max_size, MEGABYTES, "max_size", "60MB")
    encoders = _resolve_encoders(encoder, task, size, device, trust_remote_code)
    chosen, baseline = _resolve_space(space, encoders, task, max_length, trust_remote_code)
    pretrain = unlabelled is not None if pretrain is None else pretrain
    check_pretraining(task, chosen, pretrain, unlabelled is not None)
    texts_alone = load_unlabelled(task, unlabelled, seed=seed) if pretrain or unlabelled is not None else None
    config_of_encoder(baseline, trust_remote_code)  # refuses an encoder that is not there before any work is done
    if max_length is not None:
        from headhunt.modeling.pretrained import check_length

        check_length(max_length, baseline, trust_remote_code)
    directory = RunDirectory(Path(out) if out is not None else new_run_directory(task.name))
    if directory.exists():
        raise RunError(f"out= must be a new directory; {directory.path} holds a search. Resume it, or use another.")
    settings = SearchSettings(
        encoder=baseline,
        space=chosen.to_dict(),
        strategy=strategy,
        known_recipes=known_recipes,
        learned=tuple(spec.to_dict() for spec in learn(learn_from, task, known_recipes)),
        rungs=rungs,
        metric=metric,
        time=seconds,
        trials=trials,
        target=target,
        seed=seed,
        workers=workers,
        device=device,
        precision=precision,
        max_latency=parse_quantity(max_latency, MILLISECONDS, "max_latency", "20ms"),
        max_size=size,
        max_memory=parse_quantity(max_memory, MEGABYTES, "max_memory", "4GB"),
        calibrate=calibrate,
        reject=reject,
        reject_label=reject_label,
        max_length=max_length,
        encoders=encoders if len(encoders) > 1 else (),
        deliver=deliver,
        pretrain=pretrain,
        unlabelled=unlabelled is not None,
    )
    with directory.claim():
        save_task(task, directory.task)
        if texts_alone is not None:
            save_unlabelled(texts_alone, directory.task)
        directory.write_settings(settings)
    SearchDriver(directory.path, settings, Resources(ray, trust_remote_code), budget, view).run()
    return Search(directory.path)


def resume(
    folder: str | Path,
    *,
    time: str | float | None = None,
    trials: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    view: View | Literal[False] | None = None,
) -> Search:
    """Continue a search.

    Args:
        folder: The run directory.
        time: How much longer, "none" for no limit; by default what is left of the first limit.
        trials: Maximum number of trials, earlier ones included; by default as before.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        view: As for `search`.
    """
    directory = RunDirectory(Path(folder))
    settings = directory.read_settings()
    state = read_state(directory) if directory.exists() else State()  # killed before the ledger existed
    seconds = total = parse_duration(time)
    if time is None and settings.time is not None:
        done = state.ended == "time" and directory.result.exists()
        seconds, total = 0.0 if done else settings.time - state.elapsed, settings.time
        if seconds <= 0:
            raise RunError(f"The search has used its {settings.time:.0f} s. Give time= for how much longer it may run.")
    if trials is not None:
        settings = replace(settings, trials=trials)
    if workers is not None:
        settings = replace(settings, workers=workers)
    budget = TimeBudget(seconds, total=total)
    check_device(settings.device, ray)
    preload_workers(settings.workers, settings.device, ray)
    SearchDriver(directory.path, settings, Resources(ray, trust_remote_code), budget, view).run()
    return Search(folder)


def verdict(
    folder: str | Path,
    *,
    seeds: int = 3,
    time: str | float | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    view: View | Literal[False] | None = None,
) -> Search:
    """Run the final evaluation of a search again, training the winner and the plain head with several seeds.

    Args:
        folder: The run directory.
        seeds: How often each is trained on all rows; earlier training runs count.
        time: Maximum time; no limit by default.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        view: As for `search`.
    """
    _check_seeds(seeds)
    _driver(folder, time, workers, Resources(ray, trust_remote_code), view).evaluate_again(seeds)
    return Search(folder)


def ablate(
    folder: str | Path,
    *,
    seeds: int = 1,
    time: str | float | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    view: View | Literal[False] | None = None,
) -> AblationResult:
    """Measure why the winner won: evaluate it without each of its parts, and with each recipe item at its default.

    Args:
        folder: The run directory.
        seeds: How often each variant is evaluated.
        time: Maximum time; no limit by default.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        view: As for `search`.
    """
    _check_seeds(seeds)
    handle = Search(folder)
    result, best = handle.result, handle.best
    winner = result.winner.trial if result and result.winner else best.number if best else None
    if winner is None:
        raise RunError(f"{folder} has no winner yet.")
    driver = _driver(folder, time, workers, Resources(ray, trust_remote_code), view)
    with driver.open() as study:
        driver.mark_ended(study)
        return run_ablation(driver.final_evaluation(study), winner, seeds)


def _check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise HeadhuntError(f"seeds= must be at least 1; found {seeds}.")


def _resolve_encoders(
    encoder: str | Sequence[str] | None, task: Task, max_size: float | None, device: str | None, trust_remote_code: bool
) -> tuple[str, ...]:
    """Return the encoders to choose from; none if the user named none."""
    if encoder is None:
        return ()
    from headhunt.engine.encoders import resolve_encoders

    texts = task.splits["train"].texts(0, SAMPLE_TEXTS)
    gpu = encoder == "auto" and device != "cpu" and has_gpu()
    return resolve_encoders(encoder, texts=texts, max_size=max_size, gpu=gpu, trust_remote_code=trust_remote_code)


def _resolve_space(
    space: str | Path | Space,
    encoders: Sequence[str],
    task: Task,
    max_length: int | None,
    trust_remote_code: bool,
) -> tuple[Space, str]:
    """Return the space, and the encoder of the plain head: the one the space names, or the first that was given.

    The default space offers to read texts in windows if many of them would be cut.
    """
    first = encoders[0] if encoders else None
    if str(space) in NAMED and not isinstance(space, Space):
        from headhunt.engine.encoders import cuts_many
        from headhunt.modeling.pretrained import freezable_layers, load_config

        configs = [load_config(encoder, trust_remote_code) for encoder in encoders or (DEFAULT_ENCODER,)]
        # Any encoder may be chosen: offer numbers of frozen layers that all of them have.
        layers, encoder = min(map(freezable_layers, configs)), first or DEFAULT_ENCODER
        windows = cuts_many(task, encoder, max_length, trust_remote_code)
        return Space.load(str(space), layers, windows=windows), encoder
    chosen = space if isinstance(space, Space) else Space.load(str(space))
    named = chosen.tree.get("encoder")
    if named is None:
        return chosen, first or DEFAULT_ENCODER
    options = list(named.options) if isinstance(named, Choice) else [named]
    if first is not None and (len(encoders) > 1 or first not in options):
        found = ", ".join(encoders)
        raise HeadhuntError(f"encoder= must be left out, since the space names {', '.join(options)}; found {found}.")
    return chosen, first or str(options[0])


def _driver(
    folder: str | Path,
    time: str | float | None,
    workers: int | None,
    resources: Resources,
    view: View | Literal[False] | None,
) -> SearchDriver:
    settings = RunDirectory(Path(folder)).read_settings()
    if workers is not None:
        settings = replace(settings, workers=workers)
    preload_workers(settings.workers, settings.device, resources.ray)
    return SearchDriver(Path(folder), settings, resources, TimeBudget(parse_duration(time)), view)
