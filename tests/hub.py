"""A stand-in for the Hugging Face Hub on loopback that speaks as much of its protocol as pushing and loading need.

Keeps what it was sent, checks each large file against the hash it was announced with, and serves it back.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

TOKEN = "hf_stand_in"


@dataclass
class Repo:
    """One repository: its files at the newest commit, and the messages of all."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def sha(self) -> str:
        """Forty digits that change with every commit."""
        return hashlib.sha1(repr((sorted(self.files), self.messages)).encode()).hexdigest()


class Hub:
    """The server; use it with `with`, and its `env` for the processes that are to speak to it.

    Args:
        status: What it answers to requests whose path contains the key, in place of what it should.
    """

    def __init__(self, status: dict[str, int] | None = None) -> None:
        self.status = status or {}
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.verified: list[str] = []
        self.asked: list[str] = []
        self.writable = {"me"}

        class Answer(_Answer):
            hub = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def env(self, base: dict[str, str], home: Any, token: str | None = TOKEN) -> dict[str, str]:
        """An environment whose processes take this for the Hub.

        Xet has a protocol of its own for large files, which this does not speak; without it they go as they did before.
        """
        kept = {name: value for name, value in base.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        return kept | ({"HF_TOKEN": token} if token else {})


class _Answer(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the names that http.server looks for

    def answer(self) -> None:
        body = self.body()
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {path}")
        for part, status in self.hub.status.items():
            if part in path:
                return self.refuse(status, "as the test wishes")
        words = path.strip("/").split("/")
        if words[:1] == ["large"]:
            return self.store(words[1], body)
        if words[:1] != ["api"]:
            return self.large(words, body) if words[-1] == "batch" else self.file(words)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and self.command != "GET":
            return self.refuse(401, "Invalid username or password.")
        return self.api(words[1:], body)

    def api(self, words: list[str], body: bytes) -> None:
        match words:
            case ["whoami-v2"]:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    return self.refuse(401, "Invalid credentials in Authorization header")
                return self.give({"name": "me", "type": "user"})
            case ["validate-yaml"]:
                return self.validate(json.loads(body)["content"])
            case ["repos", "create"]:
                return self.create(json.loads(body))
            case ["models", user, name, *rest] if f"{user}/{name}" in self.hub.repos:
                return self.model(f"{user}/{name}", rest, body)
        return self.refuse(404, "Repository not found", "RepoNotFound")

    def validate(self, content: str) -> None:
        """The parts of the Hub's rules that a wrong card would break."""
        data = yaml.safe_load(content.split("---\n")[1])
        wrong = [name for name in ("library_name", "pipeline_tag") if not isinstance(data.get(name), str)]
        for entry in data.get("model-index", []):
            for result in entry["results"]:
                wrong += (
                    []
                    if result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]
                    else ["results"]
                )
                wrong += [metric for metric in result["metrics"] if not metric["type"] or "value" not in metric]
        errors = [{"message": f"{name} is wrong"} for name in wrong]
        self.give({"errors": errors, "warnings": []}, 400 if errors else 200)

    def create(self, asked: dict[str, Any]) -> None:
        user = asked.get("organization") or "me"
        if user not in self.hub.writable:
            return self.refuse(403, f"You don't have the rights to create a model under the namespace {user!r}")
        repo = f"{user}/{asked['name']}"
        known = repo in self.hub.repos
        self.hub.repos.setdefault(repo, Repo(asked.get("visibility") == "private"))
        return self.give({"url": f"{self.hub.url}/{repo}", "error": "exists"}, 409 if known else 200)

    def model(self, name: str, words: list[str], body: bytes) -> None:
        repo = self.hub.repos[name]
        match words:
            case [] | ["revision", _]:
                files = [{"rfilename": path} for path in repo.files]
                return self.give({"id": name, "sha": repo.sha, "private": repo.private, "siblings": files})
            case ["tree", _]:
                entries = [
                    {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for path, data in repo.files.items()
                ]
                return self.give(entries)
            case ["preupload", _]:
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
                return self.give({"files": files})
            case ["commit", _]:
                return self.commit(repo, name, [json.loads(line) for line in body.splitlines()])
        return self.refuse(404, "Entry not found", "EntryNotFound")

    def commit(self, repo: Repo, name: str, lines: list[dict[str, Any]]) -> None:
        files = dict(repo.files)
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.hub.verified:
                        return self.refuse(400, "a large file was not sent")
                    files[value["path"]] = self.hub.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        repo.files = files
        repo.messages.append(message)
        return self.give({"commitUrl": f"{self.hub.url}/{name}/commit/{repo.sha}", "commitOid": repo.sha})

    def large(self, words: list[str], body: bytes) -> None:
        asked = json.loads(body)
        assert asked["operation"] == "upload" and asked["hash_algo"] == "sha256"
        objects = []
        for entry in asked["objects"]:
            href = f"{self.hub.url}/large/{entry['oid']}"
            objects.append({**entry, "actions": {"upload": {"href": href}, "verify": {"href": href}}})
        self.give({"transfer": "basic", "objects": objects})

    def store(self, oid: str, body: bytes) -> None:
        """The bytes themselves, and then the question whether they have arrived."""
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != oid:
                return self.refuse(400, "these bytes have another hash")
            self.hub.large[oid] = body
        else:
            asked = json.loads(body)
            if len(self.hub.large.get(asked["oid"], b"")) != asked["size"]:
                return self.refuse(404, "not here")
            self.hub.verified.append(oid)
        return self.give({})

    def file(self, words: list[str]) -> None:
        name, rest = "/".join(words[:2]), words[2:]
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            return self.refuse(401, "Repository not found", "RepoNotFound")
        path = "/".join(rest[2:])
        if rest[:1] != ["resolve"] or path not in repo.files:
            return self.refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": repo.sha})
        data = repo.files[path]
        named = {"X-Repo-Commit": repo.sha, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        return self.send(200, data, "application/octet-stream", named)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def give(self, data: Any, status: int = 200) -> None:
        self.send(status, json.dumps(data).encode(), "application/json", {})

    def refuse(self, status: int, message: str, code: str | None = None, more: dict[str, str] | None = None) -> None:
        named = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(more or {})}
        self.send(status, json.dumps({"error": message}).encode(), "application/json", named)

    def send(self, status: int, data: bytes, problem_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": problem_type, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
