"""Every promise of SECURITY.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_promise_names_a_test_that_exists():
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1:4] for line in lines if re.match(r"\| (data|model|hub|service|shared) ", line)]
    assert len(rows) > 35
    for _, promise, test in rows:
        path, name = test.strip().strip("`").split("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), promise
