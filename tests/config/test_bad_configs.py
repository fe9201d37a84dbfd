"""Every mistake in a config is reported in one sentence, before any work starts."""

import re
import subprocess
import sys

import pytest
import torch
import yaml

from heatproof.errors import HeatproofError
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan

VIT = {"architecture": "small_vit"}


def explain_targets(images, targets):
    """An explainer with an argument that no explainer gets."""


# Changes of the default config, and a part of the error message.
BAD = {
    "misspelt key": ({"sede": 1}, "There is no key 'sede' in the config: did you mean 'seed'?"),
    "misspelt key inside": ({"evaluation": {"image": 3}}, "no key 'image' under 'evaluation'*did you mean 'images'?"),
    "key that is no text": ({1: 2}, "There is no key 1 in the config"),
    "key of a model": ({"models": [{"m": {"arch": "small_vit"}}]}, "'arch' in models: m: did you mean 'architecture'?"),
    "key of weights": ({"weights": [{"f": {"epoch": 3}}]}, "no key 'epoch' in weights: f: did you mean 'epochs'?"),
    "nothing where something": (
        {"evaluation": None},
        "'evaluation' in the config must be a mapping of keys",
    ),
    "text for a number": (
        {"evaluation": {"images": "64"}},
        "'evaluation.images' in the config must be a whole number, not '6",
    ),
    "float for a count": ({"evaluation": {"images": 64.0}}, "must be a whole number, not 64.0"),
    "true for a count": ({"evaluation": {"images": True}}, "must be a whole number, not True"),
    "a number that is none": (
        {"finetuning": {"lr": float("nan")}},
        "'finetuning.lr' in the config must be a finite",
    ),
    "a number that YAML reads as a text": (
        {"finetuning": {"lr": "1e-3"}},
        "must be a number, not '1e-3' (a text: leave out quotes, and write 1e-3 as 1.0e-3).",
    ),
    "settings beside the name": (
        {"models": [{"m": None, "architecture": "small_vit"}]},
        "must be a name or {name: settings}*indent the settings further than the name.",
    ),
    "no models": ({"models": []}, "'models' in the config"),
    "a number for a model": ({"models": [18]}, "must be a name or {name: settings}, not 18"),
    "two models in one entry": ({"models": [{"a": VIT, "b": VIT}]}, "must be a name or {name: settings}, not {'a'"),
    "unknown dataset": ({"datasets": ["digit"]}, "no dataset named 'digit': did you mean 'digits'?"),
    "unknown architecture": (
        {"models": ["small_vits"]},
        "no architecture named 'small_vits': did you mean 'small_vit'?",
    ),
    "unknown architecture of a model": (
        {"models": [{"m": {"architecture": "cifar_resnet_20"}}]},
        "no architecture named 'cifar_resnet_20': did you mean 'cifar_resnet20'?",
    ),
    "pixels of maps that are not stored": (
        {"attribution": {"stored_as": "patch_sums"}, "metrics": ["completeness"]},
        "patch_sums, and the metric 'completeness' reads maps of pixels: leave it out, or store the maps as float32",
    ),
    "a budget that is no time": (
        {"budget": "2 days"},
        "'budget' in the config must be a time such as 2h, 15min or 90s",
    ),
    "patch sums of two grids": (
        {"attribution": {"stored_as": "patch_sums"}, "metrics": [], "drops": {"grids": [2, 4]}},
        "drops has the grids [2, 4]: name one grid",
    ),
    "unknown explainer": ({"explainers": ["salency"]}, "no explainer named 'salency': did you mean 'saliency'?"),
    "settings without a kind": (
        {"datasets": [{"photos": {"root": "photos/"}}]},
        "no dataset named 'photos'*An entry with a custom name needs the key `dataset` among its settings.",
    ),
    "a name of torchvision": (
        {"models": ["resnet18"]},
        "for the network of that library write torchvision:resnet18.",
    ),
    "an explainer of two arguments": (
        {"explainers": [{"x": {"explainer": "test_bad_configs:explain_targets"}}]},
        "needs the option 'targets'*or leave it out of the function, which is called with (context, **options).",
    ),
    "explainer like no other": ({"explainers": ["qqqqq"]}, "named 'qqqqq': known are "),
    "unknown baseline": ({"drops": {"baselines": ["zero"]}}, "no baseline named 'zero': did you mean 'zeros'?"),
    "unknown metric": (
        {"metrics": ["mas_insertions"]},
        "There is no metric named 'mas_insertions': did you mean 'mas_insertion'?",
    ),
    "metric named like a table": (
        {"metrics": [{"ids.checks": {"metric": "ids"}}]},
        "'ids.checks' cannot name a metric, because its file of scores would have the name of a table beside those of",
    ),
    "metric of the drops": ({"metrics": ["idsds"]}, "The metric 'idsds' follows from `drops`"),
    "metric with a name of the drops": (
        {"metrics": [{"sds_g2_zeros": {"metric": "ids"}}]},
        "The metric 'sds_g2_zeros' has a name that `drops` gives: take another one.",
    ),
    "two metrics of one name": ({"metrics": ["ids", {"ids": {"steps": 4}}]}, "metrics names 'ids' twice"),
    "option of a metric": ({"metrics": [{"ids": {"step": 3}}]}, "'ids' has no option 'step': did you mean 'steps'?"),
    "type of a metric's option": (
        {"metrics": [{"ids": {"steps": "many"}}]},
        "The option 'steps' of metric 'ids' must be a whole number or null, not 'many'.",
    ),
    "two ways to cut": (
        {"metrics": [{"ids": {"steps": 3, "step_size": 2}}]},
        "The metric 'ids' cannot be scored like that. Only one of",
    ),
    "more steps than pixels": (
        {"metrics": [{"rise_deletion": {"steps": 2000}}]},
        "2000 steps are more than the 1024 pixels",
    ),
    "output of a metric": (
        {"metrics": [{"ids": {"output": "logits"}}]},
        "The metric 'ids' cannot be scored like that. output is 'logits': take one of logit, probability, accuracy.",
    ),
    "baseline of a metric": (
        {"metrics": [{"deletion_morf": {"baseline": "zero"}}]},
        "The metric 'deletion_morf' cannot be scored like that. There is no baseline named 'zero'",
    ),
    "curve without its ends": (
        {"metrics": [{"mas_deletion": {"fractions": [0.1, 0.5]}}]},
        "Curves of RISE and MAS must begin at fraction 0",
    ),
    "shares of pictures": ({"metrics": [{"sic": {"thresholds": [0.5, 0.1]}}]}, "thresholds has to be increasing"),
    "sizes of subsets": (
        {"metrics": [{"infidelity": {"sizes": [0.0]}}]},
        "must be a list (each a number above 0 and below 1), not [0.0]",
    ),
    "what the model knows": ({"metrics": [{"sic": {"mean": [0, 0, 0]}}]}, "The metric 'sic' has no option 'mean'"),
    "metric that is none": (
        {"metrics": [{"mine": {"metric": "numpy:mean"}}]},
        "The metric 'numpy:mean' says nothing of its direction and range",
    ),
    "option of a metric that is no text": (
        {"metrics": [{"ids": {1: 3}}]},
        "The metric 'ids' has no option 1: known are",
    ),
    "samples that are no number": (
        {"metrics": [{"sensitivity_n": {"samples": "x"}}]},
        "The option 'samples' of metric 'sensitivity_n' must be a whole number of at least 3, not 'x'.",
    ),
    "samples that are not whole": ({"metrics": [{"infidelity": {"samples": 3.5}}]}, "must be a whole number"),
    "baseline that is a list": ({"metrics": [{"sensitivity_n": {"baseline": ["zeros"]}}]}, "must be a text"),
    "thresholds that are one number": ({"metrics": [{"sic": {"thresholds": 5}}]}, "must be a list"),
    "target of pictures": ({"metrics": [{"sic": {"target": "foo"}}]}, "must be 'label' or 'predicted', not 'foo'"),
    "points of pictures": ({"metrics": [{"sic": {"points": -3}}]}, "The metric 'sic' cannot be scored like that."),
    "exclusion of pictures": ({"metrics": [{"aic": {"exclude": "foo"}}]}, "exclude is 'foo'"),
    "radius below zero": ({"metrics": [{"sensitivity_max": {"radius": -1}}]}, "must be a number of at least 0, not -1"),
    "grid of a metric": (
        {"metrics": [{"deletion_morf": {"grid": 5, "steps": 5}}]},
        "The metric 'deletion_morf' cannot be scored like that.",
    ),
    "sigma of a metric's baseline": (
        {"metrics": [{"ids": {"baseline": "blur", "baseline_options": {"sigma": -1}}}]},
        "The option 'sigma' of baseline 'blur' of the metric 'ids' must be a number above 0, not -1",
    ),
    "function of two metrics": (
        {"metrics": [{"mine": {"metric": "heatproof.metrics.deletion:deletion_area"}}]},
        "is entered as 'deletion_lerf' and 'deletion_morf': give each a function of its own.",
    ),
    "output of drops": ({"drops": {"outputs": ["logits"]}}, "cannot be 'logits': did you mean 'logit'?"),
    "unknown device": ({"device": "gpu"}, "cannot be 'gpu': did you mean 'cpu'?"),
    "unknown option": (
        {"explainers": [{"integrated_gradients": {"step": 3}}]},
        "'integrated_gradients' has no option 'step': did you mean 'steps'?",
    ),
    "option of what has none": ({"explainers": [{"saliency": {"steps": 3}}]}, "has no option 'steps': it takes none"),
    "option of a dataset": ({"datasets": [{"d": {"dataset": "digits", "size": 3}}]}, "'d' has no option 'size'"),
    "option of a model": ({"models": [{"small_vit": {"options": {"width": 3}}}]}, "has no option 'width'"),
    "kind that is no name": ({"explainers": [{"x": {"explainer": 3}}]}, "'explainer' in explainers: x must be a name"),
    "dataset that is no name": ({"datasets": [{"x": {"dataset": 3}}]}, "'dataset' in datasets: x must be a name"),
    "grid that does not divide": (
        {"drops": {"grids": [5]}},
        "The grid 5 in drops does not divide the 32×32 images of 'digits': take one of 2, 4, 8, 16, 32.",
    ),
    "finetuning grid": ({"weights": [{"f": {"grid": 6}}]}, "The grid 6 in finetuning does not divide"),
    "too many images": (
        {"evaluation": {"images": 1000}},
        "evaluation.images is 1000, and the evaluation split of 'digits' has 359 images",
    ),
    "too many images for accuracy": ({"evaluation": {"accuracy_images": 360}}, "evaluation.accuracy_images is 360"),
    "shares": ({"datasets": [{"d": {"dataset": "digits", "evaluation": 1.5}}]}, "'evaluation' must lie between 0"),
    "shares that leave nothing": (
        {"datasets": [{"d": {"dataset": "digits", "validation": 0.5, "evaluation": 0.5}}]},
        "leave no training images",
    ),
    "digest without a checkpoint": (
        {"models": [{"m": {**VIT, "sha256": "0" * 64}}]},
        "The model 'm' has a sha256 and no checkpoint",
    ),
    "checkpoint without a name": (
        {"models": [{"m": {**VIT, "checkpoint": ""}}]},
        "'checkpoint' in models: m must be",
    ),
    "a name twice": ({"explainers": ["saliency", "saliency"]}, "explainers names 'saliency' twice"),
    "a name twice, once with settings": ({"weights": ["f", {"f": {"epochs": 1}}]}, "weights names 'f' twice"),
    "maps that collide": (
        {"explainers": ["saliency", {"saliency_abs": {"explainer": "saliency"}}]},
        "The explainers 'saliency' and 'saliency_abs' both make the method 'saliency_abs'",
    ),
    "an epoch kept that is never reached": (
        {"finetuning": {"epochs": 5, "keep": [2, 8]}, "models": [{"m": VIT}]},
        "The weights 'finetuned' keep epoch 8, and the model 'm' is finetuned for 5: keep earlier ones",
    ),
    "the same for one model alone": (
        {"weights": [{"f": {"keep": [4]}}], "models": [{"m": {**VIT, "finetuning": {"epochs": 3}}}]},
        "The weights 'f' keep epoch 4, and the model 'm' is finetuned for 3",
    ),
    "a name that a kept epoch gets": (
        {"weights": [{"f": {"keep": [2]}}, {"f_epoch2": {"seed": 1}}]},
        "The weights 'f_epoch2' have the name that epoch 2 of 'f' gets by `keep`: rename them.",
    ),
    "epochs kept for one model": ({"models": [{"m": {**VIT, "finetuning": {"keep": [1]}}}]}, "no key 'keep'"),
    "epoch 0": ({"finetuning": {"keep": [0]}}, "'finetuning.keep.0' in the config must be at least 1, not 0."),
    "an epoch twice": ({"finetuning": {"keep": [1, 1]}}, "'finetuning.keep' in the config names 1 twice."),
    "settings of pretrained": ({"weights": [{"pretrained": {"epochs": 1}}]}, "'pretrained' take no settings"),
    "dataset of a model": ({"models": [{"m": {**VIT, "datasets": ["digit"]}}]}, "did you mean 'digits'?"),
    "dataset without a model": ({"models": [{"m": {**VIT, "datasets": []}}]}, "No model is for the dataset 'digits'"),
    "URL without a digest": (
        {"models": [{"m": {**VIT, "checkpoint": "https://example.org/m.pt"}}]},
        "The checkpoint of model 'm' is a URL: give its sha256",
    ),
    "digest that is none": (
        {"models": [{"m": {**VIT, "checkpoint": "m.pt", "sha256": "abc"}}]},
        "'sha256' in models: m",
    ),
    "no channels": (
        {"models": [{"m": {**VIT, "mean": []}}]},
        "'mean' in models: m must be a list of",
    ),
    "module that is not there": (
        {"explainers": [{"x": {"explainer": "no_such.module:thing"}}]},
        "The explainer 'no_such.module:thing' cannot be imported (No module named 'no_such')",
    ),
    "architecture that is not there": (
        {"models": [{"m": {"architecture": "json:no_such"}}]},
        "The architecture 'json:no_such' cannot be imported",
    ),
    "dataset that is not there": (
        {"datasets": [{"d": {"dataset": "json:no_such"}}]},
        "The dataset 'json:no_such' cannot",
    ),
    "training where all pictures are for evaluation": (
        {"datasets": [{"mine": {"dataset": "image_folder", "root": "none", "evaluation": 1}}]},
        "All images of the dataset 'mine' are for evaluation, and the model*is to be trained or finetuned on it",
    ),
    **{
        f"a dot for a colon in {key}": (
            {key: [{"mine": {kind: "my.module.function"}}]},
            f"no {kind} named 'my.module.function': a function of your own is written my.module:function.",
        )
        for key, kind in [("explainers", "explainer"), ("models", "architecture"), ("datasets", "dataset")]
    },
    "a dot for an underscore": (
        {"explainers": ["integrated.gradients"]},
        "There is no explainer named 'integrated.gradients': did you mean 'integrated_gradients'?",
    ),
    "a reference as a name": ({"explainers": ["json:dumps"]}, "'json:dumps' in explainers cannot name a folder"),
    **{
        f"{name!r} in {key}": ({key: [{name: {}}]}, f"{name!r} in {key} cannot name a folder")
        for key in ("datasets", "models", "weights", "explainers")
        for name in ("../x", "..", "/tmp", "a/b", ".hidden", "", "a b", "x\ny", "{x}", "*")
    },
}
LATER = {
    "CAM layer": (
        {"models": [{"m": {"architecture": "cifar_vgg11_bn", "options": {"width": 2}, "cam_layer": "feature"}}]},
        "The model 'm' has no layer 'feature' for CAMs: did you mean 'features'?",
    ),
    "CAM layer without a CAM": (
        {"models": [{"m": {**VIT, "cam_layer": "blocks.x"}}], "explainers": ["saliency"]},
        "The model 'm' has no layer 'blocks.x'",
    ),
    "beginning of a CAM layer": (
        {"models": [{"m": {**VIT, "cam_layer": "last_tokens.gri"}}]},
        "The model 'm' has no layer 'last_tokens.gri' for CAMs: did you mean 'last_tokens.grid'?",
    ),
    "checkpoint": (
        {"models": [{"m": {**VIT, "checkpoint": "weights/none.pt"}}]},
        "The checkpoint weights/none.pt of model 'm' does not exist",
    ),
}


def assert_message(sentence: str, expected: str) -> None:
    for part in expected.split("*"):
        assert part in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize("what", BAD)
def test_a_bad_config_is_refused_by_the_plan(what):
    change, expected = BAD[what]
    with pytest.raises(HeatproofError) as caught:
        make_plan(merge(default_config(), change))
    assert_message(str(caught.value), expected)


@pytest.mark.parametrize("what", LATER)
def test_check_finds_mistakes_that_need_networks_and_files(what, tmp_path):
    change, expected = LATER[what]
    make_plan(merge(default_config(), change))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(change))
    with pytest.raises(HeatproofError) as caught:
        check_config(path)
    assert_message(str(caught.value), expected)


@pytest.mark.parametrize("what", LATER)
def test_the_workflow_checks_the_config_before_it_starts(what, tmp_path, monkeypatch):
    from heatproof.workflow.start import check_before_start

    monkeypatch.chdir(tmp_path)
    change, expected = LATER[what]
    with pytest.raises(HeatproofError) as caught:
        check_before_start(merge(default_config(), change), is_main=True)
    assert_message(str(caught.value), expected)
    # The Snakemake process of a job has to start quickly.
    check_before_start(merge(default_config(), change), is_main=False)


def test_an_existing_checkpoint_passes_the_check(tmp_path, monkeypatch):
    from heatproof.models.network import build_network
    from heatproof.models.registry import ModelSpec

    monkeypatch.chdir(tmp_path)
    spec = ModelSpec("small_vit", "heatproof.models.published", {})
    torch.save(build_network(spec, 10).state_dict(), tmp_path / "m.pt")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"models": [{"m": {**VIT, "checkpoint": "m.pt"}}]}))
    assert "is sound" in check_config("c.yaml")


def test_a_missing_dataset_folder_is_reported_by_the_plan(tmp_path, monkeypatch):
    """The number of images is read before any work."""
    from heatproof.datasets.registry import DATASETS, DatasetEntry

    def count(*, root):
        raise HeatproofError(f"There is no folder {root}.")

    def load(*, seed, root=""):
        raise AssertionError("asked for images before work")

    entry = DatasetEntry("folder", load, None, {"root": ""}, count)
    monkeypatch.setitem(DATASETS, "folder", entry)
    config = merge(default_config(), {"datasets": [{"mine": {"dataset": "folder", "root": "no/such"}}]})
    with pytest.raises(HeatproofError, match="There is no folder no/such"):
        make_plan(config)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "neither a file nor one that comes with heatproof"),
        (b"", "must be a mapping"),
        (b"- 1\n", "must be a mapping"),
        (
            b"a: [1\nb: 2\n",
            "is not valid YAML in line 2, column 2: look there and in the line before for an indentation",
        ),
        (
            b"a: 1\nb:\n\tc: 2\n",
            "is not valid YAML in line 3, column 1: a tab stands there, and YAML is indented with spaces",
        ),
        (b"a: \x00", "is not valid YAML: look there"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
    ],
)
def test_invalid_config_files_are_refused(tmp_path, content, expected):
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HeatproofError) as caught:
        check_config(path)
    assert_message(str(caught.value), expected)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, "There is no config"),
        ({"explainers": ["salency"]}, "did you mean 'saliency'?"),
        LATER["checkpoint"],
    ],
)
def test_the_command_line_reports_mistakes_in_one_line(tmp_path, change, expected):
    if change is not None:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(change))
    done = subprocess.run(
        [sys.executable, "-m", "heatproof", "check", "c.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("heatproof: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_the_command_line_reports_a_sound_config(tmp_path):
    (tmp_path / "c.yaml").write_text("seed: 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "heatproof", "check", "c.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("c.yaml is sound: 1 dataset(s), 3 model(s)")


def test_later_configs_override_earlier_ones(tmp_path):
    first, over = tmp_path / "first.yaml", tmp_path / "over.yaml"
    first.write_text("evaluation: {images: 40, accuracy_images: 200}\nexplainers: [saliency, random]\n")
    over.write_text("evaluation: {images: 30}\nexplainers: [random]\n")
    output = check_config(first, over)
    assert output.startswith(f"{first} under {over} is sound")
    assert "1 explainers, 30 images" in output
    assert "2 explainers, 40 images" in check_config(over, first)


CUSTOM = {"architecture": "toy_plugin:network", "checkpoint": "mine.safetensors"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weights": ["pretrain", "finetuned"]}, "did you mean 'pretrained'?"),
        ({"models": [{"mine": CUSTOM}]}, "brings weights and does not say mean and std"),
        ({"models": [{"mine": {**CUSTOM, "mean": [0.5, 0.5, 0.5]}}]}, "does not say std"),
        ({"models": [{"mine": {**CUSTOM, "mean": [123.7, 116.3, 103.5]}}]}, "divide mean and std by 255"),
    ],
)
def test_missing_preprocessing_and_wrong_weights_are_refused_before_a_run(change, sentence):
    with pytest.raises(HeatproofError, match=re.escape(sentence)):
        make_plan(merge(default_config(), change))


def test_a_custom_network_that_is_trained_here_needs_no_preprocessing():
    trained = {"mine": {"architecture": "toy_plugin:network"}}
    assert make_plan(merge(default_config(), {"models": [trained]})).models["mine"].stated == frozenset()
