"""A stand-in for the Hugging Face Hub on loopback: as much of it as streaming a data set asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

SHA = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(name: str, files: Mapping[str, bytes], sha: str = SHA) -> Iterator[str]:
    """Serve one data set; gives the endpoint's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            if path in {f"/api/datasets/{name}", f"/api/datasets/{name}/revision/{sha}"} or re.fullmatch(
                rf"/api/datasets/{name}/revision/main", path
            ):
                siblings = [{"rfilename": each} for each in files]
                self.answer({"id": name, "sha": sha, "siblings": siblings, "tags": [], "private": False})
            elif match := re.match(rf"/api/datasets/{name}/tree/[^/]+(?:/(.*))?$", path):
                below = f"{match[1].rstrip('/')}/" if match[1] else ""
                recursive = "recursive=true" in urlparse(self.path).query.lower()
                there = [entry(each) for each in files] + [folder(each) for each in folders()]
                names = [(each, str(each["path"]).removeprefix(below)) for each in there]
                self.answer(
                    [
                        each
                        for each, name in names
                        if str(each["path"]).startswith(below) and name and (recursive or "/" not in name)
                    ]
                )
            elif match := re.match(rf"/datasets/{name}/resolve/[^/]+/(.*)$", path):
                self.content(match[1])
            else:
                self.answer({"error": "not found"}, 404)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            wanted = (
                json.loads(body).get("paths", [])
                if body.startswith(b"{")
                else re.findall(r"paths=([^&]+)", body.decode())
            )
            self.answer([entry(each) for each in map(unquote, wanted) if each in files])

        def content(self, file: str) -> None:
            if file not in files:
                self.answer({"error": "no such entry"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
            whole = files[file]
            start, end, status = 0, len(whole), 200
            if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, end, status = int(match[1]), min(int(match[2] or len(whole)) + 1, len(whole)), 206
            piece = whole[start:end]
            headers = {"ETag": f'"{oid(file)}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
            if status == 206:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(whole)}"
            self.send(piece, status, headers | {"Content-Type": "application/octet-stream"})

        def answer(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
            self.send(json.dumps(value).encode(), status, {"Content-Type": "application/json"} | dict(headers or {}))

        def send(self, body: bytes, status: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def oid(file: str) -> str:
        return hashlib.sha1(files[file]).hexdigest()

    def entry(file: str) -> dict[str, object]:
        return {"type": "file", "path": file, "size": len(files[file]), "oid": oid(file)}

    def folders() -> set[str]:
        return {file.rsplit("/", 1)[0] for file in files if "/" in file}

    def folder(path: str) -> dict[str, object]:
        return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
