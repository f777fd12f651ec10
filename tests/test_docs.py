"""The documentation: its examples run, its links and tables are right, and the public API is what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import lowest_versions
import nbformat
import pytest
from conftest import sentences
from nbclient import NotebookClient

import headhunt

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"<!-- runs in CI -->\n```python\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"<!-- runs in CI -->\n```console\n(.*?)```", re.DOTALL)


def read_commands(text: str) -> list[list[str]]:
    """Return the arguments of each `$ headhunt …` line in the marked console blocks of a page."""
    return [
        shlex.split(line.removeprefix("$ headhunt "), comments=True)
        for block in CONSOLE.findall(text)
        for line in block.splitlines()
        if line.startswith("$ headhunt ")
    ]


def run_python(*arguments: str | Path, cwd: Path, **options) -> str:
    """Run Python in a folder and return what it prints."""
    process = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, **options)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def run_examples(page: str, encoder: str, folder: Path, count: int = 1, **options) -> str:
    """Run the marked Python blocks of a page as one script and return what it prints."""
    examples = EXAMPLE.findall((ROOT / page).read_text())
    assert len(examples) == count
    (folder / "page.py").write_text(f"ENCODER = {encoder!r}\n" + "\n".join(examples))
    return run_python("page.py", cwd=folder, **options)


def write_reviews(path: Path) -> None:
    """Write a CSV with 40 labelled texts."""
    texts, labels = sentences(40)
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")


def test_readme_examples_run_in_order(encoders, tmp_path):
    page = (ROOT / "README.md").read_text().replace('"sentence-transformers/all-MiniLM-L6-v2"', repr(encoders()))
    commands = read_commands(page)
    assert [command[0] for command in commands] == ["demo", "search", "predict", "report", "ablate"]
    # The README leaves these to the defaults.
    commands[1] += ["--encoder", encoders(), "--trials", "2", "--workers", "0"]
    examples = EXAMPLE.findall(page)
    assert len(examples) == 3
    # One process for all: loading torch takes longer than the examples.
    script = ["from headhunt.cli import app"]
    script += [f"assert not app({command!r}, standalone_mode=False)" for command in commands]
    (tmp_path / "page.py").write_text("\n".join([*script, *examples]))
    printed = run_python("page.py", cwd=tmp_path)
    assert len(re.findall(r"^[a-z_]+\t", printed, re.MULTILINE)) == 2  # predict
    assert (tmp_path / "run" / "report.html").is_file()
    assert "'score'" in printed and len(re.findall(r"^[a-z_]+$", printed, re.MULTILINE)) == 2  # two predict in Python


def test_readme_fits_a_person_in_a_hurry():
    page = (ROOT / "README.md").read_text()
    assert len(page.splitlines()) <= 120
    prose = re.sub(r"```.*?```|<!--.*?-->|^[|#!\[].*?$", "", page, flags=re.DOTALL | re.MULTILINE)
    sentences = [sentence.split() for sentence in re.split(r"[.:?!](?=\s)|\n\n|\n- ", prose)]
    assert len(sentences) > 30
    assert [" ".join(words) for words in sentences if len(words) > 25] == []


def test_pages_are_short_and_say_what_they_are_for():
    pages = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 40
    assert len((ROOT / "README.md").read_text().split()) + sum(len(text.split()) for text in pages.values()) <= 22_000
    written = {name: text for name, text in pages.items() if "/commands/" not in name}
    assert [name for name, text in pages.items() if len(text.split()) > 1200] == []
    assert [name for name, text in written.items() if not re.search("After (reading )?this", text[:300])] == []


@pytest.mark.slow
def test_sharing_examples_run(encoders, tmp_path):
    assert "## Limitations" in run_examples("docs/howto/sharing.md", encoders(), tmp_path)
    page = (ROOT / "docs/howto/sharing.md").read_text()
    (push,) = read_commands(page)
    assert "bytes in 6 files" in run_python("-m", "headhunt.cli", *push, cwd=tmp_path)
    documented = set(re.findall(r"`([\w.]+\.(?:json|py|md|safetensors))`", page.split("<!-- runs in CI -->")[0]))
    assert documented >= {path.name for path in (tmp_path / "films").iterdir()}


def test_python_examples_run(encoders, tmp_path):
    assert run_examples("docs/howto/scikit-learn.md", encoders(), tmp_path).split() == ["(2,)", "<U4", "(1,", "2)"]


@pytest.mark.slow
def test_corpus_example_runs(encoders, tmp_path):
    printed = run_examples("docs/howto/corpus.md", encoders(), tmp_path)
    assert "3 2 {'no text': 1}" in printed
    assert "{'id': 'b', 'row': 2, 'label': None, 'problem': 'no text'}" in printed


@pytest.mark.slow
def test_onnx_examples_run(encoders, tmp_path):
    from headhunt.delivery.onnx.export import export

    write_reviews(tmp_path / "labelled.csv")
    spec = headhunt.Spec(encoder=encoders(), recipe=headhunt.Recipe(epochs=1.0))
    headhunt.fit(tmp_path / "labelled.csv", spec=spec, out=tmp_path / "model", precision="fp32")
    export(tmp_path / "model", tmp_path / "out")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "out"), *sys.path])}
    printed = run_examples("docs/howto/onnx.md", encoders(), tmp_path, count=2, env=env)
    assert "(2, 2)" in printed and printed.splitlines()[-1].endswith(("True", "False"))


def test_spaces_page_shows_a_space_that_loads(tmp_path):
    from headhunt.spec import Space

    (text,) = re.findall(
        r"<!-- mine.toml -->\n```toml\n(.*?)```", (ROOT / "docs/howto/spaces.md").read_text(), re.DOTALL
    )
    (tmp_path / "mine.toml").write_text(text)
    space = Space.load(tmp_path / "mine.toml")
    assert space.size() == 3 * 3 * (1 + 2 * 3 * 2) * 3
    assert space.draw(0, encoder="any").recipe.freeze in ("embeddings", 2, 3)


def test_encoder_page_shows_a_space_that_loads(tmp_path):
    from headhunt.spec import Space

    page = (ROOT / "docs/howto/small-encoders.md").read_text()
    (text,) = re.findall(r"<!-- small.toml -->\n```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "small.toml").write_text(text)
    space = Space.load(tmp_path / "small.toml")
    assert space.size() == 2 * 3 * 2 * 2 * 2 * 2
    assert space.draw(0, encoder="any").shape.width in (64, 128)


def test_commands_pages_are_up_to_date():
    code = "import json, runpy; print(json.dumps(runpy.run_path('docs/make_commands.py')['render']()))"
    pages = {path.name: path.read_text() for path in (ROOT / "docs/reference/commands").glob("*.md")}
    assert json.loads(run_python("-c", code, cwd=ROOT)) == pages, "run `make docs`"


def test_public_names_all_load():
    assert sorted(headhunt._HOME) == sorted(headhunt.__all__)
    for name in headhunt.__all__:
        assert getattr(headhunt, name) is not None
    assert headhunt.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = headhunt.nothing


def test_links_between_documents_lead_to_files():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert len(links) > 150
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_pages_name_only_scripts_that_exist():
    text = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    scripts = set(re.findall(r"benchmarks/(?:testbed/)?\w+\.py", text))
    assert len(scripts) > 10
    assert {script for script in scripts if not (ROOT / script).exists()} == set()


def test_site_has_every_page_and_links_to_the_repository():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"[\w/-]+\.md", nav))
    text = "[a](../../benchmarks) [b](../../README.md#x) ![c](../../benchmarks/results/search.svg) [d](../faq.md)"
    code = (
        "import runpy; from types import SimpleNamespace as Page;"
        "rewrite = runpy.run_path('docs/site_hooks.py')['on_page_markdown'];"
        f"page = Page(file=Page(src_uri='howto/data.md')); print(rewrite({text!r}, page, Page(repo_url='URL'), None))"
    )
    pytest.importorskip("mkdocs", reason="pip install --group docs")
    assert run_python("-c", code, cwd=ROOT).split() == [
        "[a](URL/tree/main/benchmarks)",
        "[b](URL/blob/main/README.md#x)",
        "![c](../pictures/search.svg)",
        "[d](../faq.md)",
    ]


def run_with_tiny_encoder(code: str, encoder: str) -> str:
    """Return the code of an example with another encoder and fewer candidates."""
    code = code.replace('"sentence-transformers/all-MiniLM-L6-v2"', repr(encoder))
    return re.sub(r'time="\w+"', 'time="20s", workers=0', code)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(path, encoders, tmp_path):
    (tmp_path / "example.py").write_text(run_with_tiny_encoder(path.read_text(), encoders()))
    assert run_python("example.py", cwd=tmp_path).strip()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_have_outputs(path, encoders, tmp_path):
    book = nbformat.read(path, as_version=4)
    install, *cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert install.source.startswith("%pip install")
    assert all(cell.outputs for cell in cells if "print(" in cell.source)
    install.source = ""
    for cell in cells:
        cell.source = run_with_tiny_encoder(cell.source, encoders())
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_lowest_versions_take_the_highest_bound_of_each_dependency(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        """
        project.dependencies = ["numpy>=1.26", "ray>=2.9", "torch>=2.7"]
        project.optional-dependencies = {data = ["ray[data]>=2.40"], all = ["headhunt[data]"]}
        dependency-groups = {test = ["pytest>=8", "no-bound"]}
        """
    )
    lowest = lowest_versions.read_lowest(tmp_path / "pyproject.toml")
    assert lowest == {"numpy": "1.26", "pytest": "8", "ray": "2.40"}


def test_import_loads_nothing_heavy():
    heavy = ("torch", "transformers", "pyarrow", "pandas")
    code = f"import sys, headhunt, headhunt.cli; print([m for m in {heavy} if m in sys.modules])"
    assert run_python("-c", code, cwd=ROOT).strip() == "[]"


@pytest.mark.slow
def test_contributing_guide_adds_a_pooling(tmp_path):
    """Apply the diff of CONTRIBUTING.md to a copy and run the contract suite for the new pooling."""
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(added) < 25
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    architecture = tmp_path / "src/headhunt/modeling/architecture.py"
    heads = tmp_path / "src/headhunt/modeling/heads.py"
    name, *middle, entry = added
    before = '    "routing": "Heinsen routing (arXiv 2211.11754): tokens vote for four output vectors",\n'
    text = architecture.read_text()
    assert before in text
    architecture.write_text(text.replace(before, before + name + "\n"))
    table = "POOLINGS: dict[str, type[Pooling]] = {\n"
    text = heads.read_text()
    assert table in text and '    "routing": Routing,\n' in text
    text = text.replace(table, "\n".join(middle) + "\n" + table)
    heads.write_text(text.replace('    "routing": Routing,\n', '    "routing": Routing,\n' + entry + "\n"))
    (contract,) = (tmp_path / "tests").rglob("test_*contract.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", contract]
    command += ["-k", "(pooling-norm or twins or tables) and not onnx"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert process.returncode == 0, process.stdout[-2000:]
    assert "." * 6 in process.stdout
