"""Measure the test accuracy of Headhunt and of `transformers.Trainer` with the same recipe.

Both train the plain head on 500 rows of SST-2.

    python benchmarks/parity.py --data DIR --out benchmarks/results/parity.json
"""

from __future__ import annotations

import tempfile
from statistics import mean

import numpy as np
from measure import encoder_folder, finish, options

from headhunt.data import Task
from headhunt.engine import api
from headhunt.spec import Recipe, Spec

# The schedule has the same name in Trainer. The rest are its defaults: AdamW without decay, clipping at 1, fp32.
RECIPE = Recipe(
    learning_rate=5e-5, epochs=10, batch_size=32, weight_decay=0.0, schedule="cosine", warmup=0.06, max_length=128
)


def headhunt_accuracy(task: Task, encoder: str, recipe: Recipe, seed: int) -> float:
    """Train with Headhunt and return the test accuracy."""
    spec = Spec(encoder=encoder, recipe=recipe)
    training, predictor = api.prepare(task, task.splits["train"], spec, seed=seed)
    for _ in training.reports():
        pass
    training.finish()
    return api.score(predictor, task.splits["test"]).scores["accuracy"].value


def trainer_accuracy(task: Task, encoder: str, recipe: Recipe, seed: int) -> float:
    """Train with `transformers.Trainer` and return the test accuracy."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=len(task.labels))

    def rows(name: str) -> list[dict]:
        split = task.splits[name]
        encoded = tokenizer(split.texts(), truncation=True, max_length=recipe.max_length, padding=False)
        return [
            {**{key: values[i] for key, values in encoded.items()}, "labels": int(target)}
            for i, target in enumerate(split.targets)
        ]

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            learning_rate=recipe.learning_rate,
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=recipe.batch_size,
            per_device_eval_batch_size=64,
            lr_scheduler_type=recipe.schedule,
            warmup_steps=recipe.warmup,
            weight_decay=recipe.weight_decay,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model, arguments, train_dataset=rows("train"), data_collator=DataCollatorWithPadding(tokenizer)
        )
        trainer.train()
        predicted = trainer.predict(rows("test")).predictions.argmax(-1)
    return float(np.mean(predicted == task.splits["test"].targets))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    recipe, rows, seeds = RECIPE, 500, range(args.seeds)
    if args.quick:
        recipe, rows, seeds = Recipe(**{**RECIPE.__dict__, "epochs": 1.0}), 64, range(1)
    task = Task.load(args.data / "sst2", limit=rows, seed=0)
    scores: dict[str, list[float]] = {"headhunt": [], "trainer": []}
    for seed in seeds:
        for name, run in (("headhunt", headhunt_accuracy), ("trainer", trainer_accuracy)):
            scores[name].append(round(100 * run(task, encoder, recipe, seed), 2))
            print(f"seed {seed} {name}: {scores[name][-1]}", flush=True)
    means = {name: round(mean(values), 2) for name, values in scores.items()}
    difference = round(means["headhunt"] - means["trainer"], 2)
    finish(args, {**means, "difference": difference, "seeds": scores, "rows": rows})


if __name__ == "__main__":
    main()
