"""Workers on a real Ray: they train side by side, die and are replaced, and a cluster may lose a node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import sentences
from test_hunt import QUICK

from headhunt.run.directory import Run
from headhunt.study.ray_executor import RayWorkers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


class Toy:
    """A bench without a model: `fraction` says what is to happen."""

    def __init__(self, name: str) -> None:
        if name == "broken":
            raise ValueError("cannot be made")

    def run(self, request, stop):
        from headhunt.run.events import STOPPED
        from headhunt.run.state import Outcome

        if request.spec.get("do") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if request.spec.get("do") == "hang":
            time.sleep(1000)
        if request.spec.get("do") == "wait":
            while not stop():
                time.sleep(0.05)
            return Outcome(STOPPED)
        if request.spec.get("do") == "raise":
            raise ValueError("as asked")
        return Outcome("ok", score=float(request.trial))


def ask(trial: int, do: str = "", **fields) -> Request:
    return Request(trial=trial, spec={"do": do}, rung=0, fraction=1.0, seed=0, **fields)


def gather(workers: RayWorkers, count: int, limit: float = 60) -> dict[int, str]:
    found: dict[int, str] = {}
    until = time.time() + limit
    while len(found) < count and time.time() < until:
        for request, outcome in workers.wait(1.0):
            found[request.trial] = outcome.outcome
    return found


@pytest.fixture(scope="module")
def workers():
    # Workers import this file by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    made = RayWorkers("test_ray:Toy", {"name": "fine"}, workers=2)
    yield made
    made.close()


def test_workers_answer(workers):
    for trial in range(8):
        workers.submit(ask(trial))
    assert gather(workers, 8) == dict.fromkeys(range(8), "ok")


def test_an_exception_is_an_outcome(workers):
    workers.submit(ask(1, "raise"))
    assert gather(workers, 1) == {1: "error"}


def test_a_worker_that_dies_is_lost_and_replaced(workers):
    for trial in range(4):
        workers.submit(ask(trial, "die" if trial == 1 else ""))
    assert gather(workers, 4) == {0: "ok", 1: "lost", 2: "ok", 3: "ok"}
    workers.submit(ask(9))
    assert gather(workers, 1) == {9: "ok"}


def test_a_worker_that_hangs_is_ended_after_its_worker_timeout(workers):
    workers.submit(ask(1, "hang", worker_timeout=1.0))
    workers.submit(ask(2))
    assert gather(workers, 2) == {1: "error", 2: "ok"}


def test_stop_asks_first_and_then_insists(workers):
    workers.submit(ask(1, "wait"))
    workers.submit(ask(2, "hang"))
    time.sleep(0.5)
    began = time.time()
    workers.stop()
    assert time.time() - began < 5
    workers.submit(ask(3))
    assert gather(workers, 1) == {3: "ok"}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "RayWorkers('test_ray:Toy', {'name': 'broken'}, workers=1)",
            "Workers die before they are ready: .*cannot be made",
        ),
        (
            "RayWorkers('test_ray:Toy', {}, address='127.0.0.1:1')",
            "Ray cannot be started on the cluster at 127.0.0.1:1",
        ),
    ],
)
def test_workers_that_cannot_be_had_are_told(call, told):
    code = f"from headhunt.study.ray_executor import RayWorkers\n{call}"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert re.search(told, run.stderr), run.stderr


def write_data(folder: Path) -> None:
    texts, labels = sentences(72)
    rows = "\n".join(f"{text},{label}" for text, label in zip(texts, labels, strict=True))
    (folder / "data.csv").write_text(f"text,label\n{rows}\n")
    (folder / "space.json").write_text(json.dumps(QUICK.to_dict()))


def start(folder: Path, encoder: str, *more: str) -> subprocess.Popen:
    words = ["search", "data.csv", "--encoder", encoder, "--space", "space.json", "--out", "run", "--seed", "2", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "headhunt.cli", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HEADHUNT_CACHE": str(folder / "cache")},
    )


def results(folder: Path) -> list[tuple[int, int, str]]:
    path = folder / "run" / "ledger.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    records = [json.loads(line) for line in lines]
    return [(r["trial"], r["rung"], r["outcome"]) for r in records if r["kind"] == "result"]


def lost(folder: Path) -> int:
    return sum(outcome == "lost" for *_, outcome in results(folder))


def wait_for_results(folder: Path, process: subprocess.Popen, count: int, limit: float = 120) -> None:
    until = time.time() + limit
    while len(results(folder)) < count:
        assert process.poll() is None and time.time() < until, process.communicate()[0]
        time.sleep(0.1)


def check_whole(folder: Path, trials: int) -> None:
    """All candidates have an answer, none has two for a rung, and there is a model."""
    state = Run(folder / "run").state
    settled = [(trial, rung) for trial, rung, outcome in results(folder) if outcome != "lost"]
    assert len(state.trials) == trials and not state.waiting
    assert all(trial.results for trial in state.trials)
    assert len(settled) == len(set(settled))
    assert (folder / "run" / "model" / "headhunt.json").exists()


def wait_for_worker(process: subprocess.Popen) -> psutil.Process:
    """One of its workers, at work; those of other searches on this machine are left alone."""
    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "".join(child.cmdline()).startswith("ray::Worker.run"):
                    return child
    raise AssertionError(process.communicate()[0])


def test_a_search_goes_on_when_a_worker_is_killed(tmp_path, encoders):
    write_data(tmp_path)
    process = start(tmp_path, encoders(), "--workers", "2", "--trials", "14", "--time", "none")
    wait_for_results(tmp_path, process, 2)
    kills = 0
    while not lost(tmp_path):  # a worker may have just ended its trial, or be saving a model
        wait_for_worker(process).kill()
        kills += 1
        until = time.time() + 5
        while not lost(tmp_path) and time.time() < until:
            time.sleep(0.1)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    check_whole(tmp_path, 14)
    assert lost(tmp_path) <= kills <= 5


def test_a_cluster_of_three_nodes_may_lose_one(tmp_path, encoders):
    from ray.cluster_utils import Cluster

    write_data(tmp_path)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        spare = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        process = start(tmp_path, encoders(), "--ray", cluster.address, "--trials", "16", "--time", "none")
        wait_for_results(tmp_path, process, 3)
        before = results(tmp_path)
        cluster.remove_node(spare, allow_graceful=False)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        assert results(tmp_path)[: len(before)] == before
        check_whole(tmp_path, 16)
        # Its workers were started elsewhere, and wrote where they were told to all the same.
        run = Run(tmp_path / "run")
        assert run.state.best is not None and run.predictions(run.state.best.number, run.state.best.best[0]).exists()
    finally:
        cluster.shutdown()
