"""The cache of `heatproof.explain` and `heatproof.choose`: what it stores, recomputes and refuses."""

import copy
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import heatproof
from heatproof.errors import HeatproofError
from heatproof.store.array_cache import BatchFolder
from heatproof.store.lock import locked_folder
from heatproof.store.manifest import write_checksummed

METHODS = ["saliency", {"integrated_gradients": {"steps": 4}}, "random", "attention_rollout"]
# The seconds are those of the first call.
TIMES = "seconds"


class Counted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.images = inner, 0
        self.eval()

    def forward(self, batch):
        self.images += len(batch)
        return self.inner(batch)


@pytest.fixture
def counted(network):
    return Counted(copy.deepcopy(network))


@pytest.fixture
def explain(counted, images, targets, tmp_path):
    """Explain with a cache in small batches; counts the images that pass for maps."""

    def call(methods=METHODS, model=None, images=images, targets=targets, **options):
        call.model = model or counted
        before = call.model.images
        result = heatproof.explain(
            call.model, images, targets, methods, **{"batch_size": 5, "cache": tmp_path / "cache", **options}
        )
        call.passes = call.model.images - before - result.attrs["check_passes"]
        return result

    return call


def files(folder, ending="*.batch"):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob(ending))}


def draws_globally(model, images, targets):
    """Draw from the global random states, as foreign code does."""
    return images.sum(1) + torch.rand(images.shape[0], *images.shape[2:])


# ---- the same result -------------------------------------------------------------------------------------------------


def test_maps_equal_those_without_a_cache_and_no_pass_is_repeated(explain, tmp_path):
    plain = explain([*METHODS, draws_globally], cache=None)
    cold = explain([*METHODS, draws_globally])
    assert explain.passes > 12 * 5
    before = files(tmp_path)
    warm = explain([*METHODS, draws_globally])
    assert explain.passes == 0
    assert plain.drop_vars(TIMES).identical(cold.drop_vars(TIMES).load())
    # The additional passes of a cold call compute the sums that integrated gradients guarantees.
    assert cold.attrs["check_passes"] - warm.attrs["check_passes"] == 2 * 12
    assert warm.assign_attrs(check_passes=0).identical(cold.assign_attrs(check_passes=0))
    assert files(tmp_path) == before
    assert plain["passes"].values.tolist()[::2] == [1, 0, 0]


def test_cached_maps_are_read_lazily(explain, tmp_path, network, images, targets):
    cached, uncached = explain(), explain(cache=None)["attribution"].values
    lazy = cached["attribution"]
    assert not isinstance(lazy.variable._data, np.ndarray)
    for key in [(0, 3), (slice(None), [7, 2, 7]), (slice(1, 3), slice(8, 2, -3), slice(4), 5), (-1, -1), ([2, 0], [])]:
        np.testing.assert_array_equal(
            lazy[key].values, uncached[np.ix_(*ranges(uncached.shape, key))].squeeze(scalars(key))
        )
    np.testing.assert_array_equal(lazy.isel(image=cached["image"] == "4").values[:, 0], uncached[:, 4])
    scored = heatproof.evaluate("idsds", network, images, targets, cached)
    plain = heatproof.evaluate("idsds", network, images, targets, explain(cache=None))
    assert scored.identical(plain)
    for path in tmp_path.rglob("maps/*/*.batch"):
        path.unlink()
    with pytest.raises(HeatproofError, match=r"damaged or missing .* [Rr]epeat the call"):
        lazy.load()


def ranges(shape, key):
    full = (*key, *(slice(None),) * (len(shape) - len(key)))
    return [np.atleast_1d(np.arange(count)[index]).astype(int) for count, index in zip(shape, full, strict=True)]


def scalars(key):
    return tuple(axis for axis, index in enumerate(key) if isinstance(index, int))


def test_methods_share_a_folder_and_each_is_computed_once(explain):
    explain(["saliency"])
    both = explain(["input_x_gradient", "saliency"])
    assert explain.passes == 12
    # Another name does not make another method.
    renamed = explain({"short": "saliency", "long": {"explainer": "integrated_gradients", "steps": 3}})
    assert 3 * 12 <= explain.passes < 4 * 12
    np.testing.assert_array_equal(renamed["attribution"][0], both["attribution"][1])
    assert explain(["saliency"])["method"].values.tolist() == ["saliency"]
    assert explain.passes == 0


def test_only_added_images_are_computed_and_a_subset_is_read(explain, images, targets):
    explain(["saliency"], images=images[:8], targets=targets[:8])
    assert explain.passes == 8
    result = explain(["saliency"])
    assert explain.passes == 4
    part = explain(["saliency"], classes=[int(targets[0])])
    assert explain.passes == 0
    rows = (targets == targets[0]).nonzero().flatten().tolist()
    np.testing.assert_array_equal(part["attribution"], result["attribution"][:, rows])
    np.testing.assert_allclose(result["attribution"], explain(["saliency"], cache=None)["attribution"], rtol=1e-5)


# ---- what recomputes maps --------------------------------------------------------------------------------------------


def test_only_a_changed_image_is_recomputed(explain, images):
    before = explain(["saliency"])["attribution"].values
    changed = images.clone()
    changed[7] += 0.1
    after = explain(["saliency"], images=changed)
    # One image is passed with a copy of itself.
    assert explain.passes == 2
    same = [row for row in range(12) if row != 7]
    np.testing.assert_array_equal(after["attribution"][0, same], before[0, same])
    assert not np.array_equal(after["attribution"][0, 7], before[0, 7])


def test_a_replaced_image_file_is_noticed_despite_equal_time_and_size(explain, tmp_path):
    from PIL import Image
    from torchvision.transforms.functional import to_tensor

    folder = tmp_path / "photographs"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{number}.bmp")
    explain(["saliency"], images=folder, targets=None, transform=to_tensor)
    assert explain.passes == 8
    old = (folder / "3.bmp").stat()
    Image.fromarray(255 - noise[3]).save(folder / "3.bmp")
    os.utime(folder / "3.bmp", ns=(old.st_atime_ns, old.st_mtime_ns))
    explain(["saliency"], images=folder, targets=[0] * 8, transform=to_tensor)
    result = explain(["saliency"], images=folder, targets=None, transform=to_tensor)
    plain = explain(["saliency"], images=folder, targets=None, transform=to_tensor, cache=None)
    np.testing.assert_allclose(result["attribution"], plain["attribution"], rtol=1e-5)


def test_float64_images_are_distinguished_beyond_float32_precision(explain, counted, images, targets):
    counted.double()
    explain(["saliency"], images=images.double())
    changed = images.double()
    changed[2, 0, 0, 0] += 1e-12
    explain(["saliency"], images=changed)
    assert explain.passes == 2


def test_edited_weights_are_another_network(explain, counted):
    before = explain(["saliency"])["attribution"].values
    with torch.no_grad():
        counted.inner[0].weight[0, 0, 0, 0] += 1e-6
    explain(["saliency"])
    assert explain.passes == 12
    with torch.no_grad():
        counted.inner[0].weight[0, 0, 0, 0] -= 1e-6
    explain(["saliency"])
    assert np.array_equal(explain(["saliency"])["attribution"].values, before)


class Scaled(nn.Module):
    """A network whose forward pass depends on an attribute that is not a weight."""

    def __init__(self, inner, scale):
        super().__init__()
        self.inner, self.scale, self.images = inner, [scale], 0
        self.eval()

    def forward(self, batch):
        self.images += len(batch)
        return self.inner(batch * self.scale[0])


@pytest.mark.parametrize("different_images", [False, True], ids=["same images", "other images"])
def test_networks_with_different_outputs_have_separate_maps(different_images, explain, network, images, tmp_path):
    first = explain(["saliency"], model=Scaled(network, 1.0))["attribution"].values
    # Outputs are compared on images of this call, or on images in the cache.
    probe_images = torch.randn(12, 3, 16, 16) if different_images else images
    explain(["saliency"], model=Scaled(network, 1.5), images=probe_images)
    assert explain.passes >= 12
    np.testing.assert_array_equal(explain(["saliency"], model=Scaled(network, 1.0))["attribution"], first)
    assert explain.passes == 0
    edited = [explain(["saliency"], model=Scaled(network, 1.5), cache=cache) for cache in (tmp_path / "cache", None)]
    np.testing.assert_allclose(*(explained["attribution"] for explained in edited), rtol=1e-5)


def test_other_images_of_the_same_network_share_its_folder(explain, network, tmp_path):
    explain(["saliency"], model=Scaled(network, 1.0))
    explain(["saliency"], model=Scaled(network, 1.0), images=torch.randn(12, 3, 16, 16))
    assert [path.parent.name for path in tmp_path.rglob("check")] == ["0"]


class Detached(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.images = inner, 0
        self.eval()

    def forward(self, batch):
        self.images += len(batch)
        return self.inner(batch) + batch.sum((1, 2, 3))[:, None] * 1e-3


def test_an_edited_forward_with_equal_outputs_is_noticed_by_its_code(explain, network, monkeypatch):
    explain(["saliency"], model=Detached(network))

    def forward(self, batch):
        self.images += len(batch)
        return self.inner(batch) + batch.detach().sum((1, 2, 3))[:, None] * 1e-3

    monkeypatch.setattr(Detached, "forward", forward)
    explain(["saliency"], model=Detached(network))
    assert explain.passes == 12


class PartlyDetached(nn.Module):
    """A network with the same outputs, but only a share of their gradient."""

    def __init__(self, inner, share):
        super().__init__()
        self.inner, self.share, self.images = inner, share, 0
        self.eval()

    def forward(self, batch):
        self.images += len(batch)
        logits = self.inner(batch)
        return self.share * logits + (1 - self.share) * logits.detach()


@pytest.mark.parametrize("different_images", [False, True], ids=["same images", "other images"])
def test_different_gradients_with_equal_outputs_are_noticed(different_images, explain, network, images):
    explain(
        ["saliency"],
        model=PartlyDetached(network, 1.0),
        images=torch.randn(12, 3, 16, 16) if different_images else images,
    )
    explain(["saliency"], model=PartlyDetached(network, 1.0))
    assert explain.passes == (12 if different_images else 0)
    halved = explain(["saliency"], model=PartlyDetached(network, 0.5))
    assert explain.passes == 12
    right = explain(["saliency"], model=PartlyDetached(network, 0.5), cache=None)
    np.testing.assert_allclose(halved["attribution"], right["attribution"], rtol=1e-5)


def test_a_hook_that_changes_gradients_is_noticed(explain, counted):
    explain(["saliency"])
    hook = counted.inner[0].register_full_backward_hook(lambda layer, into, out: (into[0] * 2,))
    explain(["saliency"])
    hook.remove()
    assert explain.passes == 12


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"layer": "0"},
        {"targets": [0] * 12},
        {"image_ids": list("abcdefghijkl")},
        {"background": torch.zeros(2, 3, 16, 16)},
        {"methods": [{"integrated_gradients": {"steps": 5}}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_arguments_recompute_the_maps(change, explain):
    methods = [{"integrated_gradients": {"steps": 4}}]
    explain(methods)
    result = explain(**{"methods": methods, **change})
    steps = 5 if "methods" in change else 4
    assert explain.passes >= steps * 11
    plain = explain(**{"methods": methods, **change, "cache": None})
    np.testing.assert_array_equal(result["attribution"], plain["attribution"])


# ---- custom methods --------------------------------------------------------------------------------------------------

SCALE = 2.0


def scaled(model, images, targets):
    return helper(images.sum(1)) * SCALE


def helper(maps):
    return maps


class Power:
    def __init__(self, power):
        self.power = power

    def __call__(self, model, images, targets):
        return images.sum(1) ** self.power


def files_of_maps(folder):
    return {path.parent.name for path in folder.rglob("maps/*/*.batch")}


def test_the_identity_of_a_function_is_its_code_and_the_globals_it_reads(explain, tmp_path, monkeypatch):
    module = sys.modules[__name__]
    seen = []
    changes = [
        lambda: None,
        lambda: monkeypatch.setattr(module, "SCALE", 3.0),
        lambda: monkeypatch.setattr(module, "helper", lambda maps: -maps),
    ]
    for change in changes:
        change()
        maps = explain([scaled])["attribution"].values
        assert np.array_equal(maps, explain([scaled], cache=None)["attribution"].values)
        seen.append(len(files_of_maps(tmp_path)))
    assert seen == [1, 2, 3]
    for method, count in ((Power(1), 4), (Power(1), 4), (Power(2), 5)):
        explain({"own": method})
        assert len(files_of_maps(tmp_path)) == count


def test_objects_of_libraries_are_identified_by_their_settings(explain, counted, tmp_path):
    from captum.attr import IntegratedGradients, LayerGradCam, NoiseTunnel, Saliency

    methods = [
        Saliency(counted),
        LayerGradCam(counted, counted.inner[0]),
        LayerGradCam(counted, counted.inner[2]),
        IntegratedGradients(counted),
        IntegratedGradients(counted, multiply_by_inputs=False),
        NoiseTunnel(Saliency(counted)),
    ]
    for count, method in enumerate(methods, 1):
        for _ in range(2):
            explain({"own": method})
            assert len(files_of_maps(tmp_path)) == count
        assert explain.passes == 0


def held(thing):
    def method(model, images, targets):
        return images.sum(1) * (thing is not None)

    return method


@pytest.mark.parametrize(
    "thing",
    [torch.Generator(), np.random.default_rng(), threading.Lock(), io.BytesIO()],
    ids=lambda state: type(state).__name__,
)
def test_a_method_that_holds_an_unidentifiable_object_is_refused_before_work(thing, explain, counted):
    before = counted.images
    with pytest.raises(HeatproofError, match=rf"'method' cannot be kept .* its 'thing' is a {type(thing).__name__}"):
        explain(["saliency", held(thing)])
    explain([held(thing)], cache=None)
    assert counted.images - before < 40


# ---- methods that are not applicable ---------------------------------------------------------------------------------


class Failing:
    def __init__(self, error):
        self.error = error

    def __call__(self, model, images, targets):
        calls.append(len(images))
        if (images == 7).any():
            raise self.error("no such thing")
        return images.sum(1)


calls = []


@pytest.mark.parametrize(("error", "again"), [(ValueError, False), (ImportError, True), (ConnectionError, True)])
def test_a_failure_is_cached_unless_it_is_a_machine_fault(error, again, explain, images):
    images = images.clone()
    images[5] = 7
    calls.clear()
    failing = Failing(error)
    for _ in range(2):
        with pytest.warns(UserWarning, match="'own' is left out: .*no such thing"):
            result = explain({"own": failing, "saliency": "saliency"}, images=images)
        assert result["reason"].values.tolist()[1] == ""
        assert np.isnan(result["attribution"][0]).all()
        first, *_ = result["reason"].values.tolist()
    assert "no such thing" in first
    once = len(calls)
    with pytest.warns(UserWarning, match="left out"):
        explain({"own": failing}, images=images)
    assert (len(calls) > once) == again
    # Without the image that it fails on, the method is applicable.
    rest = [row for row in range(12) if row != 5]
    result = explain({"own": failing}, images=images[rest], targets=[0] * 11)
    assert result["reason"].values.tolist() == [""]


# ---- interrupted calls -----------------------------------------------------------------------------------------------


class Stops:
    """A method that is interrupted at its n-th batch, without changing its identity."""

    left = 0

    def __call__(self, model, images, targets):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return images.sum(1) * torch.rand(())


def test_an_interrupted_call_keeps_its_batches_and_resumes(explain, tmp_path):
    stops = Stops()
    uncached = explain(["saliency", stops], cache=None)
    stops.left = 3
    before = len(files(tmp_path))
    with pytest.warns(UserWarning, match="Interrupted in Stops: .*; the same call resumes"):
        result = explain(["saliency", stops, "random"])
    assert result["reason"].values.tolist() == ["", "interrupted", "interrupted"]
    assert len(files(tmp_path)) - before == 3 + 2 + 1
    again = explain(["saliency", stops])
    # Only the last batch.
    assert stops.left == -1
    np.testing.assert_array_equal(again["attribution"], uncached["attribution"])


KILLED = """
import sys, time, hashlib, warnings
import numpy as np, torch
from torch import nn
import heatproof
warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)
parts = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(512, 4)
network = nn.Sequential(*parts).eval()
images = torch.randn(48, 3, 16, 16)
def slow(model, images, targets):
    time.sleep(0.2)
    return images.sum(1) + torch.rand(images.shape[0], 16, 16)
methods = ["saliency", slow, {"integrated_gradients": {"steps": 4}}, "input_x_gradient"]
cache = sys.argv[2] if len(sys.argv) > 2 else None
print("begun", flush=True)
if sys.argv[1] == "explain":
    maps = heatproof.explain(network, images, None, methods, batch_size=4, cache=cache)
    # Check passes count this call only: cached maps are not checked again.
    maps.attrs.pop("check_passes")
    result = maps.drop_vars("seconds").load().to_dict()
else:
    measures = {"sds": {"metric": "idsds"}, "curve": {"metric": "rise_insertion", "steps": 4}}
    choice = heatproof.choose(network, images, None, methods, measures=measures, batch_size=4, cache=cache)
    result = choice.table.drop(columns="seconds").to_csv() + choice.sentence
print(hashlib.sha256(repr(result).encode()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("function", ["explain", "choose"])
def test_three_kills_keep_completed_batches_and_the_result(function, tmp_path):
    script, cache = tmp_path / "killed.py", tmp_path / "cache"
    script.write_text(KILLED)

    def run(*arguments):
        command = [sys.executable, str(script), function, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ended(*arguments):
        process = run(*arguments)
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        return text

    plain = ended()
    times = np.random.default_rng(function == "choose").uniform(0.5, 3, 3)
    seen = set()
    for wait in times:
        process = run(cache)
        assert process.stdout.readline() == "begun\n"
        while set(files(cache)) <= seen and process.poll() is None:
            time.sleep(0.02)
        time.sleep(wait / 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        now = files(cache)
        assert seen <= set(now)
        seen = set(now)
    assert seen
    assert plain == ended(cache) == ended(cache)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """The images would take 94 MiB, and their maps as much."""
    script = Path(heatproof.__file__).parents[2] / "benchmarks" / "cache.py"
    peaks = []
    for count in (200, 2000):
        command = [sys.executable, str(script), "--measure", str(tmp_path / str(count)), str(count), "64"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(json.loads(done.stdout.splitlines()[-1])["more"])
    assert peaks[1] - peaks[0] < 40


# ---- files in the folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["*.batch", "*.json"])
def test_a_damaged_byte_is_noticed_and_its_file_recomputed(ending, explain, tmp_path):
    uncached = explain([*METHODS, draws_globally])
    uncached = uncached.drop_vars(TIMES).load()
    rng = np.random.default_rng(0)
    for path in sorted((tmp_path / "cache").rglob(ending)):
        content = bytearray(path.read_bytes())
        for offset in rng.integers(0, len(content), 3):
            damaged = content.copy()
            damaged[offset] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(damaged))
            again = explain([*METHODS, draws_globally]).drop_vars(TIMES).load()
            np.testing.assert_array_equal(again["attribution"], uncached["attribution"])
            assert again["passes"].values.tolist() == uncached["passes"].values.tolist()


def test_only_a_truncated_file_is_recomputed(explain, tmp_path):
    explain(["saliency"])
    for cut in (0, 10, 100, -1):
        path = sorted((tmp_path / "cache").rglob("maps/*/*.batch"))[1]
        path.write_bytes(path.read_bytes()[:cut])
        explain(["saliency"])
        assert 0 < explain.passes <= 5


def forge(path, **changes):
    """Change the content of a checksummed file, and update its checksum."""
    import hashlib

    kind, _, line, data = path.read_bytes().split(b"\n", 3)
    text = {**json.loads(line), **changes}
    line = json.dumps(text).encode() + b"\n"
    path.write_bytes(kind + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n" + line + data)


@pytest.mark.parametrize(
    "changes",
    [
        {"arrays": {"maps": ["object", [1, 16, 16]]}},
        {"arrays": {"maps": ["float32", [1, 2**30, 2**30]]}},
        {"arrays": {"maps": ["float32", [1, -16, -16]]}},
        {"arrays": {"maps": ["float32", [1, 256]]}},
        {"arrays": {}},
        {"names": 5},
        {"names": []},
        {"seconds": -1.0},
        {"passes": "many"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_crafted_file_counts_as_damaged(changes, explain, tmp_path):
    uncached = explain(["saliency"])["attribution"].values
    forge(next((tmp_path / "cache").rglob("maps/*/*.batch")), **changes)
    np.testing.assert_array_equal(explain(["saliency"])["attribution"], uncached)
    assert explain.passes > 0


def test_exchanged_files_still_return_the_maps_of_their_images(explain, tmp_path):
    uncached = explain(["saliency"])["attribution"].values
    first_path, other, *_ = sorted((tmp_path / "cache").rglob("maps/*/*.batch"))
    first, second = first_path.read_bytes(), other.read_bytes()
    first_path.write_bytes(second)
    other.write_bytes(first)
    np.testing.assert_array_equal(explain(["saliency"])["attribution"], uncached)


def test_folders_that_are_not_a_cache_of_this_version_are_refused(explain, tmp_path, counted):
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"")
    with pytest.raises(
        HeatproofError, match=r"photographs is not a cache of heatproof, because it contains 'cat\.jpg'"
    ):
        explain(cache=folder)
    assert os.listdir(folder) == ["cat.jpg"]
    with pytest.raises(HeatproofError, match="is a file: name a folder"):
        explain(cache=folder / "cat.jpg")
    with pytest.raises(HeatproofError, match="The cache is int: give the path"):
        explain(cache=3)
    explain(["random"])
    write_checksummed(tmp_path / "cache" / "heatproof-cache.json", {"kind": "cache of heatproof", "version": 99})
    with pytest.raises(HeatproofError, match="from another version"):
        explain(["random"])
    assert counted.images <= 6


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_links_and_pipes_are_refused(what, explain, tmp_path):
    explain(["random"])
    path = next((tmp_path / "cache").rglob("maps/*/*.batch"))
    if what == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(HeatproofError, match="symbolic link" if what == "link" else "named pipe"):
        explain(["random"])


def test_one_call_at_a_time_uses_a_folder(explain, tmp_path):
    explain(["random"])
    with (
        locked_folder(str(tmp_path / "cache")),
        pytest.raises(HeatproofError, match=r"Another run works on .* a cache of"),
    ):
        explain(["random"])
    explain(["random"])


def test_two_threads_at_once_wait_or_are_refused(network, images, targets, tmp_path):
    results = []

    def call():
        failing = Counted(copy.deepcopy(network))
        try:
            maps = heatproof.explain(failing, images, targets, [slow], batch_size=4, cache=tmp_path / "cache")
            results.append(maps["attribution"].values)
        except HeatproofError as error:
            results.append(str(error))

    def slow(model, images, targets):
        time.sleep(0.05)
        return images.sum(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    maps = [result for result in results if isinstance(result, np.ndarray)]
    assert maps
    assert all(np.array_equal(values, maps[0]) for values in maps)
    assert all("Another run works on" in result for result in results if isinstance(result, str))


# ---- choose ----------------------------------------------------------------------------------------------------------

CHOSEN = ["saliency", "input_x_gradient", {"integrated_gradients": {"steps": 4}}, "attention_rollout"]
MEASURES = {
    "drops": {"metric": "idsds"},
    "curve": {"metric": "rise_insertion", "steps": 4},
    "subsets": {"metric": "sensitivity_n"},
}


@pytest.fixture(scope="module")
def many():
    return torch.randn(36, 3, 16, 16, generator=torch.Generator().manual_seed(8))


def test_choose_returns_the_same_result_with_a_cache_and_repeats_no_pass(counted, many, tmp_path):
    def choose(methods=CHOSEN, **options):
        before = counted.images
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            choice = heatproof.choose(counted, many, methods=methods, measures=MEASURES, batch_size=7, **options)
        choose.passes = counted.images - before
        return choice

    plain, cold = choose(), choose(cache=tmp_path / "cache")
    cold_passes = choose.passes
    warm = choose(cache=tmp_path / "cache")
    # The passes of the check and of predicting classes.
    assert choose.passes < 2 * 36 + 30 < cold_passes / 10
    tables = [choice.table.drop(columns=TIMES) for choice in (plain, cold, warm)]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert plain.sentence == cold.sentence == warm.sentence
    # Only the added method is computed and scored.
    before = choose.passes
    choose([*CHOSEN, "grad_cam"], cache=tmp_path / "cache")
    assert before < choose.passes < cold_passes / 2


def test_scores_in_batches_equal_those_of_all_images_at_once(network, many):
    from heatproof.api.cache import Cache
    from heatproof.api.choose import _Judge
    from heatproof.api.explain import batch_template
    from heatproof.api.inputs.finetuned import domain_of
    from heatproof.api.inputs.first_images import check_first_images
    from heatproof.api.inputs.read import read_inputs
    from heatproof.api.named_methods import select_methods
    from heatproof.api.selected_metrics import select_metrics
    from heatproof.core.network import prepare_network

    measures = {**MEASURES, "curve": {"metric": "mas_insertion", "steps": 4}, "road": {"metric": "road_morf"}}
    targets = torch.arange(36) % 4
    with prepare_network(network, many, 0) as checked:
        source = read_inputs(network, many, targets)
        check_first_images(checked, many[:4])
        template = batch_template(checked, 0, 5, None, None)
        named_methods = {name: select_methods(name)[0] for name in ("saliency", "input_x_gradient")}
        judging = _Judge(
            source, template, Cache(), named_methods, select_metrics(measures, {}, domain_of(network)), 0.95
        )
        scored_dataset = judging.scored(torch.arange(36), named_methods)
    maps = heatproof.explain(network, many, targets, list(named_methods), batch_size=5)
    uncached = heatproof.evaluate(measures, network, many, targets, maps, batch_size=5)
    for name, scores in scored_dataset.scores.items():
        for row, method in enumerate(scored_dataset.rows):
            if not method.endswith("_abs"):
                expected = uncached[name]["score"].sel({"method": method})
                np.testing.assert_allclose(scores[row], expected, rtol=1e-6, atol=1e-7, err_msg=f"{name} of {method}")


# ---- batch files -----------------------------------------------------------------------------------------------------


def test_batch_files_return_values_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"b": rng.normal(size=(3, 4)), "a": rng.integers(0, 9, (3,)), "c": rng.random((3, 2, 2)) < 0.5}
    BatchFolder(tmp_path / "kept").add(["x", "y", "z"], arrays, 1.5, 6)
    folder = BatchFolder(tmp_path / "kept")
    assert folder.missing(["z", "w", "x"]) == [1]
    arrays_read = folder.read(["z", "x"])
    for name, values in arrays.items():
        assert arrays_read[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays_read[name], values[[2, 0]])
    assert folder.cost(["x"]) == (0.5, 2.0)
