"""The cache of ONNX exports behind `headhunt serve`."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headhunt.cli import app
from headhunt.delivery.onnx import runtime
from headhunt.delivery.serve import launch
from headhunt.errors import HeadhuntError


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "headhunt.json").write_text(json.dumps({"schema": 1}))
    (folder / "model.safetensors").write_bytes(b"weights one")
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


@pytest.fixture
def exported(monkeypatch, own_cache) -> list[bytes]:
    """Weights of the models that were exported, by a stand-in for the exporter."""
    weights = []

    def run(command, **options):
        folder, out = map(Path, command[-2:])
        weights.append((folder / "model.safetensors").read_bytes())
        out.mkdir(parents=True)
        for name in ("headhunt.json", "model.onnx"):
            (out / name).write_bytes(weights[-1])
            (out / name).chmod(0o644)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return weights


def test_cached_export_is_keyed_by_content(model, exported):
    first = launch.cached_export(model, print)
    assert launch.cached_export(model, print) == first and exported == [b"weights one"]
    weights = model / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(b"weights two")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    second = launch.cached_export(model, print)
    assert exported == [b"weights one", b"weights two"] and (second / "model.onnx").read_bytes() == b"weights two"
    moved = model.rename(model.with_name("elsewhere"))
    assert launch.cached_export(moved, print) == second, "the same model in another place"


def test_cached_export_keeps_the_permissions_of_the_model(model, exported, own_cache):
    out = launch.cached_export(model, print)
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    for folder in (out, out.parent, own_cache):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_damaged_entry_of_the_cache_is_exported_again(model, exported, monkeypatch):
    def open_model(folder, threads):
        if (folder / "model.onnx").read_bytes() != b"weights one":
            raise ValueError("damaged")
        return SimpleNamespace(folder=folder, pair=False, predict=lambda texts, texts_b: [])

    monkeypatch.setattr(runtime, "Model", open_model)
    out = launch.load_model(model, 1, print).folder
    (out / "model.onnx").write_bytes(b"")
    assert launch.load_model(model, 1, print).folder == out and len(exported) == 2


@pytest.mark.parametrize("token", ["", " ", "\n", "a\nb", "é"])
def test_serve_refuses_a_token_that_protects_nothing(model, token):
    with pytest.raises(HeadhuntError, match="token= must be"):
        launch.serve(model, token=token, port=0, notify=print)


def test_serve_command_refuses_an_empty_token_of_the_environment(model, monkeypatch):
    monkeypatch.setenv("HEADHUNT_TOKEN", "")
    done = CliRunner().invoke(app, ["serve", str(model), "--port", "0"])
    assert done.exit_code == 2 and "--token must be" in done.output, done.output
