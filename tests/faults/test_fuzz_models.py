"""Damaged configurations and tokenizers of model folders load, or are refused with a message, within limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from model_folders import make_predictor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
PROGRAM = Path(__file__).parents[1] / "fuzz_models.py"


@pytest.mark.parametrize("inputs", [4, pytest.param(5000, marks=pytest.mark.slow)])
def test_damaged_configurations_and_tokenizers_load_or_are_refused(encoders, tmp_path, inputs):
    folder = make_predictor(encoders(), "conv-blocks")[0].save(tmp_path / "model")
    done = subprocess.run([sys.executable, PROGRAM, folder, str(inputs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert set(tally) <= {"loaded", "refused"}, (tally, done.stderr[-3000:])
    assert tally["refused"] > 0 and sum(tally.values()) >= inputs
