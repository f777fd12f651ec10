"""Files for CI, containers, Kubernetes and releases: valid, and in agreement with the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from typer.main import get_command

from headhunt.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob(".github/**/*.yml"), *ROOT.glob("deploy/**/*.yaml"), ROOT / "compose.yaml"])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_yaml_files_exist(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents and all(isinstance(document, dict) for document in documents)
    commands = get_command(app).commands
    found = re.findall(r"(?:entrypoint: headhunt|command:|args:) \[?([^\]\n]+)", path.read_text())
    assert bool(found) == (path.suffix == ".yaml")
    for words in found:
        name, *rest = re.split(r",? ", words)
        flags = {flag for param in commands[name].params for flag in param.opts}
        assert {word for word in rest if word.startswith("--")} <= flags, words


def test_ci_runs_every_python_on_three_systems():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    named = [item.split(" :: ")[-1] for item in PROJECT["classifiers"] if re.search(r"Python :: 3\.", item)]
    assert set(named) <= set(matrix["python"]) and "3.14" in matrix["python"]


def test_actions_are_pinned_by_commit():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used), path


def test_tested_versions_meet_the_requirements_and_are_audited():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    extras = [item for items in PROJECT["optional-dependencies"].values() for item in items]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        if requirement.name not in ("headhunt", "sqlalchemy", "datasets", "openpyxl"):  # extras that are not tested
            assert tested[requirement.name.lower().replace("_", "-")] in requirement.specifier, requirement
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert any("pip-audit --requirement constraints.txt" in step.get("run", "") for step in jobs["audit"]["steps"])
    assert any(cell["dependencies"] == "tested" for cell in jobs["test"]["strategy"]["matrix"]["include"])
    release = (ROOT / ".github/workflows/release.yml").read_text()
    assert "cyclonedx-py requirements constraints.txt" in release


def test_licenses_of_all_dependencies_are_listed():
    page = (ROOT / "docs/reference/licenses.csv").read_text()
    extras = [item for items in PROJECT["optional-dependencies"].values() for item in items]
    names = {re.match(r"[\w-]+", item)[0].lower().replace("_", "-") for item in [*PROJECT["dependencies"], *extras]}
    assert [name for name in sorted(names - {"headhunt"}) if f"\n{name}," not in page] == []
