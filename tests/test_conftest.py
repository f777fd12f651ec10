"""The shared fixtures: what they do where something is missing."""

from __future__ import annotations

import browser
import pytest
from conftest import require_chromium


def test_missing_chromium_skips_a_test_by_default(monkeypatch):
    monkeypatch.setattr(browser, "CHROMIUM", None)
    monkeypatch.delenv("HEADHUNT_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception):
        require_chromium()


def test_missing_chromium_fails_a_test_if_a_browser_is_required(monkeypatch):
    monkeypatch.setattr(browser, "CHROMIUM", None)
    monkeypatch.setenv("HEADHUNT_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception):
        require_chromium()
