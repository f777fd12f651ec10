"""What takes long to load is loaded late: the first model of a search would wait for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest
from conftest import sentences


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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork safely, so Ray starts the workers")
def test_search_with_worker_processes_needs_no_ray(tmp_path, encoders):
    (tmp_path / "ray.py").write_text("raise ImportError('not installed')")
    options = {
        "encoder": encoders(),
        "workers": 2,
        "trials": 2,
        "time": None,
        "device": "cpu",
        "out": str(tmp_path / "run"),
    }
    code = f"import headhunt; print(len(headhunt.search({sentences(40)!r}, **{options!r}).state.settled))"
    assert int(run_python(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")) >= 2


def run_python(code: str, **environment: str) -> str:
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
