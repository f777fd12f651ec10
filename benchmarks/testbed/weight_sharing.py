"""Measure whether heads that are trained together on one encoder can be compared that way.

With weight sharing, one encoder is trained with many heads at once: every batch passes through the encoder once, and
each head learns from its hidden states. The encoder's gradient is the mean over heads. One training run then gives
every head a score, where a search trains each candidate by itself on one fold.

Both are compared on candidates of the testbed that train the encoder, by the first fold: Kendall's tau of the score
with the test score of each candidate's own models, and the test score of the candidate that is chosen at equal cost.
Weight sharing chooses among all candidates. For the same processor time, one fold chooses among as many random
candidates as that time allows. Candidates with equal heads differ in the learning rate of the head only, since the
encoder is trained with one recipe.

    python benchmarks/testbed/weight_sharing.py --data DIR --sets mpqa clinc30
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rank import draw_weights, interval, signs, weighted_tau
from sets import SETS, draw_set
from specs import TableSpec
from table import SetTable, Table

SAMPLES = 2_000
BATCH = 32
LEARNING_RATE = 1e-4  # of the encoder
MAX_LENGTH = 128
SEED = 0


@dataclass(frozen=True)
class SharedRun:
    """Scores of heads that were trained together."""

    epochs: float
    cpu_seconds: float
    scores: list[float]
    """Accuracy on the rows of the first fold, by head."""


@dataclass(frozen=True)
class FirstFold:
    """Texts and classes of the first fold."""

    texts: list[str]
    targets: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    classes: int


def shared_candidates(stored: SetTable, items: Sequence[TableSpec]) -> list[TableSpec]:
    """Return the candidates of a set that train the encoder, without SMART."""
    tuned = [item for item in items if item.spec.recipe.freeze != "all" and item.spec.recipe.smart is None]
    return [item for item in tuned if item.hash in stored.scored]


def load_first_fold(name: str, data: Path, stored: SetTable) -> FirstFold:
    """Draw the rows of a set again, and split them as the table did."""
    from headhunt.data import Task

    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_set(SETS[name], data, Path(folder), None, 0)
        if drawn.fingerprint != stored.info.fingerprint:
            raise SystemExit(f"{name} must be drawn from the same data as the table; its rows differ.")
        task = Task.load(drawn.train, test=drawn.test, problem_type=SETS[name].problem_type)  # type: ignore[arg-type]
        train = task.splits["train"]
        texts, targets = list(train.texts()), train.targets
    validation = stored.arrays["rows"][stored.arrays["folds"] == 0]
    rest = np.setdiff1d(np.arange(len(texts)), validation)
    return FirstFold(texts, targets, rest, validation, len(task.labels))


def train_together(
    fold: FirstFold, items: Sequence[TableSpec], encoder: str, epochs: Sequence[float]
) -> list[SharedRun]:
    """Train all heads on one encoder; return their scores after each number of epochs."""
    import torch
    from torch.nn import functional
    from transformers import AutoModel, AutoTokenizer

    from headhunt.modeling.heads import HeadModule

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    began = time.process_time()
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder)
    width, states = model.config.hidden_size, model.config.num_hidden_layers + 1
    heads = torch.nn.ModuleList(
        HeadModule(item.spec.head, width=width, states=states, outputs=fold.classes) for item in items
    )
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": LEARNING_RATE}]
    for item, head in zip(items, heads, strict=True):
        recipe = item.spec.recipe
        groups.append({"params": list(head.parameters()), "lr": recipe.learning_rate * recipe.head_lr_multiplier})
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    per_epoch = -(-len(fold.train) // BATCH)
    total = round(max(epochs) * per_epoch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    rng = np.random.default_rng(SEED)
    targets = torch.as_tensor(fold.targets)

    def logits(rows: np.ndarray, scale: float) -> list[torch.Tensor]:
        batch = tokenizer(
            [fold.texts[row] for row in rows], padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
        )
        hidden = model(**batch, output_hidden_states=True).hidden_states
        hidden = tuple(state * scale + state.detach() * (1 - scale) for state in hidden)  # the mean of the gradients
        mask = batch["attention_mask"].bool()
        return [head(hidden if head.several_layers else hidden[-1:], mask) for head in heads]

    def score() -> list[float]:
        for module in (model, heads):
            module.eval()
        right = np.zeros(len(heads))
        with torch.inference_mode():
            for rows in np.array_split(fold.validation, -(-len(fold.validation) // BATCH)):
                right += [(out.argmax(1) == targets[rows]).sum().item() for out in logits(rows, 1.0)]
        for module in (model, heads):
            module.train()
        return [float(each) for each in right / len(fold.validation)]

    runs: list[SharedRun] = []
    ends = {round(each * per_epoch): each for each in epochs}
    step = 0
    model.train()
    while step < total:
        order = rng.permutation(fold.train)
        for rows in np.array_split(order, per_epoch):
            losses = [functional.cross_entropy(out, targets[rows]) for out in logits(rows, 1 / len(heads))]
            torch.stack(losses).sum().backward()
            for group in groups:
                torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step in ends:
                runs.append(SharedRun(ends[step], time.process_time() - began, score()))
            if step == total:
                break
    return runs


def chosen_score(scores: np.ndarray, test: np.ndarray) -> float:
    """Return the test score of the candidate with the best score; the mean where several share it."""
    return float(test[scores == scores.max()].mean())


def compare(stored: SetTable, items: Sequence[TableSpec], runs: Sequence[SharedRun], samples: int) -> dict[str, Any]:
    """Return tau and the chosen test score of each shared run, beside one fold at equal cost."""
    specs = [item.hash for item in items]
    test = np.array([stored.test_score(spec) for spec in specs])
    one_fold = np.array([stored.score(spec, 1) for spec in specs])
    costs = np.array([_first_fold_seconds(stored, spec) for spec in specs])
    rng = np.random.default_rng(SEED)
    weights = draw_weights(len(test), samples, rng)

    def tau(values: np.ndarray) -> dict[str, Any]:
        own, others = signs(values), signs(test)
        drawn = [weighted_tau(own, others, each) for each in weights]
        value = weighted_tau(own, others, np.ones(len(test)))
        return {"tau": round(value, 3), "tau_interval": interval(drawn)}

    result: dict[str, Any] = {
        "candidates": len(items),
        "test_best": round(float(test.max()), 4),
        "test_mean": round(float(test.mean()), 4),
        "one_fold": tau(one_fold)
        | {"chosen": round(chosen_score(one_fold, test), 4), "cpu_seconds": round(costs.sum())},
        "shared": [],
    }
    for run in runs:
        scores = np.array(run.scores)
        count = int(np.clip(run.cpu_seconds // costs.mean(), 1, len(test)))
        random = [rng.permutation(len(test))[:count] for _ in range(samples)]
        beside = [chosen_score(one_fold[chosen], test[chosen]) for chosen in random]
        row = {"epochs": run.epochs, "cpu_seconds": round(run.cpu_seconds), **tau(scores)}
        row |= {"chosen": round(chosen_score(scores, test), 4), "one_fold_candidates": count}
        row |= {"one_fold_chosen": round(float(np.mean(beside)), 4), "one_fold_interval": interval(beside)}
        result["shared"].append(row)
    return result


def _first_fold_seconds(stored: SetTable, spec: str) -> float:
    """Return the processor seconds of a candidate's first fold."""
    first = 1 / stored.info.folds + 1e-6
    return sum(rung.reference_seconds for rung in stored.entries[spec].rungs if rung.fraction <= first)


def parse_arguments() -> argparse.Namespace:
    from measure import options

    parser = options(__doc__)
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "table", help="directory of the table")
    parser.add_argument("--sets", nargs="*", default=["mpqa", "clinc30"], help="sets of one text with classes")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    from measure import encoder_folder, finish

    table, encoder = Table(args.table), encoder_folder(args.encoder)
    epochs = [0.2] if args.quick else [10 / 3, 10.0]
    result: dict[str, Any] = {}
    for name in args.sets:
        stored = table.sets[name]
        items = shared_candidates(stored, table.specs(stored.info.pair))
        runs = train_together(load_first_fold(name, args.data, stored), items, encoder, epochs)
        result[name] = compare(stored, items, runs, 200 if args.quick else SAMPLES)
        print(name, result[name], flush=True)
    finish(args, result)


if __name__ == "__main__":
    main()
