"""A model folder to the Hugging Face Hub: what goes, what stays, and what can go wrong on the way.

Sends a folder that loads, and of it only the files a model is made of: what else lies in the folder stays at home.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headhunt.errors import HeadhuntError, ModelError
from headhunt.predictor import CARD, Predictor
from headhunt.report import model_card as card

CODE = ("architecture.py", "configuration.py", "heads.py", "model.py")
# All that may go, and, where a repository holds one that this model does not have, all that is taken out of it: shards
# or code of the model before would be loaded in place of the new one.
EXPECTED = (
    card.FILE,
    CARD,
    "config.json",
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
    """The Hub cannot be reached, or does not take the model."""


@dataclass(frozen=True)
class Parcel:
    """What of a folder would be sent."""

    folder: Path
    files: dict[str, int]
    """Name and bytes of what goes."""
    left: list[str]
    """What stays."""
    notes: list[str]
    """What to know before others can see it."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.files.values())


def pack(folder: str | Path) -> Parcel:
    """Finds out what would be sent, without a network. The folder is loaded and asked once.

    Raises:
        ModelError: If the folder is no whole model that Headhunt saved.
    """
    folder = Path(folder)
    predictor = Predictor.load(folder)
    text = ["a text"]
    if not all(map(_finite, predictor.outputs(text, text if predictor.pair else None).ravel())):
        raise ModelError(f"{folder} must give finite answers; its weights do not. Train or save the model again.")
    entries = sorted(folder.iterdir(), key=lambda path: path.name)
    goes = [path for path in entries if path.is_file() and any(fnmatchcase(path.name, one) for one in EXPECTED)]
    files = {path.name: path.stat().st_size for path in goes}
    notes = []
    if card.FILE not in files:
        files[card.FILE] = len(card.render(_facts(folder), folder=folder.name).encode())
        notes.append(f"{card.FILE} is not there and is made from {CARD}")
    encoder = predictor.spec.encoder if predictor.spec else ""
    if Path(encoder).is_absolute():
        notes.append(f"{CARD} names the folder of the encoder: {encoder}")
    left = [path.name + ("/" if path.is_dir() else "") for path in entries if path not in goes]
    return Parcel(folder, dict(sorted(files.items())), left, notes)


def check_repo(repo: str) -> str:
    """Refuses a name that no repository can have.

    Raises:
        HubError: If it is no such name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HubError(f"REPO must be as name or user/name; found {repo!r} ({error}).") from None
    return repo


def push(parcel: Parcel, repo: str, *, private: bool = True, message: str | None = None) -> str:
    """Sends a model to the Hub in one commit; a repository that is not there yet is made.

    Args:
        parcel: What `pack` made of a folder.
        repo: As name or user/name.
        private: Whether only you, or your organisation, can see it.
        message: Of the commit.

    Returns:
        Where the model now is.

    Raises:
        HubError: If the Hub cannot be reached or does not take it; nothing is sent then.
    """
    from huggingface_hub import HfApi, get_token

    check_repo(repo)
    if get_token() is None:
        raise HubError("A token is needed to write to the Hub; found none. `hf auth login` keeps one, or set HF_TOKEN.")
    api = HfApi(library_name="headhunt")
    with _explained(repo):
        user = api.whoami()["name"]
    with _explained(repo, user):
        made = api.create_repo(repo, private=private, exist_ok=True)
        name = made.repo_id
        if private and not api.repo_info(name).private:
            raise HubError(f"{name} is there already and everyone can see it. Say --public, or name another REPO.")
        if not (parcel.folder / card.FILE).exists():
            card.write(parcel.folder)
        api.upload_folder(
            repo_id=name,
            folder_path=parcel.folder,
            allow_patterns=list(parcel.files),
            delete_patterns=list(EXPECTED),
            commit_message=message or "Model from Headhunt",
        )
    return str(made)


@contextmanager
def _explained(repo: str, user: str = "the token's owner") -> Iterator[None]:
    """Turns what the Hub and the network answer into one sentence the user can act on."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HeadhuntError:
        raise
    except Exception as error:  # each version of the library has its own kinds for a network that fails
        chain = list(_causes(error))
        if any(isinstance(one, OfflineModeIsEnabled) for one in chain):
            raise HubError("The Hub must be reachable; HF_HUB_OFFLINE is set. Unset it, or use --dry-run.") from None
        answer = next((one for one in chain if isinstance(one, HfHubHTTPError)), None)
        if answer is not None:
            raise HubError(_refusal(answer, repo, user)) from None
        if any(isinstance(one, OSError) or type(one).__module__.startswith(("httpx", "httpcore")) for one in chain):
            reason = str(chain[-1]).strip() or type(chain[-1]).__name__
            raise HubError(
                f"The Hub must be reachable; it is not ({reason}). Check the network and HF_ENDPOINT."
            ) from None
        if isinstance(error, ValueError):
            raise HubError(f"The Hub does not take the model: {' '.join(str(error).split())}") from None
        raise


def _refusal(error: Any, repo: str, user: str) -> str:
    status = error.response.status_code
    said = " ".join((error.server_message or str(error)).split()).rstrip(".")
    if status == 401:
        return f"The token must be a valid one; the Hub refuses it ({said}). `hf auth login` asks for another."
    if status in (403, 404):
        return (
            f"The token must be allowed to write to {repo}; {user} is not ({status}: {said}). Use a token with write "
            "rights, or a REPO of your own."
        )
    if status < 429:
        return f"The Hub does not take the model for {repo} ({status}: {said}). What was there before is unchanged."
    return (
        f"The Hub must take {repo}; it answers {status}: {said}. What was there before is unchanged; try again later."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / CARD).read_text(encoding="utf-8"))


def _finite(value: float) -> bool:
    return value - value == 0
