"""A stand-in for the Hugging Face Hub on this machine, with the part of its protocol for uploads and downloads.

It stores uploads, checks the hash of each large file, and serves the files.
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
    """A repository: its files at the latest commit, and all commit messages."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def sha(self) -> str:
        """Hash that changes with every commit."""
        return hashlib.sha1(repr((sorted(self.files), self.messages)).encode()).hexdigest()


class Hub:
    """The server, a context manager. Processes with the environment `env` use it in place of the Hub.

    Args:
        status: Status of the response to requests whose path contains the key.
    """

    def __init__(self, status: dict[str, int] | None = None) -> None:
        self.status = status or {}
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.verified: list[str] = []
        self.requests: list[str] = []
        self.writable = {"me"}

        class Handler(_Handler):
            hub = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
        """Return an environment whose processes use this server as the Hub, without Xet's protocol for large files."""
        kept = {name: value for name, value in base.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        return kept | ({"HF_TOKEN": token} if token else {})


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.respond()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - names of http.server

    def respond(self) -> None:
        body = self.body()
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        for part, status in self.hub.status.items():
            if part in path:
                return self.refuse(status, "as the test requests")
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
                return self.send_json({"name": "me", "type": "user"})
            case ["validate-yaml"]:
                return self.validate(json.loads(body)["content"])
            case ["repos", "create"]:
                return self.create(json.loads(body))
            case ["models", user, name, *rest] if f"{user}/{name}" in self.hub.repos:
                return self.model(f"{user}/{name}", rest, body)
        return self.refuse(404, "Repository not found", "RepoNotFound")

    def validate(self, content: str) -> None:
        """Check the rules of the Hub that a wrong model card would break."""
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
        self.send_json({"errors": errors, "warnings": []}, 400 if errors else 200)

    def create(self, request: dict[str, Any]) -> None:
        user = request.get("organization") or "me"
        if user not in self.hub.writable:
            return self.refuse(403, f"You don't have the rights to create a model under the namespace {user!r}")
        repo = f"{user}/{request['name']}"
        known = repo in self.hub.repos
        self.hub.repos.setdefault(repo, Repo(request.get("visibility") == "private"))
        return self.send_json({"url": f"{self.hub.url}/{repo}", "error": "exists"}, 409 if known else 200)

    def model(self, name: str, words: list[str], body: bytes) -> None:
        repo = self.hub.repos[name]
        match words:
            case [] | ["revision", _]:
                files = [{"rfilename": path} for path in repo.files]
                return self.send_json({"id": name, "sha": repo.sha, "private": repo.private, "siblings": files})
            case ["tree", _]:
                entries = [
                    {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for path, data in repo.files.items()
                ]
                return self.send_json(entries)
            case ["preupload", _]:
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
                return self.send_json({"files": files})
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
                        return self.refuse(400, "a large file is missing")
                    files[value["path"]] = self.hub.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        repo.files = files
        repo.messages.append(message)
        return self.send_json({"commitUrl": f"{self.hub.url}/{name}/commit/{repo.sha}", "commitOid": repo.sha})

    def large(self, words: list[str], body: bytes) -> None:
        request = json.loads(body)
        assert request["operation"] == "upload" and request["hash_algo"] == "sha256"
        objects = []
        for entry in request["objects"]:
            href = f"{self.hub.url}/large/{entry['oid']}"
            objects.append({**entry, "actions": {"upload": {"href": href}, "verify": {"href": href}}})
        self.send_json({"transfer": "basic", "objects": objects})

    def store(self, oid: str, body: bytes) -> None:
        """Store a large file, or confirm that it has arrived."""
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != oid:
                return self.refuse(400, "the hash differs")
            self.hub.large[oid] = body
        else:
            request = json.loads(body)
            if len(self.hub.large.get(request["oid"], b"")) != request["size"]:
                return self.refuse(404, "not here")
            self.hub.verified.append(oid)
        return self.send_json({})

    def file(self, words: list[str]) -> None:
        name, rest = "/".join(words[:2]), words[2:]
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            return self.refuse(401, "Repository not found", "RepoNotFound")
        path = "/".join(rest[2:])
        if rest[:1] != ["resolve"] or path not in repo.files:
            return self.refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": repo.sha})
        data = repo.files[path]
        headers = {"X-Repo-Commit": repo.sha, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        return self.send(200, data, "application/octet-stream", headers)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send_json(self, data: Any, status: int = 200) -> None:
        self.send(status, json.dumps(data).encode(), "application/json", {})

    def refuse(self, status: int, message: str, code: str | None = None, more: dict[str, str] | None = None) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(more or {})}
        self.send(status, json.dumps({"error": message}).encode(), "application/json", headers)

    def send(self, status: int, data: bytes, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
