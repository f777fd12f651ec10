"""Check the structure of the package: import cycles, layers, sizes, and names that have one home.

Run it from anywhere; it exits with 1 if a rule is broken. The rules are explained in
`docs/explanation/architecture.md`.

    python scripts/check_structure.py
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_ENTRIES = 16
MAX_LAYERS = 10
MODULE_LINES, MODULE_TARGET = 450, 400
FUNCTION_LINES, FUNCTION_TARGET = 65, 60
MAX_STATEMENTS = 18_645
WIDE, MAX_WIDE = 8, 14

# Names of files and keys on disk. Only the code that owns the format may spell them out.
HOMES = {
    "ledger.jsonl": ("run/",),
    "result.json": ("run/",),
    "search.json": ("run/",),
    '["text_b"]': ("run/", "delivery/corpus/"),
}


@dataclass
class Findings:
    """Lines to print, and the rules that are broken."""

    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def add(self, line: str, violated: bool = False) -> None:
        """Add a line, and list it as a violation if `violated`."""
        self.lines.append(line)
        if violated:
            self.violations.append(line)


def find_modules(package: Path) -> dict[str, Path]:
    """Return the path of every module of a package by its dotted name; a package's name is its `__init__.py`."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def find_imports(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, at any depth of its code.

    Imports inside functions and under `if TYPE_CHECKING:` count. `from package import name` is an import of
    `package.name` if that is a module, else of the package's `__init__.py`. Importing a module by its full path is no
    import of the packages above it.
    """
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(node, name, path)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                imported.add(full if full in modules else base)
        elif isinstance(node, ast.Call) and _called(node) == "import_module" and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                imported.add(target.value)
    return (imported & modules.keys()) - {name}


def _resolve(node: ast.ImportFrom, name: str, path: Path) -> str:
    """Return the absolute name of the module that a `from … import` reads."""
    if not node.level:
        return node.module or ""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def find_cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member, each sorted by name."""
    reachable = {name: _reach(name, edges) for name in edges}
    cycles: list[list[str]] = []
    for name in sorted(edges):
        members = sorted(other for other in reachable[name] if name in reachable[other])
        if len(members) > 1 and members not in cycles:
            cycles.append(members)
    return cycles


def _reach(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in edges[waiting.pop()]:
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def count_entries(package: Path) -> list[str]:
    """Return the modules and packages directly under a package, without `py.typed` and caches."""
    return sorted(path.name for path in package.iterdir() if path.name not in ("py.typed", "__pycache__"))


def read_layers(pyproject: Path) -> list[str]:
    """Return the layers of import-linter's contract, top to bottom."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return list(layers)


def measure_functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of each function and its name.

    The signature and the docstring are its interface: a public function with twenty documented arguments is not complex
    for that. Only the lines of its body count.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
            yield (node.end_lineno or body[0].lineno) - body[0].lineno + 1, node.name


def find_misplaced(package: Path) -> list[str]:
    """Return `file:line: name` where a name of the format on disk is spelled out away from its home."""
    misplaced = []
    for path in _sources(package):
        relative = path.relative_to(package).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name, homes in HOMES.items():
                if re.search(_whole_name(name), line) and not relative.startswith(homes):
                    misplaced.append(f"{relative}:{number}: {name}")
    return misplaced


def _whole_name(name: str) -> str:
    """Return a pattern that finds `result.json` but neither `myresult.json` nor `result.jsonl`."""
    return rf"(?<![\w-]){re.escape(name)}(?!\w)" if name[0].isalpha() else re.escape(name)


def _sources(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("*") if path.suffix in (".py", ".js", ".css", ".html"))


def count_statements(path: Path) -> int:
    """Return the statements of a module; docstrings and other bare strings do not count."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def count_parameters(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the parameters of each function and its name; `self` and `cls` do not count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            yield len([name for name in given if name not in ("self", "cls")]), node.name


def check(root: Path) -> Findings:
    """Return the findings for a checkout.

    Args:
        root: The folder with `pyproject.toml` and `src/headhunt`.
    """
    package = root / "src" / "headhunt"
    findings = Findings()
    modules = find_modules(package)
    edges = {name: find_imports(name, path, modules) for name, path in modules.items()}
    cycles = find_cycles(edges)
    findings.add(f"import cycles: {len(cycles)} (limit 0) among {len(modules)} modules")
    for members in cycles:
        findings.add(f"  cycle of {len(members)}: {', '.join(members)}", True)

    entries = count_entries(package)
    findings.add(f"entries under src/headhunt: {len(entries)} (limit {MAX_ENTRIES})", len(entries) > MAX_ENTRIES)
    layers = read_layers(root / "pyproject.toml")
    findings.add(f"layers: {len(layers)} (limit {MAX_LAYERS})", len(layers) > MAX_LAYERS)

    sizes = [(len(path.read_text(encoding="utf-8").splitlines()), name) for name, path in modules.items()]
    _add_sizes(findings, "module", sizes, MODULE_TARGET, MODULE_LINES)
    functions = [
        (lines, f"{name}.{function}") for name, path in modules.items() for lines, function in measure_functions(path)
    ]
    _add_sizes(findings, "function", functions, FUNCTION_TARGET, FUNCTION_LINES)

    statements = sum(map(count_statements, modules.values()))
    findings.add(f"statements: {statements} (limit {MAX_STATEMENTS})", statements > MAX_STATEMENTS)
    wide = [name for path in modules.values() for count, name in count_parameters(path) if count >= WIDE]
    findings.add(f"functions with {WIDE} or more parameters: {len(wide)} (limit {MAX_WIDE})", len(wide) > MAX_WIDE)
    waiting = [name for name, path in modules.items() if "executor.wait(" in path.read_text(encoding="utf-8")]
    findings.add(f"loops that submit and wait: {len(waiting)} (limit 1): {', '.join(waiting)}", len(waiting) > 1)

    uses = find_misplaced(package)
    findings.add(f"names of the run's format outside run/: {len(uses)} (limit 0)")
    for use in uses:
        findings.add(f"  {use}", True)
    return findings


def _add_sizes(findings: Findings, what: str, sizes: list[tuple[int, str]], target: int, limit: int) -> None:
    lines, name = max(sizes, default=(0, "none"))
    findings.add(f"longest {what}: {lines} lines, {name} (target {target}, limit {limit})")
    for lines, name in sorted(sizes, reverse=True):
        if lines > target:
            findings.add(f"  {lines} lines: {name}" + ("" if lines > limit else " (over the target)"), lines > limit)


def main() -> int:
    """Print the findings and return the exit code."""
    findings = check(ROOT)
    print("\n".join(findings.lines))
    if findings.violations:
        print(f"\n{len(findings.violations)} violations", file=sys.stderr)
    return 1 if findings.violations else 0


if __name__ == "__main__":
    sys.exit(main())
