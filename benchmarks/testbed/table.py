"""The table of the testbed: predictions, scores and costs of every candidate on every set.

A table is a directory. `specs.json` lists the candidates. A set has two files, `SET.json` (facts and entries) and
`SET.npz` (arrays). The arrays of an entry are written before the entry is listed, so that a listed entry is complete.
docs/testbed.md describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from specs import TableSpec

from headhunt.evaluation import apply_thresholds, decision_scores, fit_thresholds, measure
from headhunt.storage import atomic_file, write_json

SCHEMA = 1
SPECS, CALIBRATION = "specs.json", "calibration.json"
REFERENCE_GFLOPS = 160.0  # of the machine on which the first results were collected
REFERENCE_TRAINING_GFLOPS = 190.0  # on which candidates take as long as on that machine
KINDS = {False: "one_text", True: "pair"}
LEAST_PROBABILITY = 1e-4  # so that a probability that float16 rounds to 0 does not decide a log loss


@dataclass(frozen=True)
class Rung:
    """One step of a candidate's evaluation."""

    fraction: float
    """Fraction of full training at its end."""
    outcome: str
    score: float | None
    """Score of the rows that are predicted by then."""
    seconds: float
    """Wall-clock seconds of this step alone, on a machine that does other work."""
    cpu_seconds: float
    """Processor seconds of this step alone."""
    training_seconds: float | None = None
    """Wall-clock seconds of its training steps alone."""
    message: str = ""
    gflops: float | None = None
    """Speed of the machine in matrix products of one thread, before and after this step; in earlier results only."""
    training_gflops: float | None = None
    """Speed of training a layer of the encoder with one thread, before and after this step; None if not measured."""

    @property
    def speed(self) -> float:
        """Speed of the machine relative to the reference; 1 if it was not measured."""
        if self.training_gflops is not None:
            return self.training_gflops / REFERENCE_TRAINING_GFLOPS
        return 1.0 if self.gflops is None else self.gflops / REFERENCE_GFLOPS

    @property
    def reference_seconds(self) -> float:
        """Processor seconds on a machine with the speed of the reference."""
        return self.cpu_seconds * self.speed


@dataclass(frozen=True)
class Entry:
    """The result of one candidate on one set."""

    spec: str
    """Hash of the candidate."""
    outcome: str
    """Outcome of the last rung: `ok`, `collapsed`, `memory` or `error`."""
    rungs: tuple[Rung, ...]
    memory_mb: float
    """Peak resident memory of the process while it was evaluated."""
    test_cpu_seconds: float = 0.0
    refit_cpu_seconds: float | None = None
    """Processor seconds of training on all rows; None if it was not done."""

    @property
    def complete(self) -> bool:
        """True if every row has an out-of-fold prediction."""
        return self.outcome == "ok"


@dataclass(frozen=True)
class SetInfo:
    """Facts about a set."""

    name: str
    source: str
    """Name of the data set that the rows are from."""
    problem_type: str
    metric: str
    pair: bool
    rows: int
    test_rows: int
    outputs: int
    """Number of classes or labels; 1 for numbers."""
    folds: int
    """Number of training runs of a candidate; 1 is a validation split."""
    fingerprint: str
    """Hash of the drawn rows."""
    encoder: str


@dataclass(frozen=True)
class SetTable:
    """All results on one set.

    `arrays` has `rows`, `targets` and `folds` (position, target and fold of each out-of-fold prediction) and
    `test_targets`. Each entry adds `HASH.out_of_fold` (rows, outputs), `HASH.early` (predictions of the first fold's
    rows at the first rung), `HASH.test` (models, test rows, outputs) and perhaps `HASH.refit` (test rows, outputs).
    """

    info: SetInfo
    entries: dict[str, Entry] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    quiet_ratios: Mapping[str, float] = field(default_factory=dict)
    """Quiet wall-clock seconds per processor second, by candidate."""

    def outputs(self, spec: str, folds: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return a candidate's out-of-fold predictions and their targets, of the first folds only if given."""
        kept = slice(None) if folds is None else self.arrays["folds"] < folds
        return self.arrays[f"{spec}.out_of_fold"][kept].astype(np.float32), self.arrays["targets"][kept]

    def score(self, spec: str, folds: int | None = None) -> float:
        """Return the out-of-fold score of a candidate, of the first folds only if given."""
        outputs, targets = self.outputs(spec, folds)
        problem_type, metric = self.info.problem_type, self.info.metric
        return measure(problem_type, metric, decision_scores(problem_type, metric, outputs, targets), targets)

    def log_loss(self, spec: str, folds: int | None = None) -> float:
        """Return the out-of-fold log loss of a candidate; for numbers the mean squared error."""
        return mean_loss(self.info.problem_type, *self.outputs(spec, folds))

    def test_outputs(self, spec: str, refit: bool = False) -> np.ndarray:
        """Return predictions of the test rows: of the model trained on all rows, or the mean of the fold models."""
        if refit:
            return self.arrays[f"{spec}.refit"].astype(np.float32)
        return self.arrays[f"{spec}.test"].astype(np.float32).mean(0)

    def test_score(self, spec: str, refit: bool = False) -> float:
        """Return the test score of a candidate; thresholds of several labels are fitted out of fold."""
        return self.score_test_outputs(self.test_outputs(spec, refit), *self.outputs(spec))

    def score_test_outputs(self, outputs: np.ndarray, validation: np.ndarray, targets: np.ndarray) -> float:
        """Return the test score of any predictions; the others fit the thresholds of several labels."""
        problem_type, metric = self.info.problem_type, self.info.metric
        if problem_type == "multi_label_classification":
            outputs = apply_thresholds(outputs, fit_thresholds(validation, targets, metric))
        return measure(problem_type, metric, outputs, self.arrays["test_targets"])

    def seconds(self, spec: str) -> list[float]:
        """Return the seconds of each rung of a candidate on a quiet machine."""
        ratio = self.quiet_ratio(spec)
        return [rung.reference_seconds * ratio for rung in self.entries[spec].rungs]

    def quiet_ratio(self, spec: str) -> float:
        """Return the quiet wall-clock seconds per processor second; 1 without a calibration."""
        ratios = self.quiet_ratios
        return ratios.get(spec, median(ratios.values()) if ratios else 1.0)

    @property
    def scored(self) -> list[str]:
        """Candidates that were evaluated in full."""
        return [spec for spec, entry in self.entries.items() if entry.complete]

    def best(self, count: int) -> list[str]:
        """Return the candidates with the best out-of-fold scores, best first."""
        return sorted(self.scored, key=self.score, reverse=True)[:count]

    def with_entry(self, entry: Entry, arrays: Mapping[str, np.ndarray]) -> SetTable:
        """Return the table with one more entry, or with one replaced; arrays are named without the hash."""
        stored = {f"{entry.spec}.{name}": np.asarray(values, np.float16) for name, values in arrays.items()}
        return replace(self, entries=self.entries | {entry.spec: entry}, arrays=self.arrays | stored)

    def save(self, folder: Path) -> None:
        """Write both files, the arrays first."""
        with atomic_file(folder / f"{self.info.name}.npz") as file:
            np.savez_compressed(file, **self.arrays)  # type: ignore[arg-type]
        entries = [asdict(entry) for entry in self.entries.values()]
        write_json(folder / f"{self.info.name}.json", {"schema": SCHEMA, **asdict(self.info), "entries": entries})


class Table:
    """All sets of a testbed.

    Args:
        folder: Directory of the table.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def sets(self) -> dict[str, SetTable]:
        """The sets that have results, by name."""
        ratios = self.quiet_ratios()
        names = sorted(path.stem for path in self.folder.glob("*.npz"))
        names = [name for name in names if (self.folder / f"{name}.json").exists()]
        return {name: replace(load_set(self.folder, name), quiet_ratios=ratios) for name in names}

    def specs(self, pair: bool) -> list[TableSpec]:
        """Return the candidates for one text or for pairs, in the order of collection."""
        return read_specs(self.folder)[pair]

    def quiet_ratios(self) -> dict[str, float]:
        """Return the quiet wall-clock seconds per processor second by candidate; empty without a calibration."""
        path = self.folder / CALIBRATION
        return json.loads(path.read_text(encoding="utf-8"))["ratios"] if path.exists() else {}

    def __iter__(self) -> Iterator[SetTable]:
        return iter(self.sets.values())


def load_set(folder: Path, name: str) -> SetTable:
    """Read one set.

    Raises:
        ValueError: If the files have another schema, or arrays of a listed entry are missing.
    """
    data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    if data.pop("schema", None) != SCHEMA:
        raise ValueError(f"{folder / name}.json must have schema {SCHEMA}.")
    items = data.pop("entries")
    entries = [Entry(**{**item, "rungs": tuple(Rung(**rung) for rung in item["rungs"])}) for item in items]
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    missing = [entry.spec for entry in entries if entry.complete and f"{entry.spec}.out_of_fold" not in arrays]
    if missing:
        raise ValueError(f"{folder / name}.npz must hold predictions of every entry; missing: {', '.join(missing)}.")
    return SetTable(SetInfo(**data), {entry.spec: entry for entry in entries}, arrays)


def read_specs(folder: Path) -> dict[bool, list[TableSpec]]:
    """Return the candidates of a table, by whether they are for pairs."""
    data = json.loads((folder / SPECS).read_text(encoding="utf-8"))
    return {pair: [TableSpec.from_dict(item) for item in data[kind]] for pair, kind in KINDS.items()}


def write_specs(folder: Path, specs: Mapping[bool, Sequence[TableSpec]]) -> None:
    """Write the candidates of a table."""
    data: dict[str, Any] = {kind: [item.to_dict() for item in specs[pair]] for pair, kind in KINDS.items()}
    write_json(folder / SPECS, {"schema": SCHEMA, **data})


def mean_loss(problem_type: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the log loss of predictions; for numbers the mean squared error."""
    if problem_type == "regression":
        return float(np.square(outputs.reshape(-1) - targets.reshape(-1)).mean())
    clipped = outputs.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    if problem_type == "multi_label_classification":
        return float(-np.where(targets > 0.5, np.log(clipped), np.log(1 - clipped)).mean())
    return float(-np.log(clipped[np.arange(len(targets)), targets]).mean())
