"""Print a constraints file with the lowest version that pyproject.toml admits of each dependency.

    python scripts/lowest_versions.py > lowest.txt
    pip install -e ".[all]" --group test --constraint lowest.txt

torch is left out: it is installed first, from the index of CPU builds, and keeps its version.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?>=(?P<lowest>[\w.]+)")
INSTALLED_FIRST = ("torch",)


def read_lowest(pyproject: Path, groups: tuple[str, ...] = ("test",)) -> dict[str, str]:
    """Return the lowest version of each dependency, of all extras and of development groups.

    Args:
        pyproject: The file to read.
        groups: The dependency groups that are installed. Those for linting have no part in the tests.
    """
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    extras = content["project"]["optional-dependencies"].values()
    wanted = [*content["project"]["dependencies"], *(item for extra in extras for item in extra)]
    wanted += [item for group in groups for item in content["dependency-groups"][group]]
    lowest: dict[str, str] = {}
    for requirement in wanted:
        match = REQUIREMENT.match(requirement)
        if match and match["name"] not in INSTALLED_FIRST:
            name, version = match["name"], match["lowest"]
            lowest[name] = max(lowest.get(name, version), version, key=_as_numbers)
    return dict(sorted(lowest.items()))


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    for name, version in read_lowest(ROOT / "pyproject.toml").items():
        print(f"{name}=={version}")
