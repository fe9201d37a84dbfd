"""Published CIFAR-10 ResNets on photographs, if both are available."""

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heatproof.core.input_facts import IMAGENET, InputFacts
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec, Runtime
from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError
from heatproof.models.registry import ModelSpec
from heatproof.workflow.stages.fetch import Fetch

REAL = Path(os.environ.get("HEATPROOF_REAL", Path(__file__).parents[2].parent / "shared" / "real"))
# Accuracy before finetuning on JPEG files, whose compression lowers it.
NETWORKS = {"resnet20-12fca82f.th": 0.81, "resnet56-4bfd9763.th": 0.83}
EACH = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REAL / "cifar10.tar.gz").is_file(), reason=f"no photographs and networks in {REAL}"),
]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The first test images of each class, and as many files for training and validation, which no test reads."""
    folder, taken = tmp_path_factory.mktemp("cifar10"), {}
    with tarfile.open(REAL / "cifar10.tar.gz") as packed:
        for member in packed:
            part = Path(member.name).parent
            if member.isfile() and "test" in part.parts and taken.setdefault(part, 0) < EACH:
                taken[part] += 1
                target = folder / part.name / Path(member.name).name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(packed.extractfile(member).read())
    return folder


def job_of(photographs, name, out, mean=IMAGENET[0], std=IMAGENET[1]):
    depth = name[len("resnet") :].partition("-")[0]
    options = {"root": str(photographs), "size": 32, "validation": 0.9, "evaluation": 0.05}
    facts = InputFacts(mean, std)
    return Fetch(
        dataset=DatasetSpec("image_folder", image_folder.__module__, options, 0, "cifar10"),
        model=ModelSpec(f"cifar_resnet{depth}", "heatproof.models.resnet", {"shortcut": "A"}, facts),
        checkpoint=str(REAL / name),
        sha256=name.partition("-")[2].removesuffix(".th"),
        files={"weights": str(out / "w.safetensors"), "history": str(out / "history")},
        manifest=str(out / "manifest"),
        key=Key("config", "code"),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_a_published_network_has_its_known_accuracy(photographs, tmp_path, name):
    torch.set_num_threads(1)
    replace(job_of(photographs, name, tmp_path), expected_accuracy=NETWORKS[name]).run(Runtime())
    _, values = (tmp_path / "history").read_text().splitlines()
    assert float(values.split(",")[2]) == pytest.approx(NETWORKS[name], abs=0.06)


def test_a_wrong_normalisation_is_named(photographs, tmp_path):
    job = job_of(photographs, "resnet20-12fca82f.th", tmp_path, mean=(0.0,) * 3, std=(1.0,) * 3)
    with pytest.raises(HeatproofError, match=r"with mean and std of ImageNet it is 8\d%, so set that in the config"):
        replace(job, expected_accuracy=0.81).check()
