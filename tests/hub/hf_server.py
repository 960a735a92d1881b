"""A stand-in of the Hugging Face hub on this machine: the endpoints that huggingface_hub calls for models.

Repositories have commits, each a whole tree of files; large files go the way of git-LFS. Tokens are checked, and errors
come with the status and the X-Error-Code that the real hub sends.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN, READER = "hf_writer", "hf_reader"
Tree = dict[str, bytes]


class Repository:
    def __init__(self, private: bool = False, gated: bool = False) -> None:
        self.private, self.gated = private, gated
        self.commits: dict[str, Tree] = {}
        self.refs: dict[str, str] = {}
        self.commit({})

    def commit(self, tree: Tree) -> str:
        text = repr(sorted(tree.items())) + str(len(self.commits))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.refs["main"] = dict(tree), sha
        return sha

    def find(self, revision: str) -> str | None:
        sha = self.refs.get(revision, revision)
        return sha if sha in self.commits else None

    @property
    def head(self) -> Tree:
        return self.commits[self.refs["main"]]


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        """Every request: its method and path."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        self.server.requests.append(f"{self.command} {self.path}")

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.send(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def fail(self, status: int, code: str = "", message: str = "") -> None:
        self.json({"error": message or code}, status, X_Error_Code=code, X_Error_Message=message or code)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def opened(self, name: str, *, write: bool = False) -> Repository | None:
        """The repository, if it is there and the token may read or write it; else the answer is sent."""
        found = self.server.repositories.get(name)
        if self.token and self.token not in (TOKEN, READER):
            self.fail(401, message="Invalid credentials in Authorization header")
        elif found is None or (found.private and not self.token):
            # The real hub does not tell strangers which private repositories there are.
            self.fail(404 if self.token else 401, "RepoNotFound", "Repository not found")
        elif found.gated and self.token != TOKEN:
            self.fail(403, "GatedRepo", "Access to this model is restricted")
        elif write and self.token != TOKEN:
            self.fail(403, message="You don't have the rights to do this")
        else:
            return found
        return None

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.info(match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            return self.tree(match[1], match[2])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(*match.groups())
        return self.fail(404, message=f"no such endpoint: {path}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def info(self, name: str, revision: str) -> None:
        if (repository := self.opened(name)) is None:
            return
        if (sha := repository.find(revision)) is None:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = [{"rfilename": path} for path in sorted(repository.commits[sha])]
        self.json({"_id": "1", "id": name, "modelId": name, "sha": sha, "private": repository.private,
                   "gated": repository.gated, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
                   "siblings": files})  # fmt: skip

    def tree(self, name: str, revision: str) -> None:
        if (repository := self.opened(name)) is None:
            return
        if (sha := repository.find(revision)) is None:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        found = []
        for path, data in sorted(repository.commits[sha].items()):
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}
            if is_large(path):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            found.append(entry)
        self.json(found)

    def resolve(self, name: str, revision: str, path: str) -> None:
        if (repository := self.opened(name)) is None:
            return
        if (sha := repository.find(revision)) is None:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in repository.commits[sha]:
            return self.fail(404, "EntryNotFound", "Entry not found")
        data = repository.commits[sha][path]
        etag = hashlib.sha256(data).hexdigest() if is_large(path) else git_oid(data)
        self.send(200, data, ETag=f'"{etag}"', X_Repo_Commit=sha, Accept_Ranges="bytes")

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.body()
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return self.validate(json.loads(body)["content"])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", path):
            return self.preupload(match[1], json.loads(body))
        if match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.batch(match[1], json.loads(body))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            return self.commit(match[1], body)
        if match := re.fullmatch(r"/lfs/verify", path):
            return self.send(200 if json.loads(body)["oid"] in self.server.large else 404)
        return self.fail(404, message=f"no such endpoint: {path}")

    def create(self, wanted: dict[str, Any]) -> None:
        if not self.token or self.token not in (TOKEN, READER):
            return self.fail(401, message="Invalid username or password.")
        if self.token != TOKEN:
            return self.fail(403, message="You don't have the rights to create a model under this namespace")
        name = f"{wanted['organization']}/{wanted['name']}"
        url = f"{self.server.url}/{name}"
        if name in self.server.repositories:
            return self.json({"error": "You already created this model repo", "url": url}, 409)
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.server.repositories[name] = Repository(bool(private))
        self.json({"url": url, "name": name, "id": "1"})

    def validate(self, content: str) -> None:
        match = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        metadata = yaml.safe_load(match[1]) if match else None
        if not isinstance(metadata, dict):
            return self.json({"errors": [{"message": "no metadata"}], "warnings": []}, 400)
        errors = [
            {"message": f'"{key}" must be a model on the hub'}
            for key in ("base_model",)
            if key in metadata and not re.fullmatch(r"[\w.-]+/[\w.-]+", str(metadata[key]))
        ]
        for entry in metadata.get("model-index", []):
            for result in entry["results"]:
                for needed in ("task", "dataset", "metrics"):
                    errors += [] if result.get(needed) else [{"message": f"model-index: {needed} is missing"}]
        self.json({"errors": errors, "warnings": []}, 400 if errors else 200)

    def preupload(self, name: str, wanted: dict[str, Any]) -> None:
        if (repository := self.opened(name, write=True)) is None:
            return
        files = []
        for file in wanted["files"]:
            path, there = file["path"], repository.head.get(file["path"])
            mode = "lfs" if is_large(path) else "regular"
            oid = None if there is None else hashlib.sha256(there).hexdigest() if is_large(path) else git_oid(there)
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.json({"files": files})

    def batch(self, name: str, wanted: dict[str, Any]) -> None:
        if self.opened(name, write=True) is None:
            return
        objects = []
        for each in wanted["objects"]:
            entry: dict[str, Any] = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.server.large:
                entry["actions"] = {
                    "upload": {"href": f"{self.server.url}/lfs/{each['oid']}", "header": {}},
                    "verify": {"href": f"{self.server.url}/lfs/verify", "header": {}},
                }
            objects.append(entry)
        self.json({"transfer": "basic", "objects": objects})

    def do_PUT(self) -> None:
        data, oid = self.body(), self.path.rpartition("/")[2]
        if hashlib.sha256(data).hexdigest() != oid:
            return self.fail(422, message="the content is not what its oid says")
        self.server.large[oid] = data
        self.send(200)

    def commit(self, name: str, body: bytes) -> None:
        if (repository := self.opened(name, write=True)) is None:
            return
        tree = dict(repository.head)
        for line in body.splitlines():
            key, value = (entry := json.loads(line))["key"], entry["value"]
            if key == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                tree[value["path"]] = self.server.large[value["oid"]]
            elif key == "deletedFile":
                tree.pop(value["path"], None)
            elif key == "deletedFolder":
                tree = {path: data for path, data in tree.items() if not path.startswith(value["path"])}
        sha = repository.commit(tree)
        url = f"{self.server.url}/{name}/commit/{sha}"
        self.json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
