"""Measure the speed of training and prediction, compared with a hand-written loop and `transformers.Trainer`.

All runs share one process and take turns; the best time of each counts. Training: 512 rows of SST-2, no layer frozen,
batches of 32. The hand-written loop uses the batches and the precision of Headhunt; Trainer uses its default settings.
`epoch_vs_pass` is the time of an epoch relative to a pass of the same rows through the frozen encoder.
Prediction: 10,000 texts, including tokenization.

    python benchmarks/throughput.py --data DIR --out benchmarks/results/throughput.json
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np
import torch
from measure import encoder_folder, finish, interleaved, options

from headhunt.data import Task
from headhunt.engine import api
from headhunt.predictor import BATCH
from headhunt.spec import Recipe, Spec
from headhunt.training.device import autocast, pick_device
from headhunt.training.features import Features
from headhunt.training.tokens import by_length, shuffled_by_length

RECIPE = Recipe(learning_rate=5e-5, epochs=1, batch_size=32, freeze="none", max_length=128)


def headhunt_epoch(task: Task, encoder: str) -> Callable[[], object]:
    """Return a function that trains one epoch with Headhunt."""
    training, _ = api.prepare(task, task.splits["train"], Spec(encoder=encoder, recipe=RECIPE))

    def run() -> None:
        training.step = training.examples = 0
        for _ in training.reports():
            pass

    return run


def encoder_pass(task: Task, encoder: str) -> Callable[[], object]:
    """Return a function that passes the rows of an epoch through the frozen encoder once, as for a solved head."""
    training, predictor = api.prepare(task, task.splits["train"], Spec(encoder=encoder, recipe=RECIPE))
    return lambda: Features(predictor.model.eval(), training.tokens).get(np.arange(len(training.tokens)))


def bare_epoch(task: Task, encoder: str) -> Callable[[], object]:
    """Return a function that trains one epoch in a hand-written loop, with prepared batches and the same precision."""
    training, _ = api.prepare(task, task.splits["train"], Spec(encoder=encoder, recipe=RECIPE))
    model, tokens, device = training.model, training.tokens, training.device
    order = list(shuffled_by_length(tokens.lengths, RECIPE.batch_size, np.random.default_rng([0, 0])))
    batches = [({k: v.to(device) for k, v in tokens.batch(rows).items()}, training.targets[rows]) for rows in order]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.learning_rate, weight_decay=0.01, fused=True)

    def run() -> None:
        model.train()
        for inputs, targets in batches:
            with autocast(device, "auto"):
                loss = torch.nn.functional.cross_entropy(model(**inputs).logits.float(), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def trainer_epoch(task: Task, encoder: str, folder: str) -> Callable[[], object]:
    """Return a function that trains one epoch with `transformers.Trainer`."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=len(task.labels))
    split = task.splits["train"]
    encoded = tokenizer(split.texts(), truncation=True, max_length=RECIPE.max_length, padding=False)
    rows = [
        {**{key: values[i] for key, values in encoded.items()}, "labels": int(target)}
        for i, target in enumerate(split.targets)
    ]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=RECIPE.batch_size,
        num_train_epochs=1,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer))
    return lambda: trainer.train()


def prediction(task: Task, encoder: str, texts: list[str]) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return two functions that predict the texts: with Headhunt, and in a hand-written loop.

    Both use the same tokenizer, batch size, order by length and precision.
    """
    _, predictor = api.prepare(task, task.splits["train"], Spec(encoder=encoder, recipe=RECIPE))

    def bare() -> np.ndarray:
        encoded = predictor.tokenizer(texts, truncation=True, max_length=RECIPE.max_length)["input_ids"]
        lengths = np.array([len(ids) for ids in encoded])
        outputs = np.empty((len(texts), 2), np.float32)
        model = predictor.model.eval()
        with torch.inference_mode(), autocast(predictor.device, "auto"):
            for rows in by_length(lengths, BATCH):
                width = lengths[rows].max()
                ids = torch.tensor([encoded[i] + [0] * (width - lengths[i]) for i in rows])
                logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
                outputs[rows] = logits.float().softmax(-1).numpy()
        return outputs

    return lambda: predictor.outputs(texts), bare


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats of each run")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    rows, count, repeats = (64, 500, 3) if args.quick else (512, 10_000, args.repeats)
    task = Task.load(args.data / "sst2", limit=rows, seed=0)
    texts = Task.load(args.data / "sst2", seed=0).splits["train"].texts(0, count)
    with tempfile.TemporaryDirectory() as folder:
        predict, bare_predict = prediction(task, encoder, texts)
        runs = {
            "headhunt": headhunt_epoch(task, encoder),
            "bare": bare_epoch(task, encoder),
            "trainer": trainer_epoch(task, encoder, folder),
            "pass": encoder_pass(task, encoder),
            "predict": predict,
            "bare_predict": bare_predict,
        }
        times = interleaved(runs, repeats, warm=not args.quick)
    best = {name: min(values) for name, values in times.items()}
    finish(
        args,
        {
            "train_vs_bare": round(best["bare"] / best["headhunt"], 3),
            "train_vs_trainer": round(best["trainer"] / best["headhunt"], 3),
            "epoch_vs_pass": round(best["headhunt"] / best["pass"], 2),
            "predict_vs_bare": round(best["bare_predict"] / best["predict"], 3),
            "seconds": {name: [round(value, 2) for value in values] for name, values in times.items()},
            "device": str(pick_device()),
            "threads": torch.get_num_threads(),
        },
    )


if __name__ == "__main__":
    main()
