"""Faults of a download."""

from __future__ import annotations

import hashlib
import random
import socketserver
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from injections import KINDS as INJECTIONS
from injections import Outcome, flip_a_bit
from toy_workflow import Run, config

from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

NAMES = ("damaged", "cut short", "cut short, length unsaid", "404", "500", "another page", "gone", "to a file")


@contextmanager
def server(replies: list[Callable[[BaseHTTPRequestHandler], None]]):
    """Serve one reply after another, and the last one repeatedly; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (replies.pop(0) if len(replies) > 1 else replies[0])(self)

        def log_message(self, *arguments) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}/weights"
        finally:
            listening.shutdown()


def send(content: bytes, status: int = 200, length: int | None = -1, **headers: str) -> Callable:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(len(content) if length < 0 else length))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return reply


def reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def download(finished_run: Run, folder: Path, draw: random.Random) -> Outcome:
    """A download of a checkpoint with wrong content; the next request succeeds."""
    folder.mkdir(parents=True)
    content = (
        finished_run.folder / Folder().weights.format(dataset="toy", model="net", weights="pretrained")
    ).read_bytes()
    cut = content[: draw.randrange(len(content))]
    what = draw.choice(NAMES)
    first = {
        "damaged": send(flip_a_bit(content, draw)),
        "cut short": send(cut, length=len(content)),
        "cut short, length unsaid": send(cut, length=None),
        "404": send(b"", 404),
        "500": send(content, 500),
        "another page": send(b"<html>Log in</html>"),
        "gone": reset,
        "to a file": send(b"", 302, Location="file:///etc/hostname"),
    }[what]
    outcome = Outcome(f"download: {what}")
    with server([first, send(content)]) as address:
        scale = {"mean": [0.5] * 3, "std": [0.5] * 3}
        network = {"architecture": "toy_plugin:network", "cam_layer": "features", "checkpoint": address, **scale}
        network["sha256"] = hashlib.sha256(content).hexdigest()
        job = Graph(make_plan(config(models=[{"net": network}]))).job("fetch", {"dataset": "toy", "model": "net"})
        run = Run(folder, [job])
        ended = run.run()
        left = [path for path in run.results.rglob("*") if path.is_file()]
        outcome.noticed = ended.status == 1 and address in ended.sentence and "run again" in ended.sentence
        if not outcome.noticed or left:
            outcome.wrong = f"status {ended.status}: {ended.output[-600:]} {left}"
            return outcome
        ended = run.run()
    output = folder / job.spec.files["weights"]
    outcome.unnoticed = int(not output.exists() or output.read_bytes() != content)
    if ended.status or outcome.unnoticed:
        outcome.wrong = f"status {ended.status}: {ended.output[-600:]}"
    return outcome


KINDS = {**INJECTIONS, "wrong download": download}
