"""Faults of a download, and those of Snakemake itself: two in one folder, and a node that takes all with it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import yaml
from injections import KINDS, Outcome, flip_a_bit
from snakemake_project import Project, clone
from toy_workflow import Run, config

from heatproof.folder import Folder
from heatproof.plan.graph import Graph
from heatproof.plan.validate import make_plan

HERE = Path(__file__).parent
# Put at the head of what Snakemake's jobs run.
WATCH = """import sys

sys.path.append({here!r})
from ledger import watch

watch({ledger!r})
"""
PLUGIN = Path(__file__).parents[1]
NAMES = ("damaged", "cut short", "cut short, length unsaid", "404", "500", "another page", "gone", "to a file")

# ---- downloads -------------------------------------------------------------------------------------------------------


@contextmanager
def server(answers: list[Callable[[BaseHTTPRequestHandler], None]]):
    """Serve the next answer to every request, the last one for ever; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (answers.pop(0) if len(answers) > 1 else answers[0])(self)

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
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(len(content) if length < 0 else length))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def download(whole: Run, folder: Path, draw: random.Random) -> Outcome:
    """A checkpoint that arrives as something else; asked again, the server is well."""
    folder.mkdir(parents=True)
    given = (whole.folder / Folder().weights.format(dataset="toy", model="net", weights="pretrained")).read_bytes()
    cut = given[: draw.randrange(len(given))]
    what = draw.choice(NAMES)
    first = {
        "damaged": send(flip_a_bit(given, draw)),
        "cut short": send(cut, length=len(given)),
        "cut short, length unsaid": send(cut, length=None),
        "404": send(b"", 404),
        "500": send(given, 500),
        "another page": send(b"<html>Log in</html>"),
        "gone": reset,
        "to a file": send(b"", 302, Location="file:///etc/hostname"),
    }[what]
    outcome = Outcome(f"download: {what}")
    with server([first, send(given)]) as address:
        scale = {"mean": [0.5] * 3, "std": [0.5] * 3}
        network = {"architecture": "toy_plugin:network", "cam_layer": "features", "checkpoint": address, **scale}
        network["sha256"] = hashlib.sha256(given).hexdigest()
        job = Graph(make_plan(config(models=[{"net": network}]))).job("fetch", {"dataset": "toy", "model": "net"})
        run = Run(folder, [job])
        ended = run.run()
        left = [path for path in run.results.rglob("*") if path.is_file()]
        outcome.noticed = ended.status == 1 and address in ended.sentence and "run again" in ended.sentence
        if not outcome.noticed or left:
            outcome.wrong = f"status {ended.status}: {ended.said[-600:]} {left}"
            return outcome
        ended = run.run()
    output = folder / job.told.files["weights"]
    outcome.unnoticed = int(not output.exists() or output.read_bytes() != given)
    if ended.status or outcome.unnoticed:
        outcome.wrong = f"status {ended.status}: {ended.said[-600:]}"
    return outcome


# ---- Snakemake -------------------------------------------------------------------------------------------------------


class ToyProject(Project):
    """Snakemake over the toy project, whose plugin jobs can import."""

    def environment(self) -> dict[str, str]:
        before = super().environment()
        return {**before, "PYTHONPATH": os.pathsep.join([before["PYTHONPATH"], str(PLUGIN)])}

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(
            self.command("results/idsds_table.csv"),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def project(whole: Run, folder: Path, draw: random.Random) -> ToyProject:
    """Return a project with the results of a whole run, from which some are missing."""
    made = ToyProject(clone(folder), yaml.safe_load(yaml.safe_dump(config())))
    made.write_config()
    # In the place of the embedded one, whose keys would else be filled in.
    shutil.copy(folder / "micro.yaml", folder / "config/config.yaml")
    # Jobs write into the ledger too.
    watched = WATCH.format(here=str(HERE), ledger=str(folder / "ledger"))
    job = folder / "src/heatproof/job.py"
    job.write_text(job.read_text().replace("import sys\n", watched, 1))
    run = whole.copy(folder)
    gone = draw.choice([("maps", "scores"), ("drops", "scores"), ("scores",)])
    for job in run.jobs:
        if job.outputs[0].split("/")[1] in (*gone, "idsds_table.csv"):
            run.remove(job.outputs)
    return made


def compared(made: ToyProject, whole: Run, outcome: Outcome) -> Outcome:
    done = subprocess.run(
        made.command("results/idsds_table.csv"), cwd=made.folder, env=made.environment(), capture_output=True, text=True
    )
    expected = whole.bytes()
    left = {name: content for name, content in Run(made.folder, []).bytes().items() if "/logs/" not in name}
    relevant = [name for name in expected if "/c/" in name or name.endswith((".csv", ".safetensors"))]
    differ = [name for name in relevant if left.get(name) != expected[name]]
    again = Run(made.folder, []).again()
    outcome.lost, outcome.unnoticed = len(again), len(differ)
    if done.returncode or differ or again:
        said = (done.stdout + done.stderr)[-500:]
        outcome.wrong = f"status {done.returncode}, differ: {differ[:3]}, made again: {again[:3]}: {said}"
    return outcome


def two_snakemakes(whole: Run, folder: Path, draw: random.Random) -> Outcome:
    """A second Snakemake in a folder in which one is at work."""
    made = project(whole, folder, draw)
    first = made.start()
    deadline = time.monotonic() + 60
    while not _held(made.folder / ".snakemake/heatproof.storage.lock", first.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 1))
    # It does not end before the second has looked, however slow the machine is.
    running = first.poll() is None
    first.send_signal(signal.SIGSTOP)
    second = made.start()
    told = second.communicate(timeout=240)[0]
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=240)
    outcome = Outcome("two at once", injected=running)
    outcome.noticed = second.returncode == 1 and "Another Snakemake is running in this folder: wait for it" in told
    if running and (not outcome.noticed or first.returncode):
        outcome.wrong = f"{first.returncode}, {second.returncode}: {told[-400:]}"
    return outcome if outcome.wrong else compared(made, whole, outcome)


def _held(lock: Path, process: int) -> bool:
    with suppress(psutil.Error, OSError):
        return any(Path(file.path) == lock.resolve() for file in psutil.Process(process).open_files())
    return False


def node_lost(whole: Run, folder: Path, draw: random.Random) -> Outcome:
    """Snakemake and all of its jobs die at once."""
    made = project(whole, folder, draw)
    running = made.start()
    moment = draw.uniform(2, 12)
    deadline = time.monotonic() + moment
    while running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    hit = running.poll() is None
    with suppress(psutil.Error):
        victims = [*psutil.Process(running.pid).children(recursive=True), psutil.Process(running.pid)]
        for victim in victims:
            with suppress(psutil.Error):
                victim.send_signal(signal.SIGKILL)
    running.communicate(timeout=60)
    return compared(made, whole, Outcome(f"after {moment:.1f} s", injected=hit, noticed=hit))


LIGHT = {**KINDS, "wrong download": download}
HEAVY = {"two Snakemakes": two_snakemakes, "Snakemake and jobs killed": node_lost}
# Real Snakemake takes some ten seconds a run.
EVERY = 33


def schedule(runs: int, light: dict, heavy: dict) -> list[str]:
    """Return the kind of every run: the kinds in turn, those of Snakemake itself once in a while."""
    names, count = [], 0
    for number in range(runs):
        chosen = heavy if heavy and (number % EVERY == EVERY - 1 or not light) else light
        place = number // EVERY if chosen is heavy and light else count
        names.append(list(chosen)[place % len(chosen)])
        count += chosen is light or not light
    return names
