"""Checkpoints from a user: which are accepted, which are refused, and which files a refusal leaves."""

import builtins
import hashlib
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.store.reading import read_json
from heatproof.workflow.stages.fetch import Fetch

MODEL = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
DATASET = DatasetSpec("digits", "heatproof.datasets.digits", {}, 0, "digits")


@pytest.fixture(scope="module")
def state():
    return build_network(MODEL, 10, seed=4).state_dict()


@pytest.fixture
def run(tmp_path):
    def run(checkpoint, sha256=None):
        results = tmp_path / "results"
        files = {"weights": "pretrained.safetensors", "history": "pretrained.history.csv"}
        job = Fetch(
            dataset=DATASET,
            model=MODEL,
            checkpoint=str(checkpoint),
            sha256=sha256,
            files={name: str(results / file) for name, file in files.items()},
            manifest=str(results / "pretrained.json"),
            key=Key("config", "code"),
        )
        job.run(Runtime())
        return job

    return run


def as_safetensors(state, path):
    save_file({name: value.contiguous() for name, value in state.items()}, path)


def as_torch(state, path):
    torch.save(state, path)


def wrapped(state, path):
    torch.save({"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}, path)


def under_model(state, path):
    torch.save({"model": dict(state), "lr": 0.1}, path)


@pytest.mark.parametrize("write", [as_safetensors, as_torch, wrapped, under_model])
def test_weights_are_read_from_any_format(run, tmp_path, state, write):
    path = tmp_path / "weights"
    write(state, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    job = run(path, digest)
    loaded = load_file(job.files["weights"])
    assert set(loaded) == set(state)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert digest in (tmp_path / "results/pretrained.history.csv").read_text()
    assert Key.of(read_json(job.manifest)) == Key("config", "code")
    assert read_json(job.manifest)["input_sha256"] == {"…/weights": digest}


def test_weights_are_read_from_a_url(run, tmp_path, state):
    path = tmp_path / "weights"
    as_safetensors(state, path)
    job = run(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())
    assert torch.equal(load_file(job.files["weights"])["classifier.bias"], state["classifier.bias"])
    assert read_json(job.manifest)["input_sha256"] == {}, "the config itself has the digest"


class Malicious:
    def __reduce__(self):
        return (exec, ("import builtins; builtins.heatproof_was_here = True",))


def pickled_module(state, path):
    torch.save(build_network(MODEL, 10), path)


def pickled_code(state, path):
    path.write_bytes(pickle.dumps(Malicious(), protocol=2))


def bare_tensor(state, path):
    torch.save(torch.zeros(3), path)


def no_tensors(state, path):
    torch.save({"epoch": 3}, path)


def text(state, path):
    path.write_text("<html>404</html>")


def nothing(state, path):
    path.write_bytes(b"")


def other_width(state, path):
    as_safetensors(build_network(replace(MODEL, options={"width": 3}), 10).state_dict(), path)


def other_classes(state, path):
    as_safetensors(build_network(MODEL, 11).state_dict(), path)


REFUSED = [
    (pickled_module, "a whole pickled model can run code"),
    (pickled_code, "a whole pickled model can run code"),
    (bare_tensor, "holds no weights"),
    (no_tensors, "holds no weights"),
    (text, "cannot be read as safetensors or as a file of weights only"),
    (nothing, "cannot be read as safetensors or as a file of weights only"),
    (other_width, "do not fit the network"),
    (other_classes, "fit the network except for its head"),
]


@pytest.mark.parametrize(("write", "message"), REFUSED)
def test_refused_checkpoints_leave_no_file(run, tmp_path, state, write, message):
    path = tmp_path / "weights"
    write(state, path)
    with pytest.raises(HeatproofError, match=message) as caught:
        run(path)
    assert "\n" not in str(caught.value)
    assert not hasattr(builtins, "heatproof_was_here")
    assert list((tmp_path / "results").glob("*") if (tmp_path / "results").exists() else []) == []


def test_the_sentence_names_the_url_and_not_a_temporary_file(run, tmp_path, state):
    path = tmp_path / "weights"
    text(state, path)
    with pytest.raises(HeatproofError, match="cannot be read as safetensors") as caught:
        run(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())
    assert f"The checkpoint {path.as_uri()} cannot" in str(caught.value)


def test_another_digest_is_refused_before_it_is_read(run, tmp_path, state):
    path = tmp_path / "weights"
    pickled_code(state, path)
    with pytest.raises(HeatproofError, match=f"has SHA-256 .*, not {'0' * 64}"):
        run(path, "0" * 64)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("no/such/file", "The checkpoint no/such/file does not exist"),
        ("file:///no/such/file", "cannot be fetched"),
        ("nothing://example.org/x", "cannot be fetched"),
    ],
)
def test_missing_checkpoints_are_refused(run, checkpoint, message):
    with pytest.raises(HeatproofError, match=message):
        run(checkpoint, "0" * 64)


def test_a_check_reads_fewer_images_than_the_job(run, tmp_path, state):
    """With an expected accuracy, both use the same number; the digits have 359 images for validation."""
    path = tmp_path / "weights"
    as_safetensors(state, path)
    job = run(path)
    images = (tmp_path / "results/pretrained.history.csv").read_text().split(",")[-1].strip()
    assert images == "256"
    image_counts = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "heatproof.workflow.stages._checkpoint.require_accuracy",
            lambda *arguments: image_counts.append(arguments[-1]),
        )
        job.check()
    assert image_counts == [64]
