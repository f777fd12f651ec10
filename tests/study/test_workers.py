"""Tests of executors with workers: processes of this machine, and actors on Ray.

Timeouts are tested with a fake Ray in virtual time, all else with real processes and a real Ray.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from search_processes import (
    check_complete,
    count_lost,
    read_results,
    start_search,
    wait_for_results,
    wait_for_worker,
    write_data,
)
from study_toys import ToyRunner, VirtualClock

from headhunt.run.directory import RunDirectory
from headhunt.run.events import STOPPED
from headhunt.run.ledger import read_state
from headhunt.run.state import Outcome
from headhunt.spec import Spec
from headhunt.study import fork_server, ray_executor, worker_pool
from headhunt.study.local_executor import LocalExecutor
from headhunt.study.ray_executor import RayExecutor
from headhunt.study.requests import EvaluateTrial
from headhunt.study.worker_pool import STOP_TIMEOUT, WorkerPool

TESTS = Path(__file__).parents[1]
TARGET = f"{ToyRunner.__module__}:{ToyRunner.__name__}"  # workers import it by name


def real_ray(test):
    """Mark a test that starts Ray."""
    return pytest.mark.xdist_group("ray")(test)


def request(trial: int, action: str = "ok", **fields) -> EvaluateTrial:
    return EvaluateTrial(trial=trial, spec=Spec(encoder=action), rung=0, fraction=1.0, seed=0, **fields)


# --- timeouts, with a fake Ray


class FakeActor:
    """An actor whose requests hang, unless they wait for the call to stop."""

    def __init__(self, ray: FakeRay) -> None:
        self.waiting: list[str] = []
        self.ready = SimpleNamespace(remote=lambda: ray.finish(f"ready {len(ray.actors)}", 0))
        self.run = SimpleNamespace(remote=self._run)
        self.stop = SimpleNamespace(
            remote=lambda: [ray.finish(reference, Outcome(STOPPED)) for reference in self.waiting]
        )
        ray.actors.append(self)

    def _run(self, request: EvaluateTrial) -> str:
        reference = f"run {request.trial}"
        if request.spec.encoder == "wait":
            self.waiting.append(reference)
        return reference


class FakeRay:
    """The functions of Ray that the executor calls, in virtual time."""

    exceptions = SimpleNamespace(RayError=RuntimeError, OutOfMemoryError=MemoryError)

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.actors: list[FakeActor] = []
        self.killed: list[FakeActor] = []
        self.finished: dict[str, object] = {}

    def finish(self, reference: str, value: object) -> str:
        self.finished[reference] = value
        return reference

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **options):
        return lambda worker: SimpleNamespace(remote=lambda target, settings: FakeActor(self))

    def wait(self, references, num_returns, timeout):
        done = [reference for reference in references if reference in self.finished]
        if not done:
            self.clock.now += timeout
        return done[:num_returns], []

    def get(self, reference):
        return self.finished[reference]

    def kill(self, actor) -> None:
        self.killed.append(actor)


@pytest.fixture
def fake_ray(monkeypatch) -> FakeRay:
    ray = FakeRay(VirtualClock())
    monkeypatch.setattr(ray_executor, "connect", lambda *arguments: (ray, False))
    monkeypatch.setattr(worker_pool, "time", SimpleNamespace(monotonic=ray.clock))
    return ray


def start_requests(ray: FakeRay, *requests: EvaluateTrial) -> RayExecutor:
    executor = RayExecutor("unused", {}, workers=len(requests))
    for submitted in requests:
        executor.submit(submitted)
    return executor


def test_stop_kills_workers_that_do_not_stop_in_time(fake_ray):
    executor = start_requests(fake_ray, request(1, "wait"), request(2, "hang"))
    hanging = next(actor for actor in fake_ray.actors if not actor.waiting)
    started = fake_ray.clock.now
    executor.stop()
    assert fake_ray.clock.now - started == pytest.approx(STOP_TIMEOUT)
    assert fake_ray.killed == [hanging] and len(fake_ray.actors) == 3  # replaced


def test_stop_does_not_wait_if_all_workers_stop(fake_ray):
    executor = start_requests(fake_ray, request(1, "wait"), request(2, "wait"))
    started = fake_ray.clock.now
    executor.stop()
    assert fake_ray.clock.now == started and not fake_ray.killed


def test_wait_kills_a_worker_only_after_its_timeout(fake_ray):
    executor = start_requests(fake_ray, request(1, "hang", worker_timeout=10.0))
    (hanging,) = fake_ray.actors
    while fake_ray.clock.now <= 1010.0:
        assert executor.wait(0.5) == [] and not fake_ray.killed
    ((submitted, outcome),) = executor.wait(0.5)
    assert (submitted.trial, outcome.outcome) == (1, "error") and outcome.seconds == pytest.approx(10.5)
    assert "did not respond" in outcome.extra["message"]
    assert fake_ray.killed == [hanging] and len(fake_ray.actors) == 2


def test_wait_keeps_what_a_worker_has_sent_while_the_driver_was_suspended(fake_ray):
    executor = start_requests(fake_ray, request(1, "hang", worker_timeout=10.0))
    fake_ray.finish("run 1", Outcome("ok"))
    fake_ray.clock.now += 100.0
    ((submitted, outcome),) = executor.wait(0.5)
    assert (submitted.trial, outcome.outcome) == (1, "ok") and not fake_ray.killed


def test_wait_never_kills_a_worker_without_timeout(fake_ray):
    executor = start_requests(fake_ray, request(1, "hang"))
    assert executor.wait(1e6) == [] and executor.wait(1e6) == [] and not fake_ray.killed


def test_default_workers_needs_memory_for_each(monkeypatch):
    monkeypatch.setattr(worker_pool, "available_memory", lambda: worker_pool.MEMORY_PER_WORKER - 1)
    assert worker_pool.default_workers() == 1


# --- real workers


def collect(executor: WorkerPool, count: int, limit: float = 60) -> dict[int, str]:
    """Wait for outcomes by trial number."""
    outcomes: dict[int, str] = {}
    until = time.time() + limit
    while len(outcomes) < count and time.time() < until:
        for submitted, outcome in executor.wait(1.0):
            outcomes[submitted.trial] = outcome.outcome
    return outcomes


def environment() -> dict[str, str]:
    """Return an environment in which workers can import the toy runner."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]  # an empty one is the current directory
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module", params=[LocalExecutor, RayExecutor])
def executor(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        created = request.param(TARGET, {"name": "fine"}, workers=2)
        yield created
        created.close()


@real_ray
def test_executor_returns_every_outcome(executor):
    for trial in range(8):
        executor.submit(request(trial))
    assert collect(executor, 8) == dict.fromkeys(range(8), "ok")


@real_ray
def test_executor_turns_an_exception_into_an_outcome(executor):
    executor.submit(request(1, "raise"))
    assert collect(executor, 1) == {1: "error"}


@real_ray
def test_executor_replaces_a_worker_that_dies(executor):
    for trial in range(4):
        executor.submit(request(trial, "die" if trial == 1 else "ok"))
    assert collect(executor, 4) == {0: "ok", 1: "lost", 2: "ok", 3: "ok"}
    executor.submit(request(9))
    assert collect(executor, 1) == {9: "ok"}


@real_ray
def test_executor_kills_a_worker_that_exceeds_its_timeout(executor):
    executor.submit(request(1, "hang", worker_timeout=1.0))
    executor.submit(request(2))
    assert collect(executor, 2) == {1: "error", 2: "ok"}


@real_ray
def test_executor_stop_keeps_only_workers_that_stop(executor):
    while len(executor._idle) < 2:  # a worker of the last test may still be starting
        assert executor.wait(1.0) == []
    before = set(executor.pids())
    executor.submit(request(1, "wait"))
    executor.submit(request(2, "hang"))
    time.sleep(0.5)
    executor.stop()
    executor.submit(request(3))
    assert collect(executor, 1) == {3: "ok"}
    while len(executor._idle) < 2:
        assert executor.wait(1.0) == []
    assert len(before & set(executor.pids())) == 1


@real_ray
@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            f"RayExecutor({TARGET!r}, {{'name': 'broken'}}, workers=1)",
            "Workers fail before they are ready: .*cannot be created",
            marks=pytest.mark.slow,
        ),
        (
            f"LocalExecutor({TARGET!r}, {{'name': 'broken'}}, workers=1)",
            "Workers fail before they are ready: ValueError: cannot be created",
        ),
        (
            "LocalExecutor('nowhere:Runner', {}, workers=1)",
            "Workers fail before they are ready: ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            f"RayExecutor({TARGET!r}, {{}}, address='127.0.0.1:1')",
            "A Ray cluster runs any code that reaches it, so it must ask for a token",
        ),
        (
            f"os.environ['RAY_AUTH_MODE'] = 'token'; RayExecutor({TARGET!r}, {{}}, address='127.0.0.1:1')",
            "No Ray cluster can be reached at 127.0.0.1:1: .* leave it out to use this machine",
        ),
        (
            f"import ray; ray.__version__ = '2.51.1'; RayExecutor({TARGET!r}, {{}})",
            "Workers need Ray 2.52 or later; found 2.51.1",
        ),
        (
            f"import sys; sys.modules['ray'] = None; RayExecutor({TARGET!r}, {{}})",
            r'Ray .* is not installed: pip install "headhunt\[cluster\]". Or search with 0 workers',
        ),
    ],
)
def test_executor_explains_why_workers_cannot_start(call, message):
    modules = {"RayExecutor": "ray_executor", "LocalExecutor": "local_executor"}
    imports = [f"from headhunt.study.{module} import {name}" for name, module in modules.items() if name in call]
    code = "\n".join(["import os", "os.environ.pop('RAY_AUTH_MODE', None)", *imports, call])
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment()
    )
    assert re.search(message, finished.stderr), finished.stderr


@real_ray
def test_local_ray_asks_for_a_token_and_listens_on_loopback_only():
    code = f"""
import os, psutil
from headhunt.study.ray_executor import RayExecutor
executor = RayExecutor({TARGET!r}, {{'name': 'fine'}}, workers=1)
executor.pids()
for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
    for each in process.net_connections('tcp'):
        if each.status == psutil.CONN_LISTEN:
            print(each.laddr.ip)
print(os.environ['RAY_AUTH_MODE'], len(os.environ['RAY_AUTH_TOKEN']))
executor.close()
"""
    clean = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=clean)
    *addresses, token = done.stdout.splitlines()
    assert len(addresses) > 4 and token == "token 64", done.stderr
    assert set(addresses) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    created = LocalExecutor(TARGET, {"name": "fine"}, workers=1)
    yield created
    created.close()


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, within ten seconds."""
    until = time.time() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.time() > until:
            return False
        time.sleep(0.05)
    return True


def test_local_workers_end_with_their_driver():
    code = (
        f"import os, signal; from headhunt.study.local_executor import LocalExecutor\n"
        f"executor = LocalExecutor({TARGET!r}, {{'name': 'fine'}}, workers=1)\n"
        "print(executor.pids()[0], executor._server._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment())
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert all(is_gone(pid) for pid in pids)


def test_local_workers_are_forked_again_after_the_fork_server_was_killed(local):
    os.kill(local._server._process.pid, signal.SIGKILL)
    local._server._process.wait()
    local.submit(request(1, "die"))
    assert collect(local, 1) == {1: "lost"}
    local.submit(request(2))
    assert collect(local, 1) == {2: "ok"}


def test_local_workers_ignore_signals_to_the_terminals_group_and_requests_to_terminate(local):
    assert os.getpgid(local.pids()[0]) != os.getpgid(0)
    os.kill(local.pids()[0], signal.SIGTERM)
    local.submit(request(1))
    assert collect(local, 1) == {1: "ok"}


def test_program_that_ends_before_its_search_leaves_no_process_behind():
    code = (
        f"from headhunt.study import fork_server; fork_server.preload({TARGET!r})\n"
        "print(fork_server._preloaded[0]._process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment())
    assert not done.stderr and not psutil.pid_exists(int(done.stdout))


def test_preloaded_libraries_are_used_by_the_next_executor_only():
    module = TARGET.partition(":")[0]
    fork_server.preload(TARGET)
    fork_server.preload(TARGET)
    (server,) = fork_server._preloaded
    assert fork_server.take_preloaded("other") is None and not server.alive
    fork_server.preload(TARGET)
    (server,) = fork_server._preloaded
    assert fork_server.take_preloaded(module) is server and not fork_server._preloaded
    server.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_without_collection_leaves_the_garbage_collector_as_it_was(enabled):
    gc.enable() if enabled else gc.disable()
    try:
        with fork_server.without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(ImportError), fork_server.without_collection():
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


# --- searches


@real_ray
@pytest.mark.parametrize(
    ("options", "trials"), [([], 30), pytest.param(["--ray", "local"], 14, marks=pytest.mark.slow)]
)  # forked workers take less time
def test_search_continues_when_a_worker_is_killed(tmp_path, encoders, options, trials):
    write_data(tmp_path)
    options = [*options, "--workers", "2", "--trials", str(trials), "--time", "none"]
    process = start_search(tmp_path, encoders(), *options)
    wait_for_results(tmp_path, process, 2)
    kills = 0
    while not count_lost(tmp_path):  # the worker may have just finished its trial, or be saving a model
        wait_for_worker(process).kill()
        kills += 1
        until = time.time() + 2
        while not count_lost(tmp_path) and time.time() < until:
            time.sleep(0.1)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    check_complete(tmp_path, trials)
    assert count_lost(tmp_path) <= kills <= 8


@pytest.mark.slow
@real_ray
def test_search_continues_when_a_cluster_loses_a_node(tmp_path, encoders, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    write_data(tmp_path)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        spare = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        process = start_search(tmp_path, encoders(), "--ray", cluster.address, "--trials", "16", "--time", "none")
        wait_for_results(tmp_path, process, 3)
        before = read_results(tmp_path)
        cluster.remove_node(spare, allow_graceful=False)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        assert read_results(tmp_path)[: len(before)] == before
        check_complete(tmp_path, 16)
        # Workers on other nodes write into the same run directory.
        directory = RunDirectory(tmp_path / "run")
        best = read_state(directory).best
        assert best is not None and best.best is not None and directory.predictions(best.number, best.best[0]).exists()
    finally:
        cluster.shutdown()
