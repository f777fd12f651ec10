"""Every promise of SECURITY.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def rows(first: str) -> list[list[str]]:
    """Return the cells of the rows of tables whose first cell matches a pattern."""
    lines = SECURITY.splitlines()
    return [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if re.match(rf"\| ({first}) \|", line)]


def check_test(test: str, rule: str) -> None:
    path, name = test.strip("`").split("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), rule


def test_every_promise_names_a_test_that_exists():
    promises = rows("data|model|hub|service|shared")
    assert len(promises) > 80 and len(SECURITY.splitlines()) <= 120
    for _, promise, test in promises:
        check_test(test, promise)


def test_every_test_in_the_security_policy_exists():
    tests = re.findall(r"tests/[\w/]+\.py::\w+", SECURITY)
    assert len(tests) > 60
    for test in tests:
        check_test(test, test)
