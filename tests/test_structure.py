"""The structure check: it finds what it claims to find, and this checkout passes it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import check_structure
import pytest

PYPROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["cli", "engine | study", "errors"]
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a function that writes modules by path into a new `src/headhunt` and returns the checkout's root."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)

    def write(**modules: str) -> Path:
        package = tmp_path / "src" / "headhunt"
        for name, text in {"__init__": "", **modules}.items():
            path = package / f"{name.replace('__', '/') if name != '__init__' else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return write


def cycles(root: Path) -> list[list[str]]:
    modules = check_structure.find_modules(root / "src" / "headhunt")
    edges = {name: check_structure.find_imports(name, path, modules) for name, path in modules.items()}
    return check_structure.find_cycles(edges)


@pytest.mark.parametrize(
    "back",
    [
        "import headhunt.a",
        "from headhunt import a",
        "from headhunt.a import x",
        "from . import a",
        "from .a import x",
        "def f():\n    from headhunt.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from headhunt.a import x",
        "from importlib import import_module\nimport_module('headhunt.a')",
    ],
    ids=["import", "module-of-package", "from", "relative", "relative-from", "lazy", "type-checking", "import_module"],
)
def test_cycles_count_every_form_of_import(checkout, back):
    assert cycles(checkout(a="from headhunt.b import y", b=back)) == [["headhunt.a", "headhunt.b"]]


def test_cycles_ignore_a_sibling_imported_by_its_full_path(checkout):
    root = checkout(a="import headhunt.b", b="")
    (root / "src/headhunt/pkg").mkdir()
    (root / "src/headhunt/pkg/__init__.py").write_text("from headhunt.pkg.one import x\nfrom headhunt.pkg.two import y")
    (root / "src/headhunt/pkg/one.py").write_text("x = 1")
    (root / "src/headhunt/pkg/two.py").write_text("from headhunt.pkg.one import x")
    assert cycles(root) == []
    (root / "src/headhunt/pkg/two.py").write_text("from headhunt.pkg import x")
    assert cycles(root) == [["headhunt.pkg", "headhunt.pkg.two"]]


def test_cycles_follow_the_re_exports_of_a_package(checkout):
    root = checkout(a="from headhunt.pkg import x")
    (root / "src/headhunt/pkg").mkdir()
    (root / "src/headhunt/pkg/__init__.py").write_text("from headhunt.pkg.one import x")
    (root / "src/headhunt/pkg/one.py").write_text("def x():\n    import headhunt.a")
    assert cycles(root) == [["headhunt.a", "headhunt.pkg", "headhunt.pkg.one"]]


def test_functions_are_measured_without_signature_and_docstring(tmp_path):
    (tmp_path / "m.py").write_text(
        dedent('''
        @decorated(
            1,
        )
        def plain(
            a,
        ):
            return a

        def documented(a):
            """Return a.

            Args:
                a: A value.
            """
            b = a
            return b
        ''')
    )
    assert sorted(check_structure.measure_functions(tmp_path / "m.py")) == [(1, "plain"), (2, "documented")]


def test_check_reports_sizes_over_the_limits(checkout):
    long = "def f():\n" + "    x = 1\n" * (check_structure.FUNCTION_LINES + 1) + "\n" * check_structure.MODULE_LINES
    violations = check_structure.check(checkout(m=long)).violations
    assert [line.split(":")[-1].strip() for line in violations] == ["headhunt.m", "headhunt.m.f"]


def test_check_reports_too_many_entries_and_layers(checkout, monkeypatch):
    root = checkout(**{f"m{i}": "" for i in range(check_structure.MAX_ENTRIES)})
    monkeypatch.setattr(check_structure, "MAX_LAYERS", 2)
    assert check_structure.check(root).violations == [
        "entries under src/headhunt: 17 (limit 16)",
        "layers: 3 (limit 2)",
    ]


def test_misplaced_names_are_found_outside_their_home(checkout):
    root = checkout(a='FILE = "result.json"\nOTHER = "myresult.json"\nc["text_b"]', run__b='F = "result.json"')
    assert check_structure.find_misplaced(root / "src/headhunt") == ["a.py:1: result.json", 'a.py:3: ["text_b"]']


def test_this_checkout_passes_the_structure_check():
    findings = check_structure.check(check_structure.ROOT)
    assert len(findings.lines) >= 7
    assert findings.violations == []
