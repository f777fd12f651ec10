"""Load a model and serve it on a port until the process is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headhunt import __version__
from headhunt.delivery.serve.limits import Compute, Limits
from headhunt.errors import ModelError
from headhunt.run.model_info import hash_files, not_a_model
from headhunt.storage import cache_dir, copy_permissions, hold_lock, mark_used, prune_cache, read_json, remove
from headhunt.study.fork_server import check_tokenizer, python_command

if TYPE_CHECKING:
    from headhunt.delivery.onnx.runtime import Model

JOINED = {"texts": False, "pairs": True}
"""Paths of several tasks at once, and whether they take two texts."""
EXPORT = """
import sys
from headhunt.delivery.onnx.export import export
from headhunt.errors import HeadhuntError
try:
    export(sys.argv[-2], sys.argv[-1], task=sys.argv[1:-2] or None)
except HeadhuntError as error:
    sys.exit(str(error))
"""


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    compute: Compute | None = None,
    limits: Limits | None = None,
    notify: Callable[[str], None] = print,
) -> None:
    """Serve a model until the process is asked to stop, then finish the queued requests.

    Args:
        folder: An ONNX export, or a folder that Headhunt saved. Every task of a model of several tasks is served.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        token: Token that clients must send, if any.
        compute: Cores and forward passes; all cores by default, with one pass each.
        limits: Limits on requests.
        notify: Called with messages for the user.

    Raises:
        HeadhuntError: If an argument is invalid, the port is taken, or the model cannot be loaded.
    """
    require("fastapi", "uvicorn", "httptools", "orjson", "onnxruntime", "prometheus_client")
    from prometheus_client import disable_created_metrics

    from headhunt.delivery.serve.server import Server, is_loopback, listen
    from headhunt.delivery.serve.service import Service, check_token
    from headhunt.delivery.serve.tasks import TaskServices

    compute = compute or Compute()
    threads = compute.threads or available_cores()
    model_instances = min(compute.model_instances or threads, threads)
    check_token(token)
    if not is_loopback(host) and not token:
        notify(f"warning: anyone who reaches {host}:{port} can use this model; set a token, or listen on 127.0.0.1")
    # A creation time for each counter would double the page without use.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with listen(host, port) as listening_socket:
        options: dict[str, Any] = {"model_instances": model_instances, "max_batch": compute.max_batch}
        options |= {"limits": limits, "token": token}
        service: Service | TaskServices
        cores = threads // model_instances
        if tasks := tasks_of(Path(folder)):
            groups = join_tasks(tasks)
            loaded = {task: load_model(folder, cores, notify, [task]) for task in tasks}
            joined = {path: load_model(folder, cores, notify, names) for path, names in groups.items()}
            service = TaskServices(
                {task: Service(model, **options) for task, model in loaded.items()},
                {path: Service(model, **options) for path, model in joined.items()},
            )
            notify(f"tasks: {', '.join(f'/tasks/{task}/predict' for task in tasks)}")
            for path, names in groups.items():
                notify(f"all of {', '.join(names)} at once: /{path}/predict")
        else:
            service = Service(load_model(folder, cores, notify), **options)
        # A thread that has finished a forward pass should not wait for the interpreter longer than a request takes.
        sys.setswitchinterval(0.0005)
        Server(service, notify=notify, local=is_loopback(host) and not token).run([listening_socket])


def tasks_of(folder: Path) -> dict[str, bool]:
    """Return the names of the tasks of a saved model of several tasks, and True for those that take two texts.

    Any other folder has none.

    Raises:
        ModelError: If its config.json is not valid.
    """
    try:
        if read_json(folder / "headhunt.json").get("problem_type") != "multi_task":
            return {}
        return {str(task["name"]): bool(task["pair"]) for task in read_json(folder / "config.json")["tasks"]}
    except OSError:
        return {}  # loading says what is missing; an export of several tasks has no config.json
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{folder} must be a model that Headhunt saved; its files are not valid.") from None


def join_tasks(tasks: Mapping[str, bool]) -> dict[str, list[str]]:
    """Return the tasks that are also served together, by path: those of one text, and those of two.

    Args:
        tasks: Names of tasks, and True for those that take two texts.
    """
    groups = {path: [name for name, two in tasks.items() if two == pair] for path, pair in JOINED.items()}
    return {path: names for path, names in groups.items() if len(names) > 1}


def load_model(folder: str | Path, threads: int, notify: Callable[[str], None], tasks: Sequence[str] = ()) -> Model:
    """Load an ONNX export, or export a folder that Headhunt saved and load that.

    Args:
        folder: An export, or a folder that Headhunt saved.
        threads: Cores for one forward pass.
        notify: Called before work that takes time.
        tasks: Names of one or more tasks, for a model of several tasks.

    Raises:
        ModelError: If the folder has no model, or a package is missing.
    """
    require("onnxruntime", "tokenizers")
    from headhunt.delivery.onnx.runtime import Model

    folder = Path(folder)
    if not (folder / "headhunt.json").is_file():
        raise not_a_model(folder)
    if (folder / "model.onnx").is_file():
        return _open_export(Model, folder, threads)
    export = cached_export(folder, notify, tasks)
    try:
        return _open_export(Model, export, threads)
    except ModelError:  # a damaged entry of the cache is made again
        remove(export)
        return _open_export(Model, cached_export(folder, notify, tasks), threads)


def _open_export(model: type[Model], folder: Path, threads: int) -> Model:
    try:
        check_tokenizer(folder / "tokenizer.json")
        opened = model(folder, threads=threads)
        # Settings that do not fit the graph are found by the first prediction only.
        opened.predict(["a"], ["a"] if opened.pair else None)
        return opened
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a damaged file can make the runtime raise anything, and the tokenizer panic
        reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        raise ModelError(f"{folder} cannot be loaded: {reason}. Export the model again.") from None


def cached_export(folder: Path, notify: Callable[[str], None], tasks: Sequence[str] = ()) -> Path:
    """Return the ONNX export of a saved model, or of some of its tasks, in the cache; export it first if necessary."""
    key = hash_files(folder, __version__, *tasks)
    exports = cache_dir("exports")
    out = exports / key
    lock = hold_lock(exports / f"{key}.lock", timeout=-1)
    try:
        if (out / "headhunt.json").is_file():
            mark_used(out)
            notify(f"using the ONNX export of {folder} in {out}")
            return out
        what = f"{folder} ({', '.join(tasks)})" if tasks else str(folder)
        notify(f"{what} is not an export: exporting it to ONNX, once, in {out}")
        # A process of its own, so that torch does not stay in the memory of the service.
        command = python_command(EXPORT, *tasks, str(folder), str(out))
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)  # noqa: S603 - the interpreter with our own code; paths are arguments
        if done.returncode:
            raise ModelError((done.stderr.strip() or f"{folder} cannot be exported.").splitlines()[-1])
        out.chmod(0o700)
        for file in out.iterdir():
            copy_permissions(folder / "headhunt.json", file)
    finally:
        lock.release()
    prune_cache("exports")
    return out


def require(*modules: str) -> None:
    """Raise an error that says how to install missing packages.

    Raises:
        ModelError: If a module is missing.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ModelError(f'The service needs {", ".join(missing)}: pip install "headhunt[serve]".')


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
