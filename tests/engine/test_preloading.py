"""What takes long to load is loaded late: the first model of a search would wait for it."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest


@pytest.mark.parametrize(
    ("modules", "late"),
    [
        ("headhunt.engine.preloading", ["numpy", "pyarrow", "torch", "headhunt.spec"]),
        (
            "headhunt.engine.search, headhunt.engine.encoders, headhunt.modeling.pretrained",
            ["pandas", "headhunt.modeling.build", "headhunt.predictor", "transformers.modeling_utils"],
        ),
    ],
)
def test_module_loads_only_what_it_needs(modules, late):
    assert run_python(f"import sys, {modules}; print([name for name in {late} if name in sys.modules])") == "[]"


def test_workers_read_their_rows_without_pandas(tmp_path):
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    code = "import sys, pathlib; from headhunt.data.tables import map_arrow; "
    code += f"map_arrow(pathlib.Path({str(tmp_path / 'rows.arrow')!r})); print('pandas' in sys.modules)"
    assert run_python(code) == "False"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
