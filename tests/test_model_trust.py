"""A hostile model folder runs no code, asks no question and reads no file outside itself."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
from ensembles import save_case
from model_folders import make_predictor
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.delivery.serve.launch import load_model
from headhunt.errors import ModelError
from headhunt.modeling.architecture import Head
from headhunt.modeling.build import build
from headhunt.modeling.pretrained import load_config, load_tokenizer
from headhunt.predictor import Predictor
from headhunt.study import fork_server

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast
class Config(BertConfig):
    model_type = "hostile"
class Model(BertForSequenceClassification):
    config_class = Config
class Encoder(BertModel):
    config_class = Config
Tokenizer = BertTokenizerFast
"""
CONFIG_MAP = {
    "AutoConfig": "hostile.Config",
    "AutoModel": "hostile.Encoder",
    "AutoModelForSequenceClassification": "hostile.Model",
}


def change_json(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def set_unknown_model(folder: Path) -> None:
    change_json(folder / "config.json", model_type="hostile", auto_map=CONFIG_MAP)


def set_unknown_tokenizer(folder: Path) -> None:
    change_json(
        folder / "tokenizer_config.json",
        tokenizer_class="HostileTokenizer",
        auto_map={"AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"]},
    )


def set_known_model_with_code(folder: Path) -> None:
    change_json(folder / "config.json", auto_map=CONFIG_MAP)


def set_encoder_without_model(folder: Path) -> None:
    """A configuration that transformers knows and has no model for."""
    nested = {"model_type": "aimv2_text_model", "auto_map": CONFIG_MAP, "_name_or_path": str(folder)}
    change_json(folder / "config.json", encoder=nested)


def set_unknown_encoder(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    change_json(folder / "config.json", encoder={**config["encoder"], "model_type": "hostile", "auto_map": CONFIG_MAP})


def set_member(folder: Path, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["members"][-1]["config"] |= {"auto_map": CONFIG_MAP, "_name_or_path": str(folder), **values}
    change_json(folder / "config.json", members=config["members"])


def set_unknown_member(folder: Path) -> None:
    set_member(folder, model_type="hostile")


def set_member_without_model(folder: Path) -> None:
    set_member(folder, model_type="aimv2_text_model")


def set_member_with_unknown_encoder(folder: Path) -> None:
    set_member(folder, model_type="headhunt", encoder={"model_type": "hostile", "auto_map": CONFIG_MAP})


HOSTILE = {
    "unknown-model": ("plain", set_unknown_model),
    "unknown-tokenizer": ("plain", set_unknown_tokenizer),
    "known-model": ("plain", set_known_model_with_code),
    "encoder-without-model": ("conv-blocks", set_encoder_without_model),
    "unknown-encoder": ("conv-blocks", set_unknown_encoder),
    "known-ensemble": ("ensemble", set_known_model_with_code),
    "unknown-member": ("ensemble", set_unknown_member),
    "member-without-model": ("ensemble", set_member_without_model),
    "member-with-unknown-encoder": ("ensemble", set_member_with_unknown_encoder),
}


@pytest.fixture
def marker(tmp_path) -> Path:
    """A file that exists if code of a folder ran."""
    return tmp_path / "the code ran"


@pytest.fixture
def consent(monkeypatch) -> io.StringIO:
    """Standard input full of `y`."""
    stream = io.StringIO("y\n" * 1000)
    monkeypatch.setattr(sys, "stdin", stream)
    return stream


def make_hostile(encoder: str, case: str, folder: Path, marker: Path) -> Path:
    head, change = HOSTILE[case]
    if head == "ensemble":
        save_case(encoder, head, folder)
    else:
        make_predictor(encoder, head)[0].save(folder)
    for name in ("hostile.py", "model.py", "configuration.py", "ensemble.py"):
        (folder / name).write_text(CODE.format(marker=str(marker)))
    change(folder)
    return folder


@pytest.mark.parametrize("case", HOSTILE)
def test_load_runs_no_code_and_reads_no_standard_input(encoders, tmp_path, case, marker, consent):
    folder = make_hostile(encoders(), case, tmp_path / "model", marker)
    with contextlib.suppress(ModelError):
        Predictor.load(folder)
    assert not marker.exists(), "code of the folder ran"
    assert consent.tell() == 0, "a question was asked"


def test_predict_command_keeps_its_lines_from_a_question_about_code(encoders, tmp_path, marker):
    folder = make_hostile(encoders(), "unknown-model", tmp_path / "model", marker)
    done = CliRunner().invoke(app, ["predict", str(folder), "--input", "-"], input="y\n" * 1000)
    assert done.exit_code == 2 and "cannot be loaded" in done.output, done.output
    assert not marker.exists() and "Do you wish to run" not in done.output


@pytest.mark.parametrize("load", [load_config, load_tokenizer])
def test_encoder_runs_no_code_without_permission(encoders, tmp_path, load, marker, consent):
    folder = make_hostile(encoders(), "unknown-model", tmp_path / "model", marker)
    set_unknown_tokenizer(folder)
    with pytest.raises(ModelError, match="Give trust_remote_code"):
        load(str(folder))
    assert not marker.exists() and consent.tell() == 0


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        {"encoder": {"attn_implementation": {"": "someone/kernel"}}},
    ],
)
def test_load_refuses_a_configuration_that_loads_other_code(encoders, tmp_path, values):
    folder = make_predictor(encoders(), "conv-blocks")[0].save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    values = {key: {**config[key], **value} if key == "encoder" else value for key, value in values.items()}
    change_json(folder / "config.json", **values)
    with pytest.raises(ModelError, match="must not load other code"):
        Predictor.load(folder)
    config["attn_implementation"] = "eager"
    (folder / "config.json").write_text(json.dumps(config))
    Predictor.load(folder)


def test_load_keeps_only_the_settings_that_a_class_lists(encoders, tmp_path):
    saved = make_predictor(encoders(), "conv-blocks")[0]
    folder = saved.save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    unknown = {"mystery": "someone/kernel", "mysteries": [{"repo": "someone/kernel"}], "auto_map": CONFIG_MAP}
    encoder = {**config["encoder"], **unknown, "_attn_implementation": "eager", "old_number": 3}
    change_json(folder / "config.json", **unknown, encoder=encoder)
    loaded = Predictor.load(folder).model
    for name in unknown:
        assert not hasattr(loaded.config, name) and name not in loaded.config.encoder
    assert {key: loaded.config.encoder[key] for key in config["encoder"]} == config["encoder"]
    assert loaded.config.encoder["old_number"] == 3, "numbers cannot name any code"
    assert loaded.base_model.config._attn_implementation in ("sdpa", "eager")


def test_encoder_that_loads_other_code_is_refused(encoders, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(encoders(), folder)
    change_json(folder / "config.json", attn_implementation="someone/kernel")
    with pytest.raises(ModelError, match="must not load other code"):
        build(str(folder), Head(), problem_type="regression", labels=())


def endless(tokenizer: dict) -> None:
    """Let each letter become two, forty times."""
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [double] * 40}


def panicking(tokenizer: dict) -> None:
    tokenizer["pre_tokenizer"] = {"type": "FixedLength", "length": 0}


@pytest.mark.parametrize("change", [endless, panicking])
@pytest.mark.parametrize("serves", [False, True])
def test_tokenizer_that_grows_without_end_or_panics_is_refused(encoders, tmp_path, monkeypatch, capfd, serves, change):
    monkeypatch.setattr(fork_server, "TOKENIZER_BYTES", 1 << 30)
    folder = make_predictor(encoders(), "plain")[0].save(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if serves:
        facts = json.loads((folder / "headhunt.json").read_text())
        special = {"before": [], "between": [], "after": [], "pad": 0}
        facts |= {"max_length": 16, "truncation": "end", "siamese": False, "special_tokens": special, "inputs": []}
        (folder / "headhunt.json").write_text(json.dumps(facts))
        (folder / "model.onnx").touch()
    with pytest.raises(ModelError, match=r"its tokenizer cannot be used"):
        load_model(folder, 1, print) if serves else Predictor.load(folder)
    assert "Traceback" not in capfd.readouterr().err


class Payload:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def test_load_refuses_pickled_weights(encoders, tmp_path, marker):
    folder = make_predictor(encoders(), "plain")[0].save(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(str(marker))))
    with pytest.raises(ModelError, match="cannot be loaded"):
        Predictor.load(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/hostname", "..", "a/b.safetensors", 3])
def test_load_refuses_weights_outside_the_folder(encoders, tmp_path, name):
    folder = make_predictor(encoders(), "plain")[0].save(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": {"classifier.bias": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"weights must be files of the folder; found"):
        Predictor.load(folder)


def test_save_does_not_write_through_links(encoders, tmp_path):
    (tmp_path / "target").write_text("untouched")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "headhunt.json", "README.md", "tokenizer.json"):
        (folder / name).symlink_to(tmp_path / "target")
    make_predictor(encoders(), "plain")[0].save(folder)
    assert (tmp_path / "target").read_text() == "untouched"
    assert not any(path.is_symlink() for path in folder.iterdir())
    Predictor.load(folder)
