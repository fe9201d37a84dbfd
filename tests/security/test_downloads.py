"""The server of a checkpoint cannot determine how much is read, or from where."""

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from heatproof.core.specs import DatasetSpec
from heatproof.errors import HeatproofError
from heatproof.models import checkpoint_files
from heatproof.models.registry import ModelSpec
from heatproof.workflow.stages import _checkpoint
from heatproof.workflow.stages.fetch import Fetch

MODEL = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
DATASET = DatasetSpec("digits", "heatproof.datasets.digits", {}, seed=0, name="digits")


class Handler(BaseHTTPRequestHandler):
    places = ("file:///etc/hostname", "ftp://127.0.0.1:1/x", "data:,x", "http://127.0.0.1:1/x")

    def do_GET(self):
        kind = self.path.strip("/")
        if kind.startswith("redirect"):
            self.send_response(302)
            self.send_header("Location", self.places[int(kind[-1])])
            self.end_headers()
            return
        self.send_response(200)
        if kind == "lies":
            self.send_header("Content-Length", "10")
        if kind == "promises":
            self.send_header("Content-Length", str(10**15))
        self.end_headers()
        try:
            if kind == "endless":
                while True:
                    self.wfile.write(bytes(2**20))
            elif kind == "slow":
                while True:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.05)
            else:
                self.wfile.write(bytes(100))
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        *((f"redirect{number}", "cannot be fetched") for number in range(len(Handler.places))),
        ("endless", "has more than 10,000,000 bytes, the limit for this"),
        ("slow", "cannot be fetched \\(fewer than 8,192 bytes per second arrived"),
        ("lies", "has SHA-256 [0-9a-f]{64}, not 0"),
        ("promises", "cannot be fetched|has SHA-256"),
    ],
)
def test_the_size_and_time_of_downloads_are_limited(address, monkeypatch, kind, message):
    monkeypatch.setattr(_checkpoint, "max_file_size", lambda network: 10_000_000)
    monkeypatch.setattr(checkpoint_files, "PATIENCE", 1)
    began = time.monotonic()
    with pytest.raises(HeatproofError, match=message) as caught:
        Fetch(dataset=DATASET, model=MODEL, checkpoint=f"{address}/{kind}", sha256="0" * 64).check()
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 20


def test_a_file_too_large_for_the_network_is_not_read_for_its_digest(tmp_path, monkeypatch):
    with open(tmp_path / "w.pt", "wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(_checkpoint, "file_digest", lambda path: pytest.fail("it was read"))
    with pytest.raises(HeatproofError, match="do not fit the network: the file has 1,099,511,627,776 bytes"):
        Fetch(
            dataset=DATASET, model=MODEL, checkpoint=str(tmp_path / "w.pt"), sha256=hashlib.sha256().hexdigest()
        ).check()
