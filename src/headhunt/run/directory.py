"""Name every file of a run directory and read the typed ones.

RUN/ledger.jsonl             what happened, one event per line
RUN/lock                     held by the one writer
RUN/search.log               stages, results and errors as text
RUN/search.json              settings
RUN/plan.json                rows and epochs that fit into the time
RUN/task/                    the data; the test rows in files of their own
RUN/environment.json         library versions
RUN/checkpoints/000012-1/    state of trial 12 after rung 1
RUN/predictions/000012-1.npz its predictions of validation rows
RUN/test/                    predictions of the test rows
RUN/ablation/                predictions of the winner's variants
RUN/encoders/                encoders that were trained further, and pretraining.json about them
RUN/models/                  saved models of trials
RUN/best                     a link to the best of them so far
RUN/model, RUN/ensemble      the final models
RUN/result.json, importance.json, ablation.json, report.html, report.json
RUN/optuna.journal           the trials as a study of Optuna
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from headhunt.errors import ModelError
from headhunt.run import schema
from headhunt.run.model_info import LEDGER
from headhunt.run.model_info import MODEL_INFO as MODEL_INFO
from headhunt.run.model_info import is_model as is_model
from headhunt.run.plan import Plan
from headhunt.run.results import AblationResult, Importances, PretrainingResult, SearchResult
from headhunt.run.schema import RunError, is_bare_name
from headhunt.run.settings import SearchSettings
from headhunt.run.task import TaskInfo, read_task_info
from headhunt.storage import PARTIAL, LockTimeout, atomic_file, directory_size, hold_lock, read_json, sweep_partial

FOLDERS = ("checkpoints", "predictions", "test", "ablation", "models", "encoders")
PREDICTIONS = ("predictions", "test", "ablation")
FILES = {
    Plan: "plan.json",
    SearchSettings: "search.json",
    SearchResult: "result.json",
    Importances: "importance.json",
    AblationResult: "ablation.json",
    PretrainingResult: "encoders/pretraining.json",
}
Key = tuple[int, int]  # trial and rung


class _Named:
    """A file or folder of a run with this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, kind: type[RunDirectory]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    ledger = _Named(LEDGER)
    """The record of events."""
    log = _Named("search.log")
    """The lines that the terminal showed, and the errors of workers."""
    lock = _Named("lock")
    """The lock of the one writer."""
    environment = _Named("environment.json")
    """Library versions."""
    task = _Named("task")
    """The data."""
    settings = _Named(FILES[SearchSettings])
    """The settings of the search."""
    plan = _Named(FILES[Plan])
    """The plan of the search."""
    result = _Named(FILES[SearchResult])
    """The result of the search."""
    importances = _Named(FILES[Importances])
    """The importance of each parameter."""
    ablation = _Named(FILES[AblationResult])
    """The result of an ablation."""
    report = _Named("report.html")
    """The report page."""
    report_data = _Named("report.json")
    """The facts of the report as JSON."""
    model = _Named("model")
    """The delivered model."""
    models = _Named("models")
    """Saved models of trials."""
    encoders = _Named("encoders")
    """Encoders that were trained further."""
    ensemble = _Named("ensemble")
    """The ensemble of the best trials."""
    checkpoints = _Named("checkpoints")
    """The states of trials after their rungs."""

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the lock of a new run while its first files are written, so that two searches never mix.

        Raises:
            RunError: If a search was begun here, or another is being begun.
        """
        try:
            lock = hold_lock(self.lock)
        except LockTimeout:
            raise RunError(
                f"must be a new directory; another search is using {self.path}. Use another.", "out"
            ) from None
        try:
            if self.exists() or self.settings.exists():
                raise RunError(
                    f"must be a new directory; {self.path} holds a search. Resume it, or use another.", "out"
                )
            self.refuse_links()
            yield
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove temporary files and directories that killed workers left; call it with the lock held."""
        for folder in (self.path, self.task, *(self.path / name for name in FOLDERS)):
            sweep_partial(folder, deep=folder.name == "checkpoints")

    def remove_damaged_predictions(self) -> list[Key]:
        """Remove predictions that cannot be read, so that they are made again; return trial and rung of each."""
        damaged = []
        for path in (file for name in PREDICTIONS for file in (self.path / name).glob("*.npz")):
            try:
                _read_arrays(path, "outputs")
            except RunError:
                path.unlink(missing_ok=True)
                if path.parent.name == "predictions" and (key := _key(path)) is not None:
                    damaged.append(key)
        return damaged

    def refuse_links(self) -> None:
        """Refuse a run whose files or folders are links to other places: writing would change what they point to.

        `RUN/best` is the one link that Headhunt makes, and nothing is written through it.

        Raises:
            RunError: If there is one.
        """
        folders = (self.path, self.task, *(self.path / name for name in FOLDERS))
        entries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
        links = [entry for entry in entries if entry.is_symlink() and entry != self.path / "best"]
        if links:
            raise RunError(
                f"The files of a run must be in its folder; {links[0]} is a link to {links[0].readlink()}. "
                "Replace it by a copy, or remove it."
            )

    def exists(self) -> bool:
        """Return whether a search was begun here."""
        return self.ledger.exists()

    def checkpoint(self, trial: int, rung: int) -> Path:
        """Return the directory for the state of a trial after a rung."""
        return self.checkpoints / f"{trial:06d}-{rung}"

    def predictions(self, trial: int, rung: int) -> Path:
        """Return the file for a trial's predictions of validation rows."""
        return self.path / "predictions" / f"{trial:06d}-{rung}.npz"

    def latest_predictions(self, trial: int) -> Path | None:
        """Return the predictions of a trial's highest rung, if there are any."""
        return max(self.predictions(trial, 0).parent.glob(f"{trial:06d}-*.npz"), default=None)

    def last_predictions(self, trial: int, seed: int) -> Path:
        """Return the file for the validation predictions of a trial's last training run."""
        return self.path / "predictions" / f"last-{trial:06d}-{seed}.npz"

    def test_predictions(self, name: str) -> Path:
        """Return the file for a model's predictions of the test rows."""
        _require_bare(name)
        return self.path / "test" / f"{name}.npz"

    def ablation_predictions(self, spec_hash: str, seed: int) -> Path:
        """Return the file for a variant's predictions of validation rows."""
        _require_bare(spec_hash)
        return self.path / "ablation" / f"{spec_hash}-{seed}.npz"

    def final_model(self, trial: int, seed: int) -> Path:
        """Return the directory of a trial's model, trained on all rows with a seed."""
        return self.models / f"{trial:06d}-all{f'-{seed}' if seed else ''}"

    def final_models(self, trial: int) -> list[Path]:
        """Return a trial's complete models that were trained on all rows, by seed."""
        named = {path: path.name.rpartition("-all")[2] for path in self.models.glob(f"{trial:06d}-all*")}
        seeds = {path: int(suffix[1:] or 0) for path, suffix in named.items() if suffix[1:].isdigit() or not suffix}
        return [path for path in sorted(seeds, key=seeds.__getitem__) if is_model(path)]

    def read_plan(self) -> Plan | None:
        """Return the plan of the search; None before it is made."""
        return schema.read(self.plan, Plan) if self.plan.exists() else None

    def read_settings(self) -> SearchSettings:
        """Read the settings of the search.

        Raises:
            RunError: If there is no search here.
        """
        if not self.settings.is_file():
            state = "it has no settings" if self.path.exists() else "it does not exist"
            raise RunError(f"{self.path} is not the run directory of a search: {state}. Check the path.")
        return schema.read(self.settings, SearchSettings)

    def read_task_info(self) -> TaskInfo:
        """Read the description of the data."""
        return read_task_info(self.task)

    def read_result(self) -> SearchResult | None:
        """Read the result; None while the search runs."""
        return schema.read(self.result, SearchResult) if self.result.is_file() else None

    def read_importances(self) -> Importances | None:
        """Read parameter importances; None if there are none."""
        return schema.read(self.importances, Importances) if self.importances.is_file() else None

    def read_ablation(self) -> AblationResult | None:
        """Read the result of an ablation; None if there is none."""
        return schema.read(self.ablation, AblationResult) if self.ablation.is_file() else None

    def read_pretraining(self) -> PretrainingResult | None:
        """Read the result of further pretraining; None if there is none."""
        path = self.path / FILES[PretrainingResult]
        return schema.read(path, PretrainingResult) if path.is_file() else None

    def write(
        self, data: Plan | SearchSettings | SearchResult | Importances | AblationResult | PretrainingResult
    ) -> None:
        """Write data to the file of its type."""
        schema.write(self.path / FILES[type(data)], data)

    def best_model(self, saved: str | None, ended: bool) -> Path | None:
        """Return the best model on disk: the delivered one, or the best so far.

        Args:
            saved: Name of the best model so far, from `State.model`.
            ended: Whether the search has ended.
        """
        if saved is not None:
            _require_bare(saved)
        delivered = self.model if is_model(self.model) else None
        so_far = self.models / saved if saved and is_model(self.models / saved) else None
        return (delivered or so_far) if ended else (so_far or delivered)

    def link_best(self, name: str) -> None:
        """Point `RUN/best` to a model, atomically, where the file system has links."""
        link, fresh = self.path / "best", self.path / f".best.{secrets.token_hex(8)}{PARTIAL}"
        target = f"{self.models.name}/{name}"
        try:
            if link.is_symlink() and str(link.readlink()) == target:
                return
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target, target_is_directory=True)
            fresh.replace(link)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def checkpoint_sizes(self) -> dict[Key, int]:
        """Return the bytes of every checkpoint on disk."""
        return _sizes(self.checkpoints.glob("*"))

    def prediction_sizes(self) -> dict[Key, int]:
        """Return the bytes of every file of predictions."""
        return _sizes(self.path.glob("predictions/*.npz"))


def _key(path: Path) -> Key | None:
    """Return trial and rung of a checkpoint or file of predictions; None if it is neither."""
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", path.name.removesuffix(".npz"))
    return (int(found[1]), int(found[2])) if found else None


def _sizes(paths: Iterable[Path]) -> dict[Key, int]:
    return {key: directory_size(path) for path in paths if (key := _key(path)) is not None}


def _require_bare(name: str) -> None:
    if not is_bare_name(name):
        raise RunError(f"A name in a run must be that of a file in its folder; found {name!r:.80}.")


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows a trial was evaluated on and its outputs for them.

    Raises:
        RunError: If the file is missing or damaged.
    """
    rows, outputs = _read_arrays(path, "rows", "outputs")
    return rows, outputs


def read_test_predictions(path: Path) -> np.ndarray:
    """Return predictions of the test rows (models, rows, outputs).

    Raises:
        RunError: If the file is missing or damaged.
    """
    return _read_arrays(path, "outputs")[0]


def _read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [np.asarray(arrays[name]) for name in names]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise RunError(f"{path} must hold predictions; it cannot be read ({error}).") from None


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays atomically."""
    with atomic_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def removable(sizes: Mapping[Key, int], keep: Sequence[Key], budget: int | None) -> list[Key]:
    """Return checkpoints to remove: those no trial can continue from, then the least promising until the rest fits.

    Args:
        sizes: Bytes by trial and rung.
        keep: Those that can still be promoted or delivered, most promising first.
        budget: Bytes for all together; None is no limit.
    """
    wanted = set(keep)
    remove = [key for key in sizes if key not in wanted]
    total = sum(sizes.values()) - sum(sizes[key] for key in remove)
    for key in reversed(keep):
        if budget is None or total <= budget:
            break
        if key in sizes:
            remove.append(key)
            total -= sizes[key]
    return remove


def check_weight_files(folder: Path) -> None:
    """Refuse a model whose weights are elsewhere: transformers follows any path in these two files.

    Raises:
        ModelError: If an index names a file outside the folder, or an adapter names another model.
    """
    if (folder / "adapter_config.json").exists():
        raise ModelError("its weights must be complete; found those of an adapter (adapter_config.json)")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        data = read_json(index)
        names = data.get("weight_map") if isinstance(data, dict) else None
        wrong = [name for name in names.values() if not is_bare_name(name)] if isinstance(names, dict) else [names]
        if wrong:
            raise ModelError(f"its weights must be files of the folder; found {wrong[0]!r:.80} in {index.name}")
