"""Print the licenses of all packages that an installation with all extras has, as CSV.

    python scripts/licenses.py > docs/reference/licenses.csv

It reads what is installed, so install all extras first: pip install -e ".[all]"
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement


def collect(root: str, extras: tuple[str, ...]) -> dict[str, str]:
    """Return a line for each installed package that `root` needs with these extras, by name."""
    rows: dict[str, str] = {}
    waiting, seen = [(root, extras)], set()
    while waiting:
        name, chosen = waiting.pop()
        key = (re.sub(r"[-_.]+", "-", name).lower(), chosen)
        if key in seen:
            continue
        seen.add(key)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another system
        rows[key[0]] = f'{key[0]},{package.version},"{license_of(package.metadata)}"'
        for line in package.requires or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
                waiting.append((needed.name, tuple(sorted(needed.extras))))
    return rows


def license_of(metadata: Any) -> str:
    """Return the license of a package: its SPDX expression, its classifiers, or the first line of its text."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    names = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    text = (metadata.get("License") or "").strip() or "not stated"
    return " or ".join(name for name in names if name != "OSI Approved") or text.splitlines()[0][:80]


if __name__ == "__main__":
    found = collect("headhunt", tuple(distribution("headhunt").metadata.get_all("Provides-Extra") or ()))
    print("package,version,license")
    print("\n".join(row for name, row in sorted(found.items()) if name != "headhunt"))
