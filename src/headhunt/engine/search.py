"""Search for the best head and recipe: the functions behind `headhunt search`, `resume`, `verdict` and `ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from headhunt.data import Task, load_unlabelled
from headhunt.engine.ablation import run_ablation
from headhunt.engine.earlier_runs import learn
from headhunt.engine.options import (
    check_decisions,
    check_deliver,
    check_device,
    check_pretraining,
    check_target,
    choose_metric,
    divide,
    documented,
    load_task,
    new_run_directory,
)
from headhunt.engine.preloading import has_gpu, preload_workers
from headhunt.engine.session import Session, config_of_encoder
from headhunt.engine.workers import rows_within
from headhunt.errors import HeadhuntError
from headhunt.report.callbacks import Callback, create_callbacks
from headhunt.report.notebook import search_summary
from headhunt.run.directory import RunDirectory
from headhunt.run.ledger import clean, read_state
from headhunt.run.plan import Plan
from headhunt.run.results import AblationResult, SearchResult
from headhunt.run.schema import RunError
from headhunt.run.settings import Resources, SearchOptions, SearchSettings, check_number, parse_duration
from headhunt.run.state import State, Trial
from headhunt.run.task import TaskInfo, save_task, save_unlabelled
from headhunt.spec import DEFAULT_ENCODER, NAMED, Choice, Space, Spec
from headhunt.study.budget import TimeBudget

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


@documented
def search(
    data: Any,
    *,
    out: str | Path | None = None,
    started: float | None = None,
    callbacks: Sequence[Callback | str] | None = None,
    **options: Any,
) -> Search:
    """Search for the best head and recipe, and end with a model.

    Args:
        data: A `Task`, or anything `Task.load` takes. `load_tasks` and `join_tasks` return several tasks as one.
        out: The run directory; by default a new one in `runs/`.
        started: Seconds since 1970 from which the time counts; by default the call.
        callbacks: Follow the search: "mlflow", "wandb", "tensorboard", or a `Callback`. By default a live view in a
            notebook; an empty list shows nothing.
        options: Options of a search, and those of `Task.load`: text, text_b, label, problem_type, test, limit …

    Returns:
        A handle on the finished search.
    """
    session = _prepare(data, out, options, started, callbacks)
    session.run()
    clean(session.directory)
    return Search(session.directory.path)


def plan(data: Any, **options: Any) -> Plan:
    """Check the data and options of a search, measure the speed of the encoder, and return what fits into the time.

    Args:
        data: As for `search`.
        options: As for `search`.
    """
    with TemporaryDirectory(prefix="headhunt-") as folder:
        session = _prepare(data, Path(folder) / "run", options, None, ())
        with session.open():
            return session.view.plan


def _prepare(
    data: Any,
    out: str | Path | None,
    given: dict[str, Any],
    started: float | None,
    callbacks: Sequence[Callback | str] | None,
) -> Session:
    """Check the options of a search, load its data, and create its run directory."""
    own, cluster, columns = divide(given)
    options, resources = SearchOptions(**own), Resources(**cluster)
    trust = resources.trust_remote_code
    budget = TimeBudget(options.time, started=started)
    check_device(options.device, resources.ray)
    create_callbacks(callbacks or ())  # refuses those that cannot be created before any work is done
    preload_workers(options.workers, options.device, resources.ray)
    rows = rows_within(options.time, columns.get("limit"), options.device, resources.ray)
    task = load_task(data, options.seed, columns, max_rows=rows)
    metric = choose_metric(task, options.metric)
    check_target(options.target, metric)
    check_deliver(options.deliver, task)
    check_decisions(task, options.calibrate, options.reject, options.reject_label)
    encoders = _resolve_encoders(task, options, trust)
    chosen, baseline = _resolve_space(task, options, encoders, trust)
    unlabelled = options.unlabelled is not None
    pretrain = unlabelled if options.pretrain is None else options.pretrain
    check_pretraining(task, chosen, pretrain, unlabelled)
    texts_alone = load_unlabelled(task, options.unlabelled, seed=options.seed) if pretrain or unlabelled else None
    config_of_encoder(baseline, trust)  # refuses an encoder that is not there before any work is done
    if options.max_length is not None:
        from headhunt.modeling.pretrained import check_length

        check_length(options.max_length, baseline, trust)
    directory = RunDirectory(Path(out) if out is not None else new_run_directory(task.name))
    if not options.solved:
        recipe = {name: node for name, node in chosen.tree.get("recipe", {}).items() if name != "head_init"}
        chosen = replace(chosen, tree={**chosen.tree, "recipe": recipe})
    learned = learn(options.learn_from, task, options.known_recipes)
    found = {"encoder": baseline, "space": chosen.to_dict(), "metric": metric, "pretrain": pretrain}
    found |= {"unlabelled": unlabelled, "encoders": encoders if len(encoders) > 1 else ()}
    found |= {"learned": tuple(spec.to_dict() for spec in learned)}
    settings = SearchSettings(**{**vars(options), **found, "learn_from": tuple(map(str, options.learn_from))})
    with directory.claim():
        save_task(task, directory.task)
        if texts_alone is not None:
            save_unlabelled(texts_alone, directory.task)
        directory.write(settings)
    return Session(directory.path, settings, resources, budget, callbacks)


def resume(
    folder: str | Path,
    *,
    time: str | float | None = None,
    trials: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    callbacks: Sequence[Callback | str] | None = None,
) -> Search:
    """Continue a search.

    Args:
        folder: The run directory.
        time: How much longer, "none" for no limit; by default what is left of the first limit.
        trials: Maximum number of trials, earlier ones included; by default as before.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        callbacks: As for `search`.
    """
    directory = RunDirectory(Path(folder))
    settings = directory.read_settings()
    state = read_state(directory) if directory.exists() else State()  # killed before the ledger existed
    seconds = total = parse_duration(time)
    if time is None and settings.time is not None:
        done = state.ended == "time" and directory.result.exists()
        seconds, total = 0.0 if done else settings.time - state.elapsed, settings.time
        if seconds <= 0:
            raise RunError(f"The search has used its {settings.time:.0f} s. Give the time that it may run longer.")
    if trials is not None:
        settings = replace(settings, trials=trials)
    if workers is not None:
        settings = replace(settings, workers=workers)
    budget = TimeBudget(seconds, total=total)
    check_device(settings.device, ray)
    preload_workers(settings.workers, settings.device, ray)
    Session(directory.path, settings, Resources(ray, trust_remote_code), budget, callbacks).run()
    clean(directory)
    return Search(folder)


def verdict(
    folder: str | Path,
    *,
    seeds: int = 3,
    time: str | float | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    callbacks: Sequence[Callback | str] | None = None,
) -> Search:
    """Run the final evaluation of a search again, training the winner and the plain head with several seeds.

    Args:
        folder: The run directory.
        seeds: How often each is trained on all rows; earlier training runs count.
        time: Maximum time; no limit by default.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        callbacks: As for `search`.
    """
    check_number(seeds, "seeds", 1)
    _session(folder, time, workers, Resources(ray, trust_remote_code), callbacks).evaluate_again(seeds)
    return Search(folder)


def ablate(
    folder: str | Path,
    *,
    seeds: int = 1,
    time: str | float | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust_remote_code: bool = False,
    callbacks: Sequence[Callback | str] | None = None,
) -> AblationResult:
    """Measure why the winner won: evaluate it without each of its parts, and with each recipe item at its default.

    Args:
        folder: The run directory.
        seeds: How often each variant is evaluated.
        time: Maximum time; no limit by default.
        workers: As for `search`; by default as before.
        ray: As for `search`; must be given again.
        trust_remote_code: As for `search`; must be given again.
        callbacks: As for `search`.
    """
    check_number(seeds, "seeds", 1)
    handle = Search(folder)
    result, best = handle.result, handle.best
    winner = result.winner.trial if result and result.winner else best.number if best else None
    if winner is None:
        raise RunError(f"{folder} has no winner yet.")
    session = _session(folder, time, workers, Resources(ray, trust_remote_code), callbacks)
    with session.open() as loop:
        session.mark_ended()
        return run_ablation(session.view, loop, winner, seeds)


def _resolve_encoders(task: Task, options: SearchOptions, trust_remote_code: bool) -> tuple[str, ...]:
    """Return the encoders to choose from; none if the user named none."""
    if options.encoder is None:
        return ()
    from headhunt.engine.encoders import resolve_encoders

    texts = task.splits["train"].texts(0, SAMPLE_TEXTS)
    gpu = options.encoder == "auto" and options.device != "cpu" and has_gpu()
    return resolve_encoders(
        options.encoder, texts=texts, max_size=options.max_size, gpu=gpu, trust_remote_code=trust_remote_code
    )


def _resolve_space(
    task: Task, given: SearchOptions, encoders: Sequence[str], trust_remote_code: bool
) -> tuple[Space, str]:
    """Return the space, and the encoder of the plain head: the one the space names, or the first that was given.

    The default space offers to read texts in windows if many of them would be cut.
    """
    space, first = given.space, encoders[0] if encoders else None
    if str(space) in NAMED and not isinstance(space, Space):
        from headhunt.engine.encoders import cuts_many
        from headhunt.modeling.pretrained import freezable_layers, load_config

        configs = [load_config(encoder, trust_remote_code) for encoder in encoders or (DEFAULT_ENCODER,)]
        # Any encoder may be chosen: offer numbers of frozen layers that all of them have.
        layers, encoder = min(map(freezable_layers, configs)), first or DEFAULT_ENCODER
        windows = cuts_many(task, encoder, given.max_length, trust_remote_code)
        return Space.load(str(space), layers, windows=windows), encoder
    chosen = space if isinstance(space, Space) else Space.load(str(space))
    named = chosen.tree.get("encoder")
    if named is None:
        return chosen, first or DEFAULT_ENCODER
    options = list(named.options) if isinstance(named, Choice) else [named]
    if first is not None and (len(encoders) > 1 or first not in options):
        found = ", ".join(encoders)
        raise HeadhuntError(f"must be left out, since the space names {', '.join(options)}; found {found}.", "encoder")
    return chosen, first or str(options[0])


def _session(
    folder: str | Path,
    time: str | float | None,
    workers: int | None,
    resources: Resources,
    callbacks: Sequence[Callback | str] | None,
) -> Session:
    settings = RunDirectory(Path(folder)).read_settings()
    if workers is not None:
        settings = replace(settings, workers=workers)
    preload_workers(settings.workers, settings.device, resources.ray)
    return Session(Path(folder), settings, resources, TimeBudget(parse_duration(time)), callbacks)
