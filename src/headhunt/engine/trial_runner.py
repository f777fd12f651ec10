"""One candidate, judged: a request in, an outcome out.

Hides all that is hard about training a candidate for a while: the rows it learns from and those it is judged on, tokens
and activations kept warm, where it goes on from, the deadline, and what becomes of it when it runs out of memory or
learns nothing.

Small data is judged out of fold: the training rows are dealt to three parts, and the candidate is trained once for each
on the other two. A share of a candidate's examples is a share of these trainings one after the other, so the first
third of its budget is one whole training, judged on a third of the rows, and the whole budget has judged every row by a
model that has not seen it.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headhunt.data import Split, Task
from headhunt.engine.profiling import latency, measure_cost
from headhunt.errors import HeadhuntError, ModelError, out_of_memory
from headhunt.evaluation import decide, measure
from headhunt.modeling.build import build, load_tokenizer, longest_input
from headhunt.predictor import CARD, Predictor
from headhunt.run.directory import TASK, folds_of
from headhunt.run.ledger import STOPPED, Outcome, Request
from headhunt.run.task import open_task
from headhunt.spec import Recipe, Spec
from headhunt.training.activations import ActivationCache, FrozenEncoder, StoppedError, attach
from headhunt.training.device import pick_device
from headhunt.training.loop import Training
from headhunt.training.objectives import Objective
from headhunt.training.tokens import SpecialTokens, Tokens, tokenise

HELD_OUT = 2000  # rows that larger data is judged on, at most a fifth
PROBE = Recipe(epochs=10.0, learning_rate=3e-3, freeze="all")  # the probe trains the head alone, each in the same way
FLAT = 0.95  # a loss that is still above this share of what the class shares alone give has learned nothing


class TrialRunner:
    """Where one worker tries candidates: the task, its tokens and activations, kept from one candidate to the next.

    Args:
        folder: The run directory.
        metric: What candidates are compared by.
        seed: Which rows go to which part; the same for all candidates.
        device: "cuda", "mps" or "cpu"; the fastest there is unless given.
        precision: "auto", "fp32" or "bf16".
        trust_remote_code: Whether code that comes with the encoder may run.
        stored: Whether activations are stored.
        budget: Bytes for stored activations on this machine.
        threads: Of this process; torch's own choice unless given.
        memory: Bytes this process may take beyond what it has now, where the system can hold it to that.
        max_latency: Milliseconds that one text may take, in the median; slower candidates are not trained.
        max_size: Megabytes of weights a candidate may have.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        metric: str,
        seed: int = 0,
        device: str | None = None,
        precision: str = "auto",
        trust_remote_code: bool = False,
        stored: bool = True,
        budget: int | None = None,
        threads: int | None = None,
        memory: int | None = None,
        max_latency: float | None = None,
        max_size: float | None = None,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.folder, self.metric = Path(folder), metric
        self.device, self.precision, self.trust = pick_device(device), precision, trust_remote_code
        self.task = open_task(self.folder / TASK)
        self.folds = plan(self.task, seed)
        self._splits = [self.task.splits[name] for name in ("train", "validation") if name in self.task.splits]
        self.targets = np.concatenate([split.targets for split in self._splits])
        self._stored, self._budget = stored, budget
        self.max_latency, self.max_size = max_latency, max_size
        self._costs: dict[Any, dict[str, float]] = {}
        self._tokens: dict[Any, Tokens] = {}
        self._stores: dict[Any, ActivationCache] = {}
        self._bottoms: dict[str, FrozenEncoder] = {}
        self._tokenizers: dict[str, Any] = {}
        if memory:
            limit_memory(memory)

    def run(self, request: Request, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Does what is asked; whatever befalls the candidate is an outcome.

        Args:
            request: What to do.
            stop: Asked after every step; true ends the work as the deadline does.
        """
        began = time.perf_counter()
        deadline = request.deadline or math.inf

        def over() -> bool:
            return time.time() >= deadline or stop()

        jobs = {
            "judge": self._judge,
            "refit": self._refit,
            "deliver": self._deliver,
            "members": self._members,
            "answer": self._answer,
            "cost": self._cost,
        }
        work = jobs[request.job]
        try:
            outcome = work(request, over)
        except (_StoppedError, StoppedError):
            outcome = Outcome(STOPPED)
        except _CollapsedError as error:
            outcome = Outcome("collapsed", extra={"message": str(error)})
        except _LimitError as error:
            outcome = Outcome("limit", extra={"message": str(error)})
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            outcome = Outcome("memory", extra={"message": str(error).splitlines()[0]})
        return replace(outcome, seconds=time.perf_counter() - began)

    def _judge(self, request: Request, over: Callable[[], bool]) -> Outcome:
        spec, share = Spec.from_dict(request.spec), request.fraction
        whole = share == 1
        limited = self.max_latency is not None or self.max_size is not None
        cost = self.cost_of(spec) if whole or limited else {}
        if limited:
            self._refuse_costly(cost)
        if share == 0:
            spec, share = probe(spec), 1.0
        begun = share * len(self.folds)
        outputs: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        examples, losses, layer = 0, [], None
        for number in range(math.ceil(begun - 1e-9)):
            part = self._part(request, spec, number, min(1.0, begun - number), over)
            outputs.append(part.outputs)
            rows.append(self.folds[number][1])
            examples += part.examples
            losses += part.losses
            layer = part.layer
        held, found = np.concatenate(rows), np.concatenate(outputs)
        if begun >= 1 and request.trial > 0:  # what the plain head reaches is an answer, however little it is
            self._refuse_collapse(found, held, losses)
        if request.predictions:
            _keep(Path(request.predictions), rows=held, outputs=found.astype(np.float32))
        score = measure(self.task.problem_type, self.metric, found, self.targets[held])
        if not math.isfinite(score):
            raise _CollapsedError(f"its {self.metric} is not a number")
        extra = {"loss": losses[-1] if losses else None, "losses": [round(loss, 4) for loss in losses]}
        extra |= {"from_layer": layer, "held": len(held), **cost}
        return Outcome("ok", score=score, examples=examples, extra=extra)

    def _part(self, request: Request, spec: Spec, number: int, until: float, over: Callable[[], bool]) -> _Part:
        """Trains one part as far as asked and predicts the rows held out from it."""
        train, held = self.folds[number]
        place = Path(request.checkpoint) / f"part-{number}" if request.checkpoint else None
        earlier = Path(request.resume) / f"part-{number}" if request.resume else None
        if earlier is not None and until == 1 and (earlier / "outputs.npy").exists():
            if place is not None and place != earlier:
                _link(earlier, place)
            return _Part(np.load(earlier / "outputs.npy", allow_pickle=False), 0, [], None)
        training, predictor, tokens = self.open(spec, train, request.seed, request.gradient_accumulation_steps)
        if earlier is not None and (earlier / "training.safetensors").exists():
            try:
                training.restore(earlier)
            except Exception:  # half a file, or of another version: the seed gives the same state, only later
                training, predictor, tokens = self.open(spec, train, request.seed, request.gradient_accumulation_steps)
        before, losses = training.examples, []
        with Starting(self, training, tokens, spec, over) as starting:
            for report in training.reports(9, until=until, stop=over):
                if not math.isfinite(report.loss):
                    raise _CollapsedError("its loss is not a number")
                losses.append(report.loss)
            if training.step < training.steps_until(until):
                if place is not None:
                    training.save(place)
                raise _StoppedError
            training.model.eval()
            answers = predictor.tokens_to_outputs(tokens.take(held))
        outputs = training.objective.answers(answers)
        if place is not None:
            training.save(place)
            if until == 1:
                np.save(place / "outputs.npy", outputs)
        return _Part(outputs, training.examples - before, losses, starting.layer)

    def _refuse_collapse(self, outputs: np.ndarray, held: np.ndarray, losses: list[float]) -> None:
        """A candidate that gives one answer to everything and has not learned is no candidate."""
        targets = self.targets[held]
        answers = decide(self.task.problem_type, outputs)
        if self.task.problem_type == "regression":
            same = float(np.std(answers)) < 1e-6 * max(float(np.std(targets)), 1e-12)
        else:
            same = bool((answers == answers[0]).all()) and not bool((targets == targets[0]).all())
        if same and (not losses or losses[-1] > FLAT * _loss_of_shares(self.task.problem_type, targets)):
            raise _CollapsedError("it gives the same answer to every text")

    def cost_of(self, spec: Spec) -> dict[str, float]:
        """What one text costs a candidate and how large it is; an untrained model tells that as well."""
        key = (*_token_key(spec), repr(spec.head))
        if key not in self._costs:
            predictor = self.open(spec, np.arange(2), 0)[1]
            found = latency(predictor, *self._some_texts(), 1, 12)
            parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
            self._costs[key] = {"latency_ms": found["p50_ms"], "megabytes": round(parameters * 4 / 1e6, 2)}
        return self._costs[key]

    def _refuse_costly(self, cost: dict[str, float]) -> None:
        if self.max_latency is not None and cost["latency_ms"] > self.max_latency:
            raise _LimitError(f"takes {cost['latency_ms']:.1f} ms for a text; {self.max_latency:g} are allowed")
        if self.max_size is not None and cost["megabytes"] > self.max_size:
            raise _LimitError(f"has {cost['megabytes']:.1f} MB of weights; {self.max_size:g} are allowed")

    def _cost(self, request: Request, over: Callable[[], bool]) -> Outcome:
        """Measures thoroughly what a candidate costs to use."""
        predictor = self.open(Spec.from_dict(request.spec), np.arange(2), request.seed)[1]
        return Outcome("ok", extra={"cost": measure_cost(predictor, *self._some_texts(), repeats=30)})

    def _some_texts(self) -> tuple[list[str], list[str] | None]:
        split = self._splits[0]
        return split.texts(0, 256), split.texts_b(0, 256)

    def _refit(self, request: Request, over: Callable[[], bool]) -> Outcome:
        """Trains on all rows and saves the model; the folder appears when it is whole."""
        spec = Spec.from_dict(request.spec)
        training, predictor, tokens = self.open(
            spec, np.arange(len(self.targets)), request.seed, request.gradient_accumulation_steps
        )
        # A first model that sees every row once at most would wait for all of them to be stored, and gain nothing.
        hasty = request.trial < 0 and spec.recipe.epochs <= 1
        with nullcontext() if hasty else Starting(self, training, tokens, spec, over):
            for report in training.reports(9, stop=over):
                if not math.isfinite(report.loss):
                    raise _CollapsedError("its loss is not a number")
        # The first model is no candidate: a little trained it is better than none.
        if training.step < training.steps and (request.trial >= 0 or not training.step):
            raise _StoppedError
        self._save(training, predictor, request, "all training rows")
        return Outcome("ok", examples=training.examples)

    def _deliver(self, request: Request, over: Callable[[], bool]) -> Outcome:
        """Saves what the first whole training of a candidate gave."""
        if request.resume is None:
            raise HeadhuntError("There is no state to deliver.")
        spec = Spec.from_dict(request.spec)
        training, predictor, _ = self.open(spec, self.folds[0][0], request.seed, request.gradient_accumulation_steps)
        training.restore(Path(request.resume) / "part-0")
        self._save(training, predictor, request, "a part of the training rows")
        return Outcome("ok")

    def _members(self, request: Request, over: Callable[[], bool]) -> Outcome:
        """Saves a model of each of a candidate's trainings, as members of an ensemble."""
        if request.resume is None:
            raise HeadhuntError("There is no state to save models of.")
        spec = Spec.from_dict(request.spec)
        for number, (train, _) in enumerate(self.folds):
            if over():
                raise _StoppedError
            training, predictor, _ = self.open(spec, train, request.seed, request.gradient_accumulation_steps)
            training.restore(Path(request.resume) / f"part-{number}")
            place = Path(request.checkpoint) / f"{request.trial:06d}-{number}"
            self._save(training, predictor, replace(request, checkpoint=str(place)), "a part of the training rows")
        return Outcome("ok")

    def _answer(self, request: Request, over: Callable[[], bool]) -> Outcome:
        """Answers the test rows, with a saved model or with each of a candidate's trainings. Nobody else may."""
        if request.resume is None:
            raise HeadhuntError("There is no model to answer with.")
        source = Path(request.resume)
        test = open_task(self.folder / TASK, ("test",)).splits["test"]
        texts, second = test.texts(), test.texts_b()
        answers = []
        if (source / CARD).exists():
            loaded = Predictor.load(source, device=self.device, precision=self.precision)
            answers.append(loaded.outputs(texts, second))
        else:
            spec = Spec.from_dict(request.spec)
            for number, (train, _) in enumerate(self.folds):
                training, predictor, _ = self.open(spec, train, request.seed, request.gradient_accumulation_steps)
                training.restore(source / f"part-{number}")
                training.finish()
                answers.append(predictor.outputs(texts, second))
                if over():
                    raise _StoppedError
        _keep(Path(request.predictions), outputs=np.stack(answers).astype(np.float32))
        return Outcome("ok")

    def _save(self, training: Training, predictor: Predictor, request: Request, rows: str) -> None:
        training.finish()
        predictor.facts |= {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "task": {"name": self.task.name, "trained_on": rows},
            "trial": request.trial,
            "seed": request.seed,
            "versions": versions(),
        }
        out = Path(request.checkpoint)
        partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        predictor.save(partial, card=False)
        shutil.rmtree(out, ignore_errors=True)
        partial.replace(out)

    def open(
        self, spec: Spec, rows: np.ndarray, seed: int, gradient_accumulation_steps: int = 1
    ) -> tuple[Training, Predictor, Tokens]:
        """A training of a candidate on some rows, the predictor it trains, and the tokens of all rows."""
        if spec.encoder not in self._tokenizers:
            self._tokenizers[spec.encoder] = load_tokenizer(spec.encoder, self.trust)
        tokenizer = self._tokenizers[spec.encoder]
        model, spec = assemble(self.task, spec, tokenizer, seed=seed, trust_remote_code=self.trust)
        tokens = self._tokens_for(spec, tokenizer)
        training, predictor = _join(
            self.task, spec, model, tokenizer, tokens.take(rows), self.targets[rows], seed, self.device, self.precision,
            gradient_accumulation_steps,
        )  # fmt: skip
        return training, predictor, tokens

    def _tokens_for(self, spec: Spec, tokenizer: Any) -> Tokens:
        key = _token_key(spec)
        if key not in self._tokens:
            texts = [text for split in self._splits for text in split.texts()]
            second = [text for split in self._splits for text in split.texts_b() or []] if self.task.pair else None
            self._tokens[key] = tokenise_for(spec, tokenizer, texts, second)
        return self._tokens[key]

    def stores(self, spec: Spec, tokens: Tokens) -> list[ActivationCache]:
        """Where the activations of this candidate's rows are found; none where it trains the embeddings."""
        if not self._stored or spec.recipe.freeze == "none":
            return []
        if spec.encoder not in self._bottoms:
            self._bottoms[spec.encoder] = FrozenEncoder(
                spec.encoder, device=self.device, precision=self.precision, trust_remote_code=self.trust
            )
        ways: dict[str, Callable[[], Tokens]] = {"joint": lambda: tokens}
        if spec.head.siamese:
            ways = {"apart": tokens.apart}
        elif self.task.pair and spec.recipe.swap_pairs:
            ways["swapped"] = tokens.swapped
        found = []
        for way, make in ways.items():
            key = (*_token_key(spec), way)
            if key not in self._stores:
                self._stores[key] = ActivationCache(
                    self._bottoms[spec.encoder], make(), activations_folder(), self._budget
                )
            found.append(self._stores[key])
        return found


class Starting:
    """For as long as it lasts, a training starts from stored activations, as high as its recipe allows."""

    def __init__(
        self,
        bench: TrialRunner,
        training: Training,
        tokens: Tokens,
        spec: Spec,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        stores = bench.stores(spec, tokens)
        for store in stores:
            store.stop = over
        self._attached = attach(training.model, stores, spec.recipe) if stores else None
        self.layer = self._attached.layer if self._attached else None

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._attached is not None:
            self._attached.remove()


class _Part:
    """What became of one part."""

    def __init__(self, outputs: np.ndarray, examples: int, losses: list[float], layer: int | None) -> None:
        self.outputs, self.examples, self.losses, self.layer = outputs, examples, losses, layer


class _StoppedError(Exception):
    """The deadline has come, or somebody asked to stop."""


class _LimitError(Exception):
    """The candidate is slower or larger than it may be."""


class _CollapsedError(Exception):
    """The candidate has learned nothing."""


def plan(task: Task, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each training of a candidate the rows it learns from and those it is judged on.

    Positions count the training rows first, then the validation rows where the user gave some.
    """
    train = len(task.splits["train"])
    if "validation" in task.splits:
        return [(np.arange(train), train + np.arange(len(task.splits["validation"])))]
    folds = folds_of({name: len(split) for name, split in task.splits.items()})
    if folds > 1:
        return task.folds(folds, seed)
    return task.folds(max(5, round(train / HELD_OUT)), seed)[:1]


def probe(spec: Spec) -> Spec:
    """The candidate as the probe trains it: its head alone, the encoder as it came."""
    recipe = replace(
        PROBE,
        label_smoothing=spec.recipe.label_smoothing,
        class_weights=spec.recipe.class_weights,
        max_length=spec.recipe.max_length,
        truncation=spec.recipe.truncation,
    )
    return replace(spec, recipe=recipe).canonical()


def prepare(
    task: Task,
    rows: Split,
    spec: Spec,
    *,
    seed: int = 0,
    device: str | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> tuple[Training, Predictor]:
    """A training of `spec` on `rows` that is ready to start, and the predictor it trains."""
    tokenizer = load_tokenizer(spec.encoder, trust_remote_code)
    model, spec = assemble(task, spec, tokenizer, seed=seed, trust_remote_code=trust_remote_code)
    tokens = tokenise_for(spec, tokenizer, rows.texts(), rows.texts_b())
    return _join(task, spec, model, tokenizer, tokens, rows.targets, seed, pick_device(device), precision)


def assemble(
    task: Task, spec: Spec, tokenizer: Any, *, seed: int = 0, trust_remote_code: bool = False
) -> tuple[Any, Spec]:
    """The untrained model of a candidate, and the candidate with a length its encoder can take."""
    if spec.head.siamese and not task.pair:
        raise ModelError(f"A siamese head ({spec.head.siamese}) compares two texts; this task has one.")
    model = build(
        spec.encoder,
        spec.head,
        problem_type=task.problem_type,
        labels=task.labels,
        separators=SpecialTokens.of(tokenizer, pair=True).between if task.pair else (),
        encoder_dropout=spec.recipe.encoder_dropout,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    limit = longest_input(model)
    if limit is not None and spec.recipe.max_length > limit:
        spec = replace(spec, recipe=replace(spec.recipe, max_length=limit))  # no encoder reads beyond its positions
    return model, spec


def tokenise_for(spec: Spec, tokenizer: Any, texts: list[str], texts_b: list[str] | None) -> Tokens:
    """Texts as a candidate reads them."""
    return tokenise(
        tokenizer,
        texts,
        texts_b,
        max_length=spec.recipe.max_length,
        truncation=spec.recipe.truncation,
        each=spec.head.siamese is not None,
    )


def _join(
    task: Task,
    spec: Spec,
    model: Any,
    tokenizer: Any,
    tokens: Tokens,
    targets: np.ndarray,
    seed: int,
    device: torch.device,
    precision: str,
    gradient_accumulation_steps: int = 1,
) -> tuple[Training, Predictor]:
    objective = Objective.of(task.problem_type, targets, max(1, len(task.labels)), spec.recipe)
    training = Training(
        model,
        tokens,
        targets,
        objective,
        spec.recipe,
        seed=seed,
        device=device,
        precision=precision,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    predictor = Predictor(
        model,
        tokenizer,
        problem_type=task.problem_type,
        labels=task.labels,
        pair=task.pair,
        spec=spec,
        device=device,
        precision=precision,
    )
    return training, predictor


def _token_key(spec: Spec) -> tuple[Any, ...]:
    return (spec.encoder, spec.recipe.max_length, spec.recipe.truncation, spec.head.siamese is not None)


def _loss_of_shares(problem_type: str, targets: np.ndarray) -> float:
    """The loss of a model that knows nothing but how common each answer is."""
    if problem_type == "regression":
        return 1.0
    if problem_type == "multi_label_classification":
        p = targets.mean(0).clip(1e-9, 1 - 1e-9)
        return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).mean())
    p = np.bincount(targets) / len(targets)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def _keep(path: Path, **arrays: np.ndarray) -> None:
    """Writes arrays, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def _link(source: Path, target: Path) -> None:
    """Gives files a second name, or copies them where the disk knows no such thing."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except FileExistsError:
            continue
        except OSError:
            shutil.copyfile(file, target / file.name)


def activations_folder() -> Path:
    """Where activations are stored on this machine."""
    home = Path(os.environ.get("HEADHUNT_CACHE") or Path.home() / ".cache" / "headhunt")
    folder = home / "activations"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def limit_memory(more: int) -> None:
    """Lets this process take so many bytes more: a candidate that wants too much then fails alone."""
    try:
        import resource

        status = Path("/proc/self/status").read_text()
        held = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (held + more, hard))
    except (ImportError, OSError, StopIteration, ValueError):
        pass  # other systems: left to the executor, which finds the worker lost


def versions() -> dict[str, str]:
    """What a result depends on."""
    names = ("headhunt", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), "platform": sys.platform, **{name: version(name) for name in names}}
