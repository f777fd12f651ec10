"""Choose encoders: check the ones that were given, or list the ones that suit the texts and the hardware.

No model is loaded, so that a search does not wait for what builds them.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headhunt.errors import HeadhuntError, ModelError
from headhunt.spec import DEFAULT_ENCODER, Recipe
from headhunt.storage import read_json

if TYPE_CHECKING:
    from headhunt.data import Task

AUTO = "auto"
BYTES = 4
"""Bytes of one parameter in fp32."""


@dataclass(frozen=True)
class KnownEncoder:
    """An encoder that `encoder="auto"` may choose.

    Attributes:
        name: The name on the Hugging Face Hub.
        parameters: Millions of parameters.
        layers: Number of layers.
        width: Width of the token vectors.
        languages: "en" or "multilingual".
        hardware: The least hardware on which it is offered, "cpu" or "gpu".
        licence: SPDX identifier of the licence.
        layer_cost: Multiplications of one layer for one token, divided by width².
    """

    name: str
    parameters: float
    layers: int
    width: int
    languages: Literal["en", "multilingual", "unknown"]
    hardware: Literal["cpu", "gpu"]
    licence: str
    layer_cost: float = 12.0

    @property
    def size(self) -> float:
        """The size of the fp32 weights in MB."""
        return self.parameters * BYTES

    @property
    def cost(self) -> float:
        """The cost of a forward pass per token, relative to the default encoder: 6 layers of width 384."""
        return self.layers * self.width**2 * self.layer_cost / (6 * 384**2 * 12.0)


KNOWN = (
    KnownEncoder("sentence-transformers/paraphrase-MiniLM-L3-v2", 17.4, 3, 384, "en", "cpu", "Apache-2.0"),
    KnownEncoder(DEFAULT_ENCODER, 22.7, 6, 384, "en", "cpu", "Apache-2.0"),
    KnownEncoder("ibm-granite/granite-embedding-30m-english", 30.3, 6, 384, "en", "cpu", "Apache-2.0"),
    KnownEncoder("BAAI/bge-small-en-v1.5", 33.4, 12, 384, "en", "cpu", "MIT"),
    KnownEncoder("thenlper/gte-small", 33.4, 12, 384, "en", "cpu", "MIT"),
    KnownEncoder("intfloat/multilingual-e5-small", 117.7, 12, 384, "multilingual", "cpu", "MIT"),
    KnownEncoder(
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        117.7,
        12,
        384,
        "multilingual",
        "cpu",
        "Apache-2.0",
    ),
    KnownEncoder("BAAI/bge-base-en-v1.5", 109.5, 12, 768, "en", "gpu", "MIT"),
    KnownEncoder("sentence-transformers/all-mpnet-base-v2", 109.5, 12, 768, "en", "gpu", "Apache-2.0"),
    KnownEncoder("FacebookAI/roberta-base", 124.6, 12, 768, "en", "gpu", "MIT"),
    KnownEncoder("intfloat/multilingual-e5-base", 278.0, 12, 768, "multilingual", "gpu", "MIT"),
    KnownEncoder("answerdotai/ModernBERT-base", 149.0, 22, 768, "en", "gpu", "Apache-2.0", layer_cost=8.5),
    KnownEncoder("microsoft/deberta-v3-base", 183.8, 12, 768, "en", "gpu", "MIT", layer_cost=18.0),
)
"""Encoders that `encoder="auto"` chooses from, cheapest first."""
_BY_NAME = {entry.name: entry for entry in KNOWN}

FAMILIES = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
    *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta"),
)
"""Values of `model_type` of encoders that are taken from the local cache although they are not in `KNOWN`."""

GATED = ("modernbert", "nomic_bert")  # their feed-forward layers have three matrices, not two
DISENTANGLED = ("deberta", "deberta-v2")  # three attention scores per pair of tokens, not one: half as much again

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spm.model", "spiece.model")
REACHABLE_SECONDS = 2.0

# Frequent English words that are not words of other languages in Latin script.
ENGLISH = frozenset(
    {"the", "and", "of", "to", "is", "that", "it", "for", "you", "with", "this", "are", "what", "how", "my"}
    | {"not", "be", "have", "at", "can", "from", "by", "or", "but", "if", "your", "they", "which", "there"}
)
SAMPLE_TEXTS, SAMPLE_CHARACTERS = 200, 500
MEASURED_TEXTS, CUT_SHARE = 1000, 0.05  # windows are offered if this share of the first texts is cut


def resolve_encoders(
    given: str | Path | Sequence[str | Path] | None,
    *,
    texts: Sequence[str] = (),
    max_size: float | None = None,
    gpu: bool = False,
    offline: bool | None = None,
    trust_remote_code: bool = False,
) -> tuple[str, ...]:
    """Return the encoders to try. The first one is the encoder of the baseline.

    Args:
        given: None for the default encoder; a name or folder; several, as a sequence or separated by commas; or "auto"
            for those of `KNOWN` that suit the other arguments: the default encoder, then the cheapest first.
        texts: Texts of the task, from which "auto" guesses the language.
        max_size: Maximum size of an encoder that "auto" chooses, in MB of fp32 weights.
        gpu: Let "auto" choose encoders that are slow on a CPU.
        offline: Let "auto" choose from the local Hugging Face cache only: `KNOWN` and other encoders of known
            architectures. By default, if HF_HUB_OFFLINE is set or the hub cannot be reached.
        trust_remote_code: Allow code that comes with an encoder to run.

    Raises:
        HeadhuntError: If an encoder cannot be loaded or is given twice, or if "auto" finds none.
    """
    if given is None:
        return (DEFAULT_ENCODER,)
    names = find_encoders(given)
    if names == [AUTO]:
        return _choose(guess_language(texts), max_size, gpu, is_offline() if offline is None else offline)
    if AUTO in names:
        raise HeadhuntError(f'"auto" must be given alone; found {", ".join(names)}.')
    _check(names, trust_remote_code)
    return tuple(names)


def find_encoders(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the names and folders of encoders without the commas between them, as `find_encoder` completes them."""
    return [name if name == AUTO else find_encoder(name) for name in _split(given)]


def find_encoder(name: str) -> str:
    """Return a folder or the complete name of an encoder: `all-MiniLM-L6-v2` may stand for one in the local cache.

    Nothing of transformers is loaded, and without a network nothing is retried, so that a wrong name is refused soon.

    Raises:
        ModelError: If there is no such folder, or the encoder is not in the cache and cannot be downloaded.
    """
    from huggingface_hub import constants

    folder = name.startswith((".", "/", "~"))
    cache = Path(constants.HF_HUB_CACHE)
    cached = {path.parent.name[8:].replace("--", "/") for path in cache.glob("models--*/snapshots")}
    if Path(name).is_dir() or name in cached:
        return name
    if f"sentence-transformers/{name}" in cached:
        return f"sentence-transformers/{name}"
    if not folder and not is_offline(when_silent=False):
        return name
    short = {each.rpartition("/")[2]: each for each in sorted(cached)}
    close = [] if folder else difflib.get_close_matches(name, [*cached, *short], n=1)
    hint = f" Did you mean {short.get(close[0], close[0])!r}?" if close else ""
    reason = "this folder does not exist" if folder else "it is not in the local cache, and there is no network"
    raise ModelError(
        f"The encoder must be a Hugging Face name or a folder with config.json, weights and tokenizer; {name!r} cannot "
        f"be loaded ({reason}).{hint} Check the name and the network; without a network, the encoder must be a folder"
        f"{' or in the cache: ' + ', '.join(sorted(cached)[:5]) if cached else ''}."
    )


def relative_cost(encoder: str, trust_remote_code: bool = False) -> float:
    """Return the cost of a forward pass per token, relative to the default encoder.

    Args:
        encoder: Hugging Face name or folder.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    if encoder in _BY_NAME:
        return _BY_NAME[encoder].cost
    from headhunt.modeling.pretrained import load_config

    return _describe(encoder, load_config(encoder, trust_remote_code)).cost


def cuts_many(task: Task, encoder: str, max_length: int | None, trust_remote_code: bool = False) -> bool:
    """Return whether many of the training texts are longer than an encoder reads, so that windows may pay.

    Args:
        task: The data. Windows are for single texts.
        encoder: Hugging Face model name or local folder.
        max_length: Maximum number of tokens per text; that of a recipe by default.
        trust_remote_code: Allow code that comes with the encoder to run.
    """
    if task.pair or task.tasks:
        return False
    from headhunt.modeling.pretrained import load_tokenizer
    from headhunt.training.tokens import tokenise

    tokenizer = load_tokenizer(encoder, trust_remote_code)
    texts = task.splits["train"].texts(0, MEASURED_TEXTS)
    longest = max_length or Recipe().max_length
    lengths = tokenise(tokenizer, texts, max_length=longest + 1).lengths
    return bool((lengths > longest).mean() >= CUT_SHARE)


def guess_language(texts: Sequence[str]) -> Literal["en", "multilingual"]:
    """Return "en" if the words of a sample are in Latin letters and most texts of five or more have an English one."""
    step = max(1, len(texts) // SAMPLE_TEXTS)
    sample = [re.findall(r"[^\W\d_]+", text[:SAMPLE_CHARACTERS].lower()) for text in texts[::step]]
    words = [word for text in sample for word in text]
    long_texts = [text for text in sample if len(text) >= 5]
    # Such texts are 74 to 100 % of English data, at most 7 % of other languages, 50 % of Hindi mixed with English.
    english = sum(not ENGLISH.isdisjoint(text) for text in long_texts) >= 0.65 * len(long_texts)
    latin = sum(word.isascii() for word in words) >= 0.8 * len(words)
    return "en" if english and latin else "multilingual"


def is_offline(*, when_silent: bool = True) -> bool:
    """Return True if HF_HUB_OFFLINE is set or the hub cannot be reached.

    Args:
        when_silent: What to return if the hub does not respond within two seconds.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return True
    responses: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # without a network, every library has errors of its own
            responses.append(get_session().head(constants.ENDPOINT, timeout=REACHABLE_SECONDS))

    # A thread, since looking up the address may take longer than any timeout of a request.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(REACHABLE_SECONDS)
    return not responses and (when_silent or not thread.is_alive())


def _split(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Return names and folders, without the commas between them."""
    items = [given] if isinstance(given, str | Path) else list(given)
    names: list[str] = []
    for item in items:
        # A folder may have a comma in its name.
        folder = isinstance(item, Path) or (item.strip() and Path(item).is_dir())
        names += [str(item)] if folder else [name.strip() for name in str(item).split(",") if name.strip()]
    if not names:
        raise HeadhuntError('must be a Hugging Face name, a folder, several of them or "auto"; found none.', "encoder")
    return names


def _check(names: Sequence[str], trust_remote_code: bool) -> None:
    """Refuse encoders that cannot be loaded or are given twice."""
    from headhunt.modeling.pretrained import load_config

    seen: set[str] = set()
    for name in names:
        identity = str(Path(name).resolve()) if Path(name).is_dir() else name
        if identity in seen:
            raise HeadhuntError(f"must name each encoder once; found {name} twice.", "encoder")
        seen.add(identity)
        load_config(name, trust_remote_code)


def _choose(language: str, max_size: float | None, gpu: bool, offline: bool) -> tuple[str, ...]:
    """Return the encoders of "auto"."""
    found = _cached() if offline else KNOWN
    available = [each for each in found if each.languages in (language, "unknown") or each.name == DEFAULT_ENCODER]
    if not available:
        from huggingface_hub import constants

        raise HeadhuntError(
            f'"auto" must find an encoder, but the hub cannot be reached and {constants.HF_HUB_CACHE} has none '
            "for these texts. Connect to the network, or give a folder."
        )
    small = [encoder for encoder in available if max_size is None or encoder.size <= max_size]
    if not small:
        least = min(available, key=lambda encoder: encoder.size)
        raise HeadhuntError(
            f"must allow an encoder; found {max_size:g} MB, and the smallest one, {least.name}, has "
            f"{least.size:.0f} MB of fp32 weights. Give a larger max_size or a smaller encoder.",
            "max_size",
        )
    small.sort(key=lambda encoder: (encoder.name != DEFAULT_ENCODER, encoder.cost, encoder.size, encoder.name))
    limit = max(entry.cost for entry in KNOWN if entry.hardware == "cpu")
    # A slow encoder is better than none.
    chosen = [encoder for encoder in small if gpu or encoder.cost <= limit] or small[:1]
    return tuple(encoder.name for encoder in chosen)


def _cached() -> Iterator[KnownEncoder]:
    """Yield the encoders in the local Hugging Face cache."""
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/")
        with contextlib.suppress(Exception):  # damaged files raise errors of many libraries
            encoder = _read_cached(name, folder.parent)
            if encoder is not None:
                yield encoder


def _read_cached(name: str, cache: Path) -> KnownEncoder | None:
    """Return an encoder of the cache; None if it is incomplete or of an unknown architecture."""
    from huggingface_hub import try_to_load_from_cache

    from headhunt.modeling.pretrained import load_config

    config_file = try_to_load_from_cache(name, "config.json", cache_dir=cache)
    if not isinstance(config_file, str):
        return None
    snapshot = Path(config_file).parent
    weights = _weights(snapshot)
    if not weights or not any((snapshot / file).is_file() for file in TOKENIZERS):
        return None
    if name in _BY_NAME:
        return _BY_NAME[name]
    config = load_config(str(snapshot))
    if config.model_type not in FAMILIES or getattr(config, "is_decoder", False):
        return None
    return _describe(name, config, _size(weights))


def _weights(folder: Path) -> list[Path]:
    """Return the files of the weights; [] if there are none or some are missing."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(read_json(index)["weight_map"].values()))
            if all((folder / shard).is_file() for shard in shards):
                return [folder / shard for shard in shards]
    return []


def _size(weights: Sequence[Path]) -> float:
    """Return the size of weights in MB, in fp32 whatever the files have. Pickled files are assumed to be fp32."""
    if weights[0].suffix != ".safetensors":
        return sum(path.stat().st_size for path in weights) / 1e6
    from safetensors import safe_open

    parameters = 0
    for path in weights:
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
            parameters += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return parameters * BYTES / 1e6


def _describe(name: str, config: Any, size: float = 0.0) -> KnownEncoder:
    """Return the figures of an encoder that is not known, from its configuration and its size in MB."""
    width = int(config.hidden_size)
    # DistilBERT has another name for the width of the feed-forward layers.
    inner = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None) or 4 * width
    matrices = 3 if config.model_type in GATED else 2
    cost = (4 + matrices * inner / width) * (1.5 if config.model_type in DISENTANGLED else 1.0)
    return KnownEncoder(name, size / BYTES, int(config.num_hidden_layers), width, "unknown", "cpu", "", cost)
