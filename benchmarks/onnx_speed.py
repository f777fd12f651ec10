"""Measure the speed of an exported ONNX model compared with torch, and the loss of accuracy with 8-bit weights.

The model is the plain head on SST-2 with 500 training rows. The time is from token ids to probabilities, including
padding, with the same rows and threads. The models take turns; a ratio compares the best times of each batch, p50 and
p99 are of all calls.

    python benchmarks/onnx_speed.py --data DIR --out benchmarks/results/onnx_speed.json
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import encoder_folder, finish, options

from headhunt.data import Task
from headhunt.delivery.onnx.export import export
from headhunt.delivery.onnx.runtime import Model
from headhunt.engine import api
from headhunt.predictor import Predictor
from headhunt.spec import plain

Run = Callable[[np.ndarray], Any]


def with_torch(folder: Path, precision: str, texts: list[str]) -> Run:
    """Return a function that predicts rows of the texts with torch."""
    predictor = Predictor.load(folder, device=torch.device("cpu"), precision=precision)
    tokens = predictor.tokenise(texts)
    context = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")

    def run(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), context:
            return predictor.model(**tokens.batch(rows)).logits.float().softmax(-1).numpy()

    return run


def with_onnx(folder: Path, threads: int, texts: list[str]) -> Run:
    """Return a function that predicts rows of the texts with ONNX Runtime."""
    model = Model(folder, threads)
    encoded = model.encode(texts)
    return lambda rows: model.run([encoded[i] for i in rows])


def time_batches(runs: dict[str, Run], batches: list[np.ndarray], repeats: int) -> dict[str, np.ndarray]:
    """Return the seconds of every call (repeats, batches); the models take turns, and the first turn is a warm-up."""
    times: dict[str, list[list[float]]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            seconds = []
            for rows in batches:
                started = time.perf_counter()
                run(rows)
                seconds.append(time.perf_counter() - started)
            if turn:
                times[name].append(seconds)
            print(f"{turn} batch {len(batches[0])} {name}: {sum(seconds):.2f} s", flush=True)
    return {name: np.array(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of both runtimes")
    args = parser.parse_args()
    encoder = encoder_folder(args.encoder)
    rows, repeats, singles, full = (64, 2, 40, 2) if args.quick else (500, 7, 300, 20)
    torch.set_num_threads(args.threads)
    task = Task.load(args.data / "sst2", limit=rows, seed=0)
    spec = plain(encoder, rows)
    if args.quick:
        spec = replace(spec, recipe=replace(spec.recipe, epochs=1.0))
    result: dict[str, Any] = {"threads": args.threads, "rows": rows}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        training, predictor = api.prepare(task, task.splits["train"], spec)
        for _ in training.reports():
            pass
        training.finish()
        predictor.save(folder / "model")
        export(folder / "model", folder / "fp32")
        quantized = export(folder / "model", folder / "int8", int8=True, max_loss=100, data=args.data / "sst2")
        assert quantized.int8 is not None
        result |= {
            "difference": float(f"{quantized.difference:.2g}"),
            "int8_loss": round(quantized.int8.loss, 2),
            "accuracy_fp32": round(100 * quantized.int8.fp32, 2),
            "accuracy_int8": round(100 * quantized.int8.int8, 2),
            "test_rows": quantized.int8.rows,
            "megabytes": {name: round(size(folder / name) / 1e6, 1) for name in ("fp32", "int8")},
        }
        texts = task.splits["test"].texts()
        runs = {
            "torch": with_torch(folder / "model", "fp32", texts),
            "torch_bf16": with_torch(folder / "model", "bf16", texts),
            "onnx": with_onnx(folder / "fp32", args.threads, texts),
            "onnx_int8": with_onnx(folder / "int8", args.threads, texts),
        }
        order = np.random.default_rng(0).permutation(len(texts))
        for batch, count in ((1, singles), (32, full)):
            times = time_batches(runs, list(order[: batch * count].reshape(count, batch)), repeats)
            best = {name: float(seconds.min(0).sum()) for name, seconds in times.items()}
            result |= {
                f"onnx_vs_torch_batch{batch}": round(best["torch"] / best["onnx"], 2),
                f"onnx_vs_torch_bf16_batch{batch}": round(best["torch_bf16"] / best["onnx"], 2),
                f"int8_vs_torch_bf16_batch{batch}": round(best["torch_bf16"] / best["onnx_int8"], 2),
                f"int8_vs_fp32_speed_batch{batch}": round(best["onnx"] / best["onnx_int8"], 2),
                f"ms_batch{batch}": {name: percentiles(seconds) for name, seconds in times.items()},
            }
    finish(args, {**result, "int8_vs_fp32_speed": result["int8_vs_fp32_speed_batch32"]})


def size(folder: Path) -> int:
    """Return the bytes of an exported model."""
    return (folder / "model.onnx").stat().st_size


def percentiles(times: np.ndarray) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds."""
    return {f"p{q}": round(1e3 * float(np.percentile(times, q)), 2) for q in (50, 99)}


if __name__ == "__main__":
    main()
