"""Damage the configuration or the tokenizer of a model folder, and load each in a process of its own with limits.

python tests/fuzz_models.py FOLDER INPUTS prints how many folders were loaded, refused, and broke a promise.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mutations import damaged_json

from headhunt.errors import ModelError
from headhunt.predictor import Predictor

SECONDS, BYTES = 120, 8 << 30  # of processor time and of address space, for one folder
ENDS = {0: "loaded", 1: "refused", 2: "traceback"}
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
HOSTILE = {
    "tokenizer.json": [
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 40}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}},
        {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Right"}},
        {"padding": {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}},
    ],
    "config.json": [
        {"attn_implementation": "someone/kernel"},
        {"quantization_config": {"quant_method": "awq"}},
        {"hidden_size": 1 << 40},
        {"num_hidden_layers": 1 << 20},
        {"max_position_embeddings": -1},
        {"auto_map": {"AutoModelForSequenceClassification": "model.Model"}},
    ],
}


def load(folder: Path) -> str:
    """Load a folder in a forked process and return how that ended."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            Predictor.load(folder, device=torch.device("cpu"))
        except ModelError:
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return (
        ENDS[os.waitstatus_to_exitcode(status)] if os.WIFEXITED(status) else f"killed by signal {os.WTERMSIG(status)}"
    )


def fuzz(source: Path, inputs: int) -> Counter[str]:
    """Return how often a load ended in each way."""
    tally: Counter[str] = Counter()
    documents = {name: json.loads((source / name).read_text()) for name in HOSTILE}

    def attempt(folder: Path, name: str, content: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder, copy_function=os.link)
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        end = load(folder)
        if end not in ("loaded", "refused"):
            print(name, content[:2000], file=sys.stderr)
        tally[end] += 1

    with tempfile.TemporaryDirectory(dir=source.parent) as base:
        folder = Path(base) / "model"
        for name, changes in HOSTILE.items():
            for change in changes[: max(1, inputs // 4)]:
                attempt(folder, name, json.dumps({**documents[name], **change}).encode())

        @seed(1)
        @settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from(sorted(documents)).flatmap(lambda n: st.tuples(st.just(n), damaged_json(documents[n]))))
        def damage(damaged: tuple[str, bytes]) -> None:
            if sum(tally.values()) < inputs:
                attempt(folder, *damaged)

        damage()
    return tally


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(fuzz(Path(sys.argv[1]), int(sys.argv[2]))))
