"""Upload a model folder to the Hugging Face Hub.

Only the files that belong to a model are uploaded, and only if the folder loads. Code is taken from this package, never
from the folder: others may run what is uploaded under the name of its user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from headhunt import modeling
from headhunt.errors import HeadhuntError, ModelError
from headhunt.modeling.configuration import HeadhuntConfig
from headhunt.modeling.ensemble import HeadhuntEnsembleConfig
from headhunt.modeling.multitask import HeadhuntMultiTaskConfig
from headhunt.predictor import CARD, Predictor
from headhunt.report import model_card as card
from headhunt.storage import read_json

CODE = tuple(
    f"{name}.py"
    for name in ("architecture", "configuration", "encoder", "ensemble", "heads", "model", "multitask", "words")
)
CONFIG, AUTO_MAP = "config.json", "auto_map"
# The code files of each type of model, and the classes in them that transformers uses.
CODE_OF = {
    HeadhuntConfig.model_type: tuple(name for name in CODE if name not in ("ensemble.py", "multitask.py")),
    HeadhuntEnsembleConfig.model_type: tuple(name for name in CODE if name != "multitask.py"),
    HeadhuntMultiTaskConfig.model_type: tuple(name for name in CODE if name != "ensemble.py"),
}
CLASSES = {
    HeadhuntConfig.model_type: {
        "AutoConfig": "configuration.HeadhuntConfig",
        "AutoModelForSequenceClassification": "model.HeadhuntForSequenceClassification",
    },
    HeadhuntEnsembleConfig.model_type: {
        "AutoConfig": "ensemble.HeadhuntEnsembleConfig",
        "AutoModelForSequenceClassification": "ensemble.HeadhuntEnsembleForSequenceClassification",
    },
    HeadhuntMultiTaskConfig.model_type: {
        "AutoConfig": "multitask.HeadhuntMultiTaskConfig",
        "AutoModelForSequenceClassification": "multitask.HeadhuntMultiTaskForSequenceClassification",
    },
}
# The files that are uploaded. If the repository has one that this model does not have, it is deleted: shards or code of
# an earlier model would be loaded in place of the new one.
MODEL_FILES = (
    card.FILE,
    CARD,
    CONFIG,
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    *CODE,
)


class HubError(HeadhuntError):
    """The Hub cannot be reached, or refuses the model."""


@dataclass(frozen=True)
class UploadPlan:
    """The files of a folder to upload."""

    folder: Path
    files: dict[str, int]
    """Size in bytes by name."""
    skipped: list[str]
    """Files and folders that are not uploaded."""
    notes: list[str]
    """Hints for the user before the model becomes visible to others."""
    replaced: dict[str, bytes] = field(default_factory=dict)
    """Contents of files that are not uploaded as they are in the folder."""

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(self.files.values())


def plan_upload(folder: str | Path) -> UploadPlan:
    """List the files to upload, without a network. The folder is loaded and used for one prediction.

    Raises:
        ModelError: If the folder is not a complete model that Headhunt saved.
    """
    folder = Path(folder)
    predictor = Predictor.load(folder)
    text = ["a text"]
    for task in predictor.tasks or (None,):
        model = predictor.for_task(task)
        if not np.isfinite(model.outputs(text, text if model.pair else None)).all():
            raise ModelError(f"The outputs of {folder} must be finite; they are not. Train or save the model again.")
    entries = sorted(folder.iterdir(), key=lambda path: path.name)
    uploaded = [path for path in entries if path.is_file() and _is_model_file(path.name)]
    _refuse_links(uploaded)
    replaced = _safe_contents(folder)
    uploaded = [path for path in uploaded if path.name not in CODE or path.name in replaced]
    files = {path.name: path.stat().st_size for path in uploaded} | {name: len(replaced[name]) for name in replaced}
    # Differences in line ends are no reason for a note.
    notes = [
        f"{name} is not as Headhunt wrote it and is replaced"
        for name, content in replaced.items()
        if not (folder / name).is_file() or (folder / name).read_bytes().split() != content.split()
    ]
    if card.FILE not in files:
        files[card.FILE] = len(card.render(card.read_facts(folder), folder=folder.name).encode())
        notes.append(f"{card.FILE} is missing and is made from {CARD}")
    encoder = predictor.spec.encoder if predictor.spec else ""
    if Path(encoder).is_absolute():
        notes.append(f"{CARD} names the folder of the encoder: {encoder}")
    skipped = [path.name + ("/" if path.is_dir() else "") for path in entries if path not in uploaded]
    return UploadPlan(folder, dict(sorted(files.items())), skipped, notes, replaced)


def _refuse_links(paths: Iterable[Path]) -> None:
    """Refuse files that are elsewhere: an upload would publish what they point to.

    Raises:
        ModelError: If one is a symbolic link.
    """
    links = [path.name for path in paths if path.is_symlink()]
    if links:
        raise ModelError(
            f"The files of a model must be in its folder; {', '.join(links)} links to "
            "another place. Copy the folder with  cp -rL  and push the copy."
        )


def _safe_contents(folder: Path) -> dict[str, bytes]:
    """Return the code of the head from this package, and the configurations that name no other code.

    Args:
        folder: A model that Headhunt can load.
    """
    contents: dict[str, bytes] = {}
    config = read_json(folder / CONFIG)
    expected = _without_code(config)
    kind = config.get("model_type")
    if kind in CODE_OF:
        package = Path(modeling.__path__[0])
        contents |= {name: (package / name).read_bytes() for name in CODE_OF[kind]}
        expected[AUTO_MAP] = CLASSES[kind]
    if expected != config:
        contents[CONFIG] = _encode(expected)
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        config = read_json(settings)
        if AUTO_MAP in config:
            contents[settings.name] = _encode({key: value for key, value in config.items() if key != AUTO_MAP})
    return contents


def _without_code(value: Any) -> Any:
    """Return a configuration whose parts, such as encoders and members, name no code."""
    if isinstance(value, dict):
        return {key: _without_code(item) for key, item in value.items() if key != AUTO_MAP}
    return [_without_code(item) for item in value] if isinstance(value, list) else value


def _encode(config: dict[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def check_repo(repo: str) -> str:
    """Return the name of a repository if it is valid.

    Raises:
        HubError: If it is not.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HubError(f"The repository must be given as name or user/name; found {repo!r} ({error}).") from None
    return repo


def push(plan: UploadPlan, repo: str, *, private: bool = True, message: str | None = None) -> str:
    """Upload a model to the Hub in one commit. The repository is created if it does not exist.

    Args:
        plan: The files to upload, of `plan_upload`.
        repo: The repository, as name or user/name.
        private: Whether only you, or your organisation, can see a new repository.
        message: Commit message.

    Returns:
        The URL of the model.

    Raises:
        HubError: If the Hub cannot be reached or refuses the model; nothing is uploaded then.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    check_repo(repo)
    if get_token() is None:
        raise HubError("The Hub needs a token for uploads; found none. Run `hf auth login`, or set HF_TOKEN.")
    api = HfApi(library_name="headhunt")
    with _explain_errors(repo):
        user = api.whoami()["name"]
    with _explain_errors(repo, user):
        url = api.create_repo(repo, private=private, exist_ok=True)
        name = url.repo_id
        if private and not api.repo_info(name).private:
            raise HubError(f"{name} exists and is public. Push it as public, or give another repository.")
        if not (plan.folder / card.FILE).exists():
            card.write(plan.folder)
        paths = {file: plan.folder / file for file in plan.files if file not in plan.replaced}
        _refuse_links(paths.values())
        contents: dict[str, Any] = {**paths, **plan.replaced}
        old = [file for file in api.list_repo_files(name) if _is_model_file(file) and file not in contents]
        api.create_commit(
            name,
            operations=[
                *(CommitOperationDelete(file) for file in old),
                *(CommitOperationAdd(file, content) for file, content in contents.items()),
            ],
            commit_message=message or "Model from Headhunt",
        )
    return str(url)


@contextmanager
def _explain_errors(repo: str, user: str = "the token's owner") -> Iterator[None]:
    """Turn errors of the Hub and the network in the block into one message that the user can act on."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HeadhuntError:
        raise
    except Exception as error:  # versions of the library have different errors for a failing network
        chain = list(_causes(error))
        if any(isinstance(cause, OfflineModeIsEnabled) for cause in chain):
            raise HubError("The Hub must be reachable; HF_HUB_OFFLINE is set. Unset it.") from None
        response_error = next((cause for cause in chain if isinstance(cause, HfHubHTTPError)), None)
        if response_error is not None:
            raise HubError(_describe_refusal(response_error, repo, user)) from None
        modules = ("httpx", "httpcore")
        if any(isinstance(cause, OSError) or type(cause).__module__.startswith(modules) for cause in chain):
            reason = str(chain[-1]).strip() or type(chain[-1]).__name__
            raise HubError(
                f"The Hub must be reachable; it is not ({reason}). Check the network and HF_ENDPOINT."
            ) from None
        if isinstance(error, ValueError):
            raise HubError(f"The Hub refuses the model: {' '.join(str(error).split())}") from None
        raise


def _describe_refusal(error: Any, repo: str, user: str) -> str:
    status = error.response.status_code
    reason = " ".join((error.server_message or str(error)).split()).rstrip(".")
    if status == 401:
        return f"The token must be valid; the Hub refuses it ({reason}). Run `hf auth login`."
    if status in (403, 404):
        return (
            f"The token must be allowed to write to {repo}; {user} is not ({status}: {reason}). Use a token with write "
            "permission, or another repository."
        )
    if status < 429:
        return f"The Hub refuses the model for {repo} ({status}: {reason}). The repository is unchanged."
    return f"The Hub must accept {repo}; it responds {status}: {reason}. The repository is unchanged; try again later."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_model_file(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in MODEL_FILES)
