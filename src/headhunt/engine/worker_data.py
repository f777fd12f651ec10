"""Hold the data of a worker: rows, tokens, features and activations, which candidates share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headhunt.engine.assembly import (
    Assembly,
    Where,
    architecture_key,
    build_predictor,
    make_features,
    make_solving,
    make_tokenizer,
    make_training,
    spec_of,
    token_key,
    tokenise_for,
    tokenizer_key,
)
from headhunt.engine.folds import Fold, WorkingRows, working_rows
from headhunt.engine.workers import RunnerSettings
from headhunt.evaluation import fit_thresholds
from headhunt.modeling.build import heads_of
from headhunt.predictor import Predictor
from headhunt.run.directory import RunDirectory, read_predictions
from headhunt.run.task import open_task, tested_rows
from headhunt.spec import Head, Spec
from headhunt.storage import cache_dir
from headhunt.study.requests import Request
from headhunt.training.activations import ActivationCache, FrozenEncoder
from headhunt.training.device import pick_device
from headhunt.training.features import Features, InitialFeatures, TaskFeatures
from headhunt.training.solve import Solving
from headhunt.training.task_tokens import TaskTokens
from headhunt.training.tokens import Tokens

SAMPLE = 256  # texts that costs are measured with
AFTER_FEATURES = ("mlp.", "output.")  # parts of a head that read its features
INITIAL_FEATURES = 4  # architectures whose initial features are kept

Thresholds = tuple[float, ...] | None
Texts = tuple[list[str], list[str] | None, np.ndarray | None]
"""First texts, second texts of pairs, and the number of each row's task if there are several."""


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
        self._tokens: dict[Any, Tokens | TaskTokens] = {}
        self._caches: dict[Any, ActivationCache] = {}
        self._encoders: dict[str, FrozenEncoder] = {}
        self._tokenizers: dict[Any, Any] = {}
        self._features: dict[Any, Features | TaskFeatures] = {}
        self._initial: dict[Any, InitialFeatures] = {}

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

    def test_texts(self) -> Texts:
        """Return the test texts, or the sample of the plan. No other method of this class reads the test rows."""
        test = open_task(self.directory.task, ("test",)).splits["test"]
        plan = self.directory.read_plan()
        rows = tested_rows(test, plan.test_rows if plan else None)
        test = test if rows is None else test.take(rows)
        return test.texts(), test.texts_b(), test.tasks

    def sample_texts(self) -> Texts:
        """Return some texts to measure costs with; the training rows are in no order, but those of tasks are."""
        split = self.splits[0]
        if self.task.tasks:
            split = split.take(np.sort(np.random.default_rng(0).permutation(len(split))[:SAMPLE]))
        tasks = split.tasks
        return split.texts(0, SAMPLE), split.texts_b(0, SAMPLE), None if tasks is None else tasks[:SAMPLE]

    def thresholds_of(self, ready: Assembly, validation: tuple[np.ndarray, np.ndarray] | None) -> Thresholds:
        """Return the decision thresholds of a model's labels; None if nothing is known to fit them on.

        Validation rows may be few. A solved head also has held-out predictions of the rows it has learned from, which
        tell more about rare labels.

        Args:
            ready: The model that gets the thresholds.
            validation: Outputs and targets of rows that it was not trained on.
        """
        if self.task.problem_type != "multi_label_classification":
            return None
        held_out = ready.training.held_out if isinstance(ready.training, Solving) else None
        if held_out is not None and (validation is None or len(held_out[0]) > len(validation[0])):
            probabilities = ready.predictor.activate(torch.from_numpy(held_out[1])).numpy()
            validation = probabilities, self.targets[held_out[0]]
        if validation is None:
            return None
        return tuple(fit_thresholds(*validation, self.settings.metric).tolist())

    def validation_of(self, trial: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return outputs and targets of the validation rows that a trial has predicted; None without any."""
        path = self.directory.latest_predictions(trial)
        if path is None:
            return None
        rows, outputs = read_predictions(path)
        return outputs, np.concatenate([split.targets for split in self.splits])[rows]

    def open(self, spec: Spec, rows: np.ndarray, request: Request) -> Assembly:
        """Return a training of a candidate on some rows, the predictor it trains, and the tokens of all rows."""
        predictor = self.build(spec, request.seed)
        tokens = self.tokens_for(predictor)
        targets = self.targets[rows]
        if predictor.recipe.is_solved:
            features = self._features_for(predictor, tokens, request.seed)
            solving = make_solving(self.task, predictor, features, rows, targets, request.seed, self.groups[rows])
            return Assembly(solving, predictor, tokens)
        initial = None
        if isinstance(tokens, Tokens) and len(self.folds) > 1:  # else there are many rows, and few are used
            shared = self._initial_features(predictor, tokens)
            initial = (shared, rows) if shared else None
        steps = request.gradient_accumulation_steps
        training = make_training(self.task, predictor, tokens.take(rows), targets, request.seed, steps, initial)
        return Assembly(training, predictor, tokens)

    def build(self, spec: Spec, seed: int) -> Predictor:
        """Return the untrained model of a candidate."""
        key, trust = tokenizer_key(spec), self.settings.trust_remote_code
        if key not in self._tokenizers:
            self._tokenizers[key] = make_tokenizer(spec, lambda: self.task.splits["train"], trust)
        where = Where(self.device, self.settings.precision, trust)
        return build_predictor(self.task, spec, self._tokenizers[key], where, seed)

    def _features_for(self, predictor: Predictor, tokens: Tokens | TaskTokens, seed: int) -> Features | TaskFeatures:
        """Return the features of a head that is solved, which all candidates with the same ones share."""
        spec = spec_of(predictor)
        same = replace(spec, head=replace(spec.head, words=None)) if spec.head.words == "beside" else spec
        # A plain head may have a random layer before its output.
        key = (architecture_key(same), seed if spec.head.plain else None)
        if key not in self._features:
            self._features.clear()  # features of one encoder may take a gigabyte
            self._features[key] = make_features(predictor.model, tokens, self.settings.precision)
        return self._features[key]

    def _initial_features(self, predictor: Predictor, tokens: Tokens) -> InitialFeatures | None:
        """Return the initial features of a head, which all candidates with the same ones share.

        None if they depend on the seed, as those of heads with layers before their features do.
        """
        spec = spec_of(predictor)
        parameters = [name for head in heads_of(predictor.model) for name, _ in head.named_parameters()]
        if spec.head.plain or spec.shape or not all(name.startswith(AFTER_FEATURES) for name in parameters):
            return None
        same = replace(spec, head=replace(spec.head, dropout=Head().dropout, mlp=None))
        # Layers that are frozen may come from stored activations, which are rounded.
        key = (architecture_key(same), spec.recipe.freeze)
        features = self._initial.pop(key, None) or InitialFeatures(tokens, self.settings.precision)
        self._initial[key] = features  # those that were used last are at the end
        if len(self._initial) > INITIAL_FEATURES:
            del self._initial[next(iter(self._initial))]
        return features

    def tokens_for(self, predictor: Predictor) -> Tokens | TaskTokens:
        """Return the tokens of the working rows as a candidate reads them."""
        spec = spec_of(predictor)
        key = token_key(spec)
        if key not in self._tokens:
            parts, start = [], 0
            for split in self.splits:
                inside = self.rows.positions - start
                inside = inside[(inside >= 0) & (inside < len(split))]
                parts.append(split if len(inside) == len(split) else split.take(inside))
                start += len(split)
            self._tokens[key] = tokenise_for(spec, predictor.tokenizer, self.task, parts)
        return self._tokens[key]

    def activation_caches(self, spec: Spec, tokens: Tokens | TaskTokens) -> list[ActivationCache]:
        """Return the caches of this candidate's activations; none if it trains all layers or has a shape."""
        trained = spec.recipe.freeze in ("none", "embeddings")
        if not self.settings.cache_activations or trained or spec.recipe.is_solved or spec.shape:
            return []
        if spec.encoder not in self._encoders:
            self._encoders[spec.encoder] = FrozenEncoder(
                spec.encoder,
                device=self.device,
                precision=self.settings.precision,
                trust_remote_code=self.settings.trust_remote_code,
            )
        if (plan := self.directory.read_plan()) is not None and (used := plan.rows_at(1.0)) is not None:
            train, evaluated = self.folds[0]
            tokens = tokens.take(np.concatenate([self.rows.sample(train, used), evaluated]))
        layouts: dict[str, Callable[[], Tokens]] = {}
        for number, part in enumerate(tokens.parts if isinstance(tokens, TaskTokens) else (tokens,)):
            layouts |= {f"{layout} {number}": make for layout, make in _layouts(part, spec).items()}
        for layout, make in layouts.items():
            key = (*token_key(spec), layout)
            if key not in self._caches:
                self._caches[key] = ActivationCache(
                    self._encoders[spec.encoder], make(), cache_dir("activations"), self.settings.cache_bytes
                )
        return [self._caches[*token_key(spec), layout] for layout in layouts]


def _layouts(tokens: Tokens, spec: Spec) -> dict[str, Callable[[], Tokens]]:
    """Return the rows as an encoder reads them: as they are, swapped, each text of a pair alone, or in windows."""
    pair = tokens.firsts is not None
    if spec.head.siamese and pair:
        return {"apart": tokens.split_pairs}
    if spec.head.windows:
        return {"windows": lambda: tokens.split_windows(spec.recipe.max_length)}
    swapped = {"swapped": tokens.swapped} if pair and spec.recipe.swap_pairs else {}
    return {"joint": lambda: tokens, **swapped}


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
