"""Child processes load no module from the current directory."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from headhunt.delivery.serve.launch import cached_export
from headhunt.errors import ModelError
from headhunt.study import fork_server

# Every module that a child could import: those of Python and of all installed packages.
NAMES = sorted({"headhunt", *sys.stdlib_module_names, *packages_distributions()} - set(sys.builtin_module_names))
SOURCES = Path(fork_server.__file__).parents[1]


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current directory, with a module of every name; each leaves a file in `ran`."""
    (tmp_path / "ran").mkdir()
    (tmp_path / "folder").mkdir()
    assert len(NAMES) > 300
    for name in NAMES:
        (tmp_path / "folder" / f"{name}.py").write_text(f"open({str(tmp_path / 'ran' / name)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path / "folder")
    yield tmp_path / "folder"
    assert not list((tmp_path / "ran").iterdir()), "code of the current directory ran"


def test_fork_server_runs_no_code_of_the_current_directory(hostile, monkeypatch):
    monkeypatch.setattr(fork_server, "CLOSE_TIMEOUT", 60)
    server = fork_server.ForkServer("headhunt.errors")
    server.close()
    assert server._process.returncode == 0, "it reached its end, past all imports"


def test_export_runs_no_code_of_the_current_directory(hostile, own_cache):
    (hostile / "headhunt.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(ModelError):
        cached_export(hostile, print)


def test_trial_of_a_tokenizer_runs_no_code_of_the_current_directory(hostile, encoders):
    content = (Path(encoders()) / "tokenizer.json").read_bytes()
    (hostile / "tokenizer.json").write_bytes(content + b" ")  # not tried yet
    fork_server.check_tokenizer(hostile / "tokenizer.json")


def test_commands_run_no_code_of_the_current_directory(hostile):
    command = Path(sys.executable).parent / "headhunt"
    for words in (["--version"], ["space", "--help"], ["predict", ".", "a"], ["serve", "."], ["resume", "."]):
        done = subprocess.run([command, *words], capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr


def test_every_child_is_started_by_one_function():
    starting = [path.name for path in SOURCES.rglob("*.py") if "sys.executable" in path.read_text(encoding="utf-8")]
    assert starting == ["fork_server.py"]
