"""`headhunt doctor` and shell completion."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import torch
from command_line import COMMAND, succeed

from headhunt.cli.maintain import find_advice


def test_doctor_shows_what_a_bug_report_needs():
    facts = json.loads(succeed("doctor", "--json"))
    assert facts["torch"] == torch.__version__ and facts["python"] and "excel" in facts["extras"]
    printed = succeed("doctor")
    assert all(f"{name}: " in printed for name in ("headhunt", "machine", "GPU", "free disk", "encoders in the cache"))


def test_doctor_says_what_would_be_faster(monkeypatch):
    assert find_advice("A100", 100, 100, os.cpu_count()) == []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [line.split(";")[0] for line in find_advice("A100", 1, 1, 0)] == [
        "workers need memory",
        "checkpoints need space",
        "OMP_NUM_THREADS leaves cores unused",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell):
    def complete(words):
        line = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        line |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        environment = {**os.environ, "_HEADHUNT_COMPLETE": f"complete_{shell}", **line}
        return subprocess.run(COMMAND, env=environment, capture_output=True, text=True).stdout

    assert "search" in complete("headhunt sea")
    assert "--fine-tune" in complete("headhunt fit --fi")
