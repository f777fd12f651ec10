"""What the documents say is so: their examples run, their tables are true, the front door is as narrow as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headhunt

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"<!-- runs in CI -->\n```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"<!-- runs in CI -->\n```console\n\$ headhunt (.*?)\n```")


def test_the_examples_of_the_readme_run(encoders, tmp_path):
    examples = EXAMPLE.findall((ROOT / "README.md").read_text())
    assert len(examples) == 2
    script = tmp_path / "readme.py"
    script.write_text(f"ENCODER = {encoders()!r}\n" + "\n".join(examples))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(1, 2)" in done.stdout and "'score'" in done.stdout


def test_the_examples_of_sharing_run(encoders, tmp_path):
    page = (ROOT / "docs/sharing.md").read_text()
    (example,), (command,) = EXAMPLE.findall(page), COMMAND.findall(page)
    for words in (["-c", f"ENCODER = {encoders()!r}\n{example}"], ["-m", "headhunt.cli", *command.split()]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("bytes in 6 files" if "push" in words else "## Limits") in done.stdout
    named = set(re.findall(r"`([\w.]+\.(?:json|py|md|safetensors))`", page.split("A plain head")[0]))
    assert named >= {path.name for path in (tmp_path / "films").iterdir()}


def test_the_examples_of_the_page_on_python_run(encoders, tmp_path):
    (example,) = EXAMPLE.findall((ROOT / "docs/python.md").read_text())
    script = tmp_path / "page.py"
    script.write_text(f"ENCODER = {encoders()!r}\n{example}")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["(2,)", "<U4", "(1,", "2)"]


def test_the_example_of_a_corpus_runs(encoders, tmp_path):
    (example,) = EXAMPLE.findall((ROOT / "docs/corpus.md").read_text())
    script = tmp_path / "corpus.py"
    script.write_text(f"ENCODER = {encoders()!r}\n" + example)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "3 2 {'no text': 1}" in done.stdout
    assert "{'id': 'b', 'row': 2, 'label': None, 'problem': 'no text'}" in done.stdout


def test_the_examples_of_the_onnx_page_run(encoders, tmp_path):
    from conftest import sentences

    from headhunt.delivery.onnx.export import export
    from headhunt.engine import api
    from headhunt.spec import Recipe, Spec

    texts, labels = sentences(40)
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "labelled.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    spec = Spec(encoder=encoders(), recipe=Recipe(epochs=1.0))
    api.fit(tmp_path / "labelled.csv", spec=spec, out=tmp_path / "model", precision="fp32")
    export(tmp_path / "model", tmp_path / "out")
    examples = EXAMPLE.findall((ROOT / "docs/onnx.md").read_text())
    assert len(examples) == 2
    (tmp_path / "page.py").write_text("\n".join(examples))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "out"), *sys.path])}
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(2, 2)" in done.stdout and done.stdout.splitlines()[-1].endswith(("True", "False"))


def test_the_space_of_the_docs_is_a_space(tmp_path):
    from headhunt.spec import Space

    (text,) = re.findall(r"<!-- mine.toml -->\n```toml\n(.*?)```", (ROOT / "docs/spaces.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    space = Space.load(tmp_path / "mine.toml")
    assert space.size() == 3 * 3 * (1 + 2 * 3 * 2) * 3
    assert space.draw(0, encoder="any").recipe.freeze in ("embeddings", 2, 3)


def test_the_page_of_commands_is_up_to_date():
    code = "import runpy; print(runpy.run_path('docs/make_commands.py')['render'](), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == (ROOT / "docs/commands.md").read_text(), "run `make docs`"


def test_the_front_door_is_narrow_and_opens():
    assert sorted(headhunt._HOME) == sorted(headhunt.__all__)
    for name in headhunt.__all__:
        assert getattr(headhunt, name) is not None
    assert headhunt.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = headhunt.nothing


def test_links_in_the_documents_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    found = [(page, link) for page in pages for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())]
    assert len(found) > 5
    assert [(page.name, link) for page, link in found if not (page.parent / link).exists()] == []


def test_importing_headhunt_loads_nothing_heavy():
    heavy = ("torch", "transformers", "pyarrow", "pandas")
    code = f"import sys, headhunt, headhunt.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_adding_a_pooling_takes_what_contributing_says(tmp_path):
    """Applies the diff of CONTRIBUTING.md to a copy and runs the contract suite for the new pooling."""
    import shutil

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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_contract.py"]
    command += ["-k", "(pooling-norm or twins) and not onnx"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "." * 6 in done.stdout
