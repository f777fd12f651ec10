"""The choice of encoders: given ones are checked, "auto" lists what suits texts, hardware, size and network."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from headhunt.engine import encoders as module
from headhunt.engine.api import fit
from headhunt.engine.encoders import KNOWN, guess_language, is_offline, relative_cost, resolve_encoders
from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.pretrained import load_config, load_tokenizer
from headhunt.spec import DEFAULT_ENCODER

ROOT = Path(__file__).parent.parent.parent
L3, L6, GRANITE, BGE, GTE = (entry.name for entry in KNOWN[:5])
GERMAN = ["Der Film war sehr gut und die Musik ist in allen Szenen schön.", "Das war leider nicht so gut."]
ENGLISH = ["This is the best film that I have seen.", "What a waste of time and money."]


@pytest.fixture
def cache(tmp_path, monkeypatch, encoders):
    """Return a function that adds a tiny encoder to a Hugging Face cache of this test and returns its snapshot."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))

    def add(name: str, family: str = "bert") -> Path:
        repository = folder / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / ("0" * 40)
        shutil.copytree(encoders(family), snapshot)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0" * 40)
        return snapshot

    return add


def test_known_encoders_are_listed_cheapest_first():
    for language in ("en", "multilingual"):
        entries = [entry for entry in KNOWN if entry.languages == language]
        assert {entry.hardware for entry in entries} == {"cpu", "gpu"}
        costs = [(relative_cost(entry.name), entry.parameters) for entry in entries]
        assert costs == sorted(costs)
        assert [entry.hardware for entry in entries] == sorted(entry.hardware for entry in entries)
    assert len({entry.name for entry in KNOWN}) == len(KNOWN)
    assert relative_cost(DEFAULT_ENCODER) == 1.0


def test_known_encoders_are_in_the_docs():
    rows = [
        f"| `{entry.name}` | {entry.parameters:.0f} M | {entry.layers} × {entry.width} | {entry.languages} "
        f"| {entry.hardware.upper()} | {entry.licence} |"
        for entry in KNOWN
    ]
    page = (ROOT / "docs/howto/encoders.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `")] == rows


@pytest.mark.parametrize("family", module.FAMILIES)
def test_families_are_known_to_transformers(family):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert family in CONFIG_MAPPING


def test_resolve_encoders_defaults_to_the_default_encoder():
    assert resolve_encoders(None) == (DEFAULT_ENCODER,)


def test_resolve_encoders_takes_one_or_several_in_their_order(encoders):
    bert, roberta = encoders("bert"), encoders("roberta")
    assert resolve_encoders(bert) == resolve_encoders(Path(bert)) == resolve_encoders([bert]) == (bert,)
    for given in ([roberta, bert], (Path(roberta), bert), f"{roberta}, {bert}", [f"{roberta},{bert},"]):
        assert resolve_encoders(given) == (roberta, bert)


def test_resolve_encoders_takes_a_folder_with_a_comma(encoders, tmp_path):
    folder = shutil.copytree(encoders(), tmp_path / "large, old")
    assert resolve_encoders(str(folder)) == (str(folder),)


@pytest.mark.parametrize("given", ["", " , ", []])
def test_resolve_encoders_refuses_none_at_all(given):
    with pytest.raises(HeadhuntError, match="found none"):
        resolve_encoders(given)


def test_resolve_encoders_names_the_encoder_that_cannot_be_loaded(encoders):
    with pytest.raises(HeadhuntError, match="no-such/encoder"):
        resolve_encoders([encoders(), "no-such/encoder"])


def test_names_are_completed_and_suggested_from_the_cache(cache, encoders):
    cache(L6)
    cache("mine/roberta-tiny", "roberta")
    assert resolve_encoders("all-MiniLM-L6-v2") == resolve_encoders(L6) == (L6,)
    with pytest.raises(ModelError, match=f"no network.*Did you mean '{L6}'.*in the cache: mine/roberta-tiny, {L6}"):
        resolve_encoders("all-MiniLM-L6-v1")
    with pytest.raises(ModelError, match="Did you mean 'mine/roberta-tiny'"):
        fit((["a", "b"] * 4, ["x", "y"] * 4), encoder="mine/roberta-tin")
    with pytest.raises(ModelError, match="this folder does not exist"):
        resolve_encoders(f"{encoders()}/no")


def test_resolve_encoders_refuses_duplicates(encoders):
    with pytest.raises(HeadhuntError, match="each encoder once"):
        resolve_encoders([encoders(), f"{encoders()}/"])


def test_resolve_encoders_refuses_auto_beside_others(encoders):
    with pytest.raises(HeadhuntError, match='"auto" must be given alone'):
        resolve_encoders(["auto", encoders()])


def test_auto_online_lists_known_encoders_with_the_default_first():
    assert resolve_encoders("auto", texts=ENGLISH, offline=False) == (L6, L3, GRANITE, BGE, GTE)
    assert resolve_encoders(["auto"], offline=False) == (L6, L3, GRANITE, BGE, GTE)
    with_gpu = resolve_encoders("auto", texts=ENGLISH, offline=False, gpu=True)
    assert with_gpu[:5] == (L6, L3, GRANITE, BGE, GTE)
    assert set(with_gpu) == {entry.name for entry in KNOWN if entry.languages == "en"}


def test_auto_online_lists_multilingual_encoders_for_other_languages():
    chosen = resolve_encoders("auto", texts=GERMAN, offline=False)
    assert chosen[0] == DEFAULT_ENCODER  # the baseline
    assert set(chosen[1:]) == {e.name for e in KNOWN if e.languages == "multilingual" and e.hardware == "cpu"}


def test_auto_respects_the_maximum_size():
    assert resolve_encoders("auto", offline=False, max_size=100) == (L6, L3)
    assert resolve_encoders("auto", offline=False, max_size=80) == (L3,)
    with pytest.raises(HeadhuntError, match=r"found 50 MB, and the smallest one, .*L3-v2, has 70 MB"):
        resolve_encoders("auto", offline=False, max_size=50)


def test_encoder_must_not_be_a_model_with_a_head(tmp_path):
    """Issue: the advice was to let its code run, which would not have helped."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "headhunt", "auto_map": {"AutoConfig": "configuration.Config"}}'
    )
    with pytest.raises(ModelError, match="is a model with a head of Headhunt"):
        load_config(str(tmp_path))


def test_auto_offline_lists_encoders_of_the_cache_that_can_be_loaded(cache):
    cache(BGE)
    cache(L6)
    cache("mine/tiny", "roberta")
    cache("tiny", "distilbert")
    chosen = resolve_encoders("auto", texts=ENGLISH)  # HF_HUB_OFFLINE is set in tests
    assert chosen == (L6, "tiny", "mine/tiny", BGE)
    for name in chosen:
        load_config(name)
        load_tokenizer(name)


def test_auto_offline_ignores_what_is_no_usable_encoder(cache):
    cache("mine/good")
    (cache("mine/no-weights") / "model.safetensors").unlink()
    (cache("mine/no-tokenizer") / "tokenizer.json").unlink()
    (cache("mine/damaged") / "config.json").write_text("{")
    (cache("mine/damaged-weights") / "model.safetensors").write_text("x")
    decoder = cache("mine/decoder") / "config.json"
    decoder.write_text(json.dumps({**json.loads(decoder.read_text()), "is_decoder": True}))
    other = cache("mine/other") / "config.json"
    other.write_text('{"model_type": "gpt2"}')
    shutil.rmtree(cache("mine/other-revision").parent.parent / "refs")
    (cache("mine/no-config") / "config.json").unlink()
    hub = Path(constants.HF_HUB_CACHE)
    (hub / "models--empty").mkdir()
    (hub / "datasets--mine--good").mkdir()
    (hub / "models--not a name").mkdir()
    assert resolve_encoders("auto", offline=True) == ("mine/good",)


def test_auto_offline_reads_sharded_weights_completely(cache):
    for name in ("mine/complete", "mine/part"):
        snapshot = cache(name)
        shutil.copy(snapshot / "model.safetensors", snapshot / "model-00001-of-00002.safetensors")
        (snapshot / "model.safetensors").rename(snapshot / "model-00002-of-00002.safetensors")
        shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (snapshot / "model-00001-of-00002.safetensors").unlink()
    assert resolve_encoders("auto", offline=True) == ("mine/complete",)


def test_auto_offline_measures_unknown_encoders_in_fp32(cache):
    import torch
    from safetensors.torch import load_file, save_file

    weights = cache("mine/half") / "model.safetensors"
    tensors = load_file(weights)
    megabytes = sum(tensor.numel() for tensor in tensors.values()) * 4 / 1e6
    save_file({name: tensor.to(torch.float16) for name, tensor in tensors.items()}, weights, {"format": "pt"})
    assert resolve_encoders("auto", offline=True, max_size=megabytes * 1.01) == ("mine/half",)
    with pytest.raises(HeadhuntError, match="mine/half"):
        resolve_encoders("auto", offline=True, max_size=megabytes * 0.99)


def test_auto_offline_uses_one_slow_encoder_rather_than_none(cache):
    base, mpnet = (entry.name for entry in KNOWN if entry.hardware == "gpu" and entry.parameters == 109.5)
    cache(base)
    cache(mpnet)
    assert resolve_encoders("auto", offline=True) == (base,)
    assert resolve_encoders("auto", offline=True, gpu=True) == (base, mpnet)


def test_auto_offline_with_an_empty_cache_says_what_to_do(cache):
    with pytest.raises(HeadhuntError, match=r"hub has none for these texts. Connect to the network, or give a folder"):
        resolve_encoders("auto", offline=True)


def test_is_offline_without_waiting_for_a_slow_hub(monkeypatch):
    assert is_offline()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(module, "REACHABLE_SECONDS", 0.05)

    class Session:
        def __init__(self, seconds: float, error: Exception | None = None) -> None:
            self.seconds, self.error = seconds, error

        def head(self, url: str, timeout: float) -> str:
            time.sleep(self.seconds)
            if self.error:
                raise self.error
            return "response"

    for session, expected in ((Session(0), False), (Session(0.5), True), (Session(0, OSError("no route")), True)):
        monkeypatch.setattr("huggingface_hub.get_session", lambda session=session: session)
        assert is_offline() is expected


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (ENGLISH, "en"),
        ([], "en"),
        (["", "42 %"], "en"),
        (GERMAN, "multilingual"),
        (["Una película muy buena, con un guión que no me gustó del todo."], "multilingual"),
        (["red dress", "blue shoes"], "en"),
        (["很好的电影", "这部电影很差"], "multilingual"),
        (["Этот фильм очень хороший и интересный"], "multilingual"),
        (ENGLISH + GERMAN, "multilingual"),
        (ENGLISH * 500, "en"),
    ],
    ids=["english", "empty", "numbers", "german", "spanish", "keywords", "chinese", "russian", "mixed", "many"],
)
def test_guess_language(texts, language):
    assert guess_language(texts) == language


def test_relative_cost_follows_depth_and_width(encoders, tmp_path):
    costs = {family: relative_cost(encoders(family)) for family in ("bert", "roberta", "distilbert", "albert")}
    assert len(set(costs.values())) == 1  # the same shape in all families
    assert 0 < costs["bert"] < 0.01
    assert relative_cost(encoders("modernbert")) > costs["bert"]  # three feed-forward matrices
    folder = shutil.copytree(encoders(), tmp_path / "deep")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    assert relative_cost(str(folder)) == pytest.approx(2 * costs["bert"])


@pytest.mark.real
def test_known_default_encoder_has_the_figures_of_the_real_one(minilm):
    entry = next(entry for entry in KNOWN if entry.name == DEFAULT_ENCODER)
    config = load_config(minilm)
    assert (config.num_hidden_layers, config.hidden_size) == (entry.layers, entry.width)
    assert relative_cost(minilm) == relative_cost(DEFAULT_ENCODER)
    assert module._size([Path(minilm) / "model.safetensors"]) == pytest.approx(entry.size, rel=0.01)
