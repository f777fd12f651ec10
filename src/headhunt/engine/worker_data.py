"""Hold the data of a worker: rows, tokens, features and activations, which candidates share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headhunt.data import Split
from headhunt.engine.assembly import Assembly, assemble, build_model, token_key, tokenise_for
from headhunt.engine.folds import Fold, WorkingRows, working_rows
from headhunt.evaluation import fit_thresholds
from headhunt.modeling.build import load_tokenizer
from headhunt.run.directory import RunDirectory, read_predictions
from headhunt.run.task import open_task, tested_rows
from headhunt.spec import Spec
from headhunt.storage import cache_dir
from headhunt.study.requests import Request
from headhunt.training.activations import ActivationCache, FrozenEncoder
from headhunt.training.device import pick_device
from headhunt.training.features import Features
from headhunt.training.tokens import Tokens


@dataclass(frozen=True)
class RunnerSettings:
    """The settings of a `TrialRunner`; plain data, so that they reach other machines."""

    directory: str
    """The run directory."""
    metric: str
    seed: int = 0
    """Decides the folds; the same for all candidates."""
    device: str | None = None
    precision: str = "auto"
    trust_remote_code: bool = False
    cache_activations: bool = True
    cache_bytes: int | None = None
    """Bytes for cached activations on this machine."""
    threads: int | None = None
    """Threads of this process; by default torch decides."""
    memory: int | None = None
    """Bytes this process may allocate beyond what it has now, where the system can enforce that."""
    max_latency: float | None = None
    """Milliseconds for one text in the median; slower candidates are not trained."""
    max_size: float | None = None
    """Megabytes of weights a candidate may have."""


class WorkerData:
    """The rows of a run as candidates read them; tokens and activations are kept from one candidate to the next.

    Args:
        settings: See `RunnerSettings`.
    """

    def __init__(self, settings: RunnerSettings) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.settings, self.directory = settings, RunDirectory(Path(settings.directory))
        self.device = pick_device(settings.device)
        self.task = open_task(self.directory.task)
        self.splits = [self.task.splits[name] for name in ("train", "validation") if name in self.task.splits]
        self._tokens: dict[Any, Tokens] = {}
        self._caches: dict[Any, ActivationCache] = {}
        self._encoders: dict[str, FrozenEncoder] = {}
        self._tokenizers: dict[str, Any] = {}
        self._features: dict[Any, Features] = {}

    @cached_property
    def rows(self) -> WorkingRows:
        """The rows that candidates are trained and evaluated on. The plan must have been made."""
        return working_rows(self.task, self.directory.read_plan(), self.settings.seed)

    @property
    def folds(self) -> list[Fold]:
        """Rows to train on and rows to evaluate on, for each training run of a candidate."""
        return self.rows.folds

    @cached_property
    def targets(self) -> np.ndarray:
        """Targets of the working rows."""
        return np.concatenate([split.targets for split in self.splits])[self.rows.positions]

    @cached_property
    def groups(self) -> np.ndarray:
        """Groups of near-duplicates of the working rows."""
        return np.concatenate([split.groups for split in self.splits])[self.rows.positions]

    def test_texts(self) -> tuple[list[str], list[str] | None]:
        """Return the test texts, or the sample of the plan. No other method of this class reads the test rows."""
        test = open_task(self.directory.task, ("test",)).splits["test"]
        plan = self.directory.read_plan()
        rows = tested_rows(len(test), plan.test_rows if plan else None)
        test = test if rows is None else test.take(rows)
        return test.texts(), test.texts_b()

    def sample_texts(self) -> tuple[list[str], list[str] | None]:
        """Return some texts to measure costs with."""
        split = self.splits[0]
        return split.texts(0, 256), split.texts_b(0, 256)

    def thresholds_of(self, trial: int) -> tuple[float, ...] | None:
        """Return the decision thresholds of a trial's labels, fitted on its out-of-fold predictions."""
        path = self.directory.latest_predictions(trial)
        if path is None:
            return None
        rows, outputs = read_predictions(path)
        targets = np.concatenate([split.targets for split in self.splits])[rows]
        return tuple(fit_thresholds(outputs, targets, self.settings.metric).tolist())

    def open(self, spec: Spec, rows: np.ndarray, request: Request) -> Assembly:
        """Return a training of a candidate on some rows, the predictor it trains, and the tokens of all rows."""
        init_seed = request.seed if request.init_seed is None else request.init_seed
        model, tokenizer, spec = self.build(spec, init_seed)
        tokens = self.tokens_for(spec, tokenizer)
        shared: dict[str, Any] = {}
        if spec.recipe.is_solved:
            shared = {"features": self._features_for(spec, model, tokens), "rows": rows, "groups": self.groups[rows]}
        training, predictor = assemble(
            self.task,
            spec,
            model,
            tokenizer,
            tokens.take(rows),
            self.targets[rows],
            seed=request.seed,
            device=self.device,
            precision=self.settings.precision,
            gradient_accumulation_steps=request.gradient_accumulation_steps,
            **shared,
        )
        return Assembly(training, predictor, tokens)

    def build(self, spec: Spec, seed: int) -> tuple[Any, Any, Spec]:
        """Return the untrained model of a candidate, its tokenizer, and the candidate as it is trained."""
        trust = self.settings.trust_remote_code
        if spec.encoder not in self._tokenizers:
            self._tokenizers[spec.encoder] = load_tokenizer(spec.encoder, trust)
        tokenizer = self._tokenizers[spec.encoder]
        model, spec = build_model(self.task, spec, tokenizer, seed=seed, trust_remote_code=trust)
        return model, tokenizer, spec

    def _features_for(self, spec: Spec, model: Any, tokens: Tokens) -> Features:
        """Return the features of a head that is solved; candidates with equal heads share them."""
        key = (*token_key(spec), repr(spec.head))
        if key not in self._features:
            self._features.clear()  # features of one encoder may take a gigabyte
            self._features[key] = Features(model.to(self.device), tokens, self.settings.precision)
        return self._features[key]

    def _working_splits(self) -> list[Split]:
        """Return the working rows of each split, in the order of `rows.positions`."""
        positions, parts, start = self.rows.positions, [], 0
        for split in self.splits:
            inside = positions[(positions >= start) & (positions < start + len(split))] - start
            parts.append(split if len(inside) == len(split) else split.take(inside))
            start += len(split)
        return parts

    def texts(self) -> tuple[list[str], list[str] | None]:
        """Return the first and second texts of the working rows."""
        parts = self._working_splits()
        first = [text for split in parts for text in split.texts()]
        second = [text for split in parts for text in split.texts_b() or []] if self.task.pair else None
        return first, second

    def tokens_for(self, spec: Spec, tokenizer: Any) -> Tokens:
        """Return the tokens of the working rows as a candidate reads them."""
        key = token_key(spec)
        if key not in self._tokens:
            self._tokens[key] = tokenise_for(spec, tokenizer, *self.texts())
        return self._tokens[key]

    def activation_caches(self, spec: Spec, tokens: Tokens) -> list[ActivationCache]:
        """Return the caches of this candidate's activations; none if it trains the embeddings."""
        if not self.settings.cache_activations or spec.recipe.freeze == "none" or spec.recipe.is_solved:
            return []
        if spec.encoder not in self._encoders:
            self._encoders[spec.encoder] = FrozenEncoder(
                spec.encoder,
                device=self.device,
                precision=self.settings.precision,
                trust_remote_code=self.settings.trust_remote_code,
            )
        plan = self.directory.read_plan()
        if plan is not None and plan.by_rows:
            # The rows of the last training are read once; the others are read by every candidate.
            train, evaluated = self.folds[0]
            tokens = tokens.take(np.concatenate([self.rows.sample(train, plan.compared_rows), evaluated]))
        layouts: dict[str, Callable[[], Tokens]] = {"joint": lambda: tokens}
        if spec.head.siamese:
            layouts = {"apart": tokens.split_pairs}
        elif self.task.pair and spec.recipe.swap_pairs:
            layouts["swapped"] = tokens.swapped
        for layout, make in layouts.items():
            key = (*token_key(spec), layout)
            if key not in self._caches:
                self._caches[key] = ActivationCache(
                    self._encoders[spec.encoder], make(), cache_dir("activations"), self.settings.cache_bytes
                )
        return [self._caches[*token_key(spec), layout] for layout in layouts]


def limit_memory(extra: int) -> None:
    """Let this process allocate so many bytes more: a candidate that needs more then fails alone."""
    try:
        import resource

        status = Path("/proc/self/status").read_text()
        used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + extra, hard))
    except (ImportError, OSError, StopIteration, ValueError):
        pass  # other systems: left to the executor, which notices that the worker died
