"""One loop for all trainings: it learns, is reproducible, and returns the best epoch on the validation split."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from heatproof.core.specs import Schedule
from heatproof.errors import HeatproofError
from heatproof.training.devices import sound_backward
from heatproof.training.loop import Examples, fit, validate

SCHEDULE = Schedule(
    epochs=6,
    batch_size=16,
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    weight_decay=0.0,
    schedule="step",
    decay=0.5,
    decay_every=2,
    label_smoothing=0.0,
    shift=0,
)


def examples(count, seed, noise=0.5):
    """Return noisy images whose red channel depends on their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = noise * torch.randn(count, 3, 6, 6, generator=generator)
    images[:, 0] += (2 * labels - 1)[:, None, None]
    return Examples(images, labels)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("decay", ["step", "cosine"])
def test_training_learns_separable_classes(optimizer, decay):
    schedule = replace(SCHEDULE, optimizer=optimizer, schedule=decay, lr=0.1 if optimizer == "sgd" else 0.03)
    model = network()
    best, history, _ = fit(model, examples(64, 0), examples(32, 1), schedule, seed=0)
    model.load_state_dict(best)
    unseen = examples(200, 2)
    assert validate(model, unseen, 16)[1] > 0.95
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_the_same_seed_gives_the_same_bytes_whatever_the_global_generator():
    trainings = []
    for disturb in (1, 2):
        torch.manual_seed(disturb)
        best, history, _ = fit(network(), examples(64, 0), examples(32, 1), replace(SCHEDULE, shift=1), seed=0)
        trainings.append((best, history))
    (first, first_history), (second, second_history) = trainings
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first_history == second_history
    other, _, _ = fit(network(), examples(64, 0), examples(32, 1), replace(SCHEDULE, shift=1), seed=1)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_checkpoint_is_the_epoch_with_the_lowest_validation_loss():
    """The rate is so high that losses jump, and labels are so noisy that more training does not help."""
    train, validation = examples(32, 0, noise=4.0), examples(24, 1, noise=4.0)
    model = network()
    best, history, _ = fit(model, train, validation, replace(SCHEDULE, lr=0.5, epochs=12), seed=0)
    losses = [row["validation_loss"] for row in history]
    chosen = losses.index(min(losses))
    assert 0 < chosen < len(losses) - 1, "neither the first nor the last, or this test says nothing"
    assert validate(model, validation, 16)[0] == pytest.approx(losses[-1], abs=1e-6)
    model.load_state_dict(best)
    loss, accuracy = validate(model, validation, 16)
    assert loss == pytest.approx(losses[chosen], abs=1e-6)
    assert accuracy == pytest.approx(history[chosen]["validation_accuracy"])


def test_validation_is_the_mean_over_images_whatever_the_batches():
    model, held_out = network(), examples(10, 3, noise=2.0)
    logits = model.eval()(held_out.images).detach()
    loss = nn.functional.cross_entropy(logits, held_out.labels)
    accuracy = (logits.argmax(1) == held_out.labels).float().mean()
    for batch_size in (1, 4, 10):
        assert validate(model, held_out, batch_size) == pytest.approx((float(loss), float(accuracy)), abs=1e-6)


def test_the_learning_rate_follows_its_schedule():
    rates = {}
    for schedule in ("step", "cosine"):
        _, history, _ = fit(network(), examples(16, 0), examples(8, 1), replace(SCHEDULE, schedule=schedule), seed=0)
        rates[schedule] = [row["lr"] for row in history]
    assert rates["step"] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
    cosine = [0.05 * (1 + torch.tensor(torch.pi * epoch / 6).cos().item()) for epoch in range(6)]
    assert rates["cosine"] == pytest.approx(cosine, abs=1e-7)


@pytest.mark.parametrize("lr", [1e30, 1e10])
def test_divergence_is_an_error(lr):
    with pytest.raises(HeatproofError, match=r"Training diverged in epoch \d+ .*: lower the learning rate"):
        fit(network(), examples(64, 0), examples(32, 1), replace(SCHEDULE, lr=lr, epochs=20), seed=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_training_that_moves_no_weight_is_an_error(optimizer):
    schedule = replace(SCHEDULE, lr=1e-30, optimizer=optimizer)
    with pytest.raises(HeatproofError, match="The training moved no weight in 6 epochs: raise lr, now 1e-30"):
        fit(network(), examples(64, 0), examples(32, 1), schedule, seed=0)


def test_nonfinite_images_are_an_error():
    bad = examples(16, 0)
    bad.images[3] = torch.nan
    with pytest.raises(HeatproofError, match="diverged in epoch 0"):
        fit(network(), bad, examples(8, 1), SCHEDULE, seed=0)


def test_a_last_batch_of_one_is_left_out():
    """Batch norm cannot be trained on one image."""
    flat = nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    _, history, _ = fit(flat, examples(17, 0), examples(8, 1), SCHEDULE, seed=0)
    assert len(history) == SCHEDULE.epochs


def test_the_augmentation_sees_every_training_image_once_an_epoch_and_no_other():
    seen = []

    def augment(images, generator):
        seen.append(images.clone())
        return images

    train, validation = examples(48, 0), examples(8, 1)
    fit(network(), train, validation, replace(SCHEDULE, epochs=2), seed=0, augment=augment)
    for epoch in (seen[:3], seen[3:]):
        rows = torch.cat(epoch).flatten(1)
        is_in_row = (rows[:, None] == train.images.flatten(1)[None]).all(2)
        assert torch.equal(is_in_row.sum(0), torch.ones(48, dtype=torch.long))
    assert not torch.equal(seen[0], seen[3]), "in another order"


def test_settings_of_the_schedule_change_the_weights():
    plain, _, _ = fit(network(), examples(32, 0), examples(8, 1), SCHEDULE, seed=0)
    for change in ({"weight_decay": 0.1}, {"label_smoothing": 0.2}, {"momentum": 0.0}, {"batch_size": 8}):
        other, _, _ = fit(network(), examples(32, 0), examples(8, 1), replace(SCHEDULE, **change), seed=0)
        assert any(not torch.equal(plain[name], other[name]) for name in plain), change


def test_bfloat16_trains_weights_of_float32():
    plain, history, _ = fit(network(), examples(64, 0), examples(32, 1), SCHEDULE, seed=0)
    seen = set()
    model = network()
    model[0].register_forward_hook(lambda layer, inputs, output: seen.add((layer.training, output.dtype)))
    best, lower, _ = fit(model, examples(64, 0), examples(32, 1), replace(SCHEDULE, precision="bfloat16"), seed=0)
    assert seen == {(True, torch.bfloat16), (False, torch.float32)}, "validated as the weights are used"
    assert all(best[name].dtype == plain[name].dtype for name in plain)
    assert any(not torch.equal(best[name], plain[name]) for name in plain)
    for key in ("train_loss", "validation_loss"):
        assert lower[-1][key] == pytest.approx(history[-1][key], abs=0.02)
    assert lower[-1]["validation_accuracy"] > 0.9


ODD = """
import torch
from test_loop import Examples, Schedule, fit
from heatproof.models.registry import ARCHITECTURES

torch.set_num_threads(THREADS)
network = ARCHITECTURES["cifar_resnet20"].build(num_classes=2, width=WIDTH)
data = Examples(torch.randn(75, 3, 32, 32), torch.arange(75) % 2)
fit(network, data, data, Schedule(3, 15, "sgd", 0.01, 0.9, 0.0, "cosine", 0.1, 1, 0.0, 0), 0)
print("trained")
"""


@pytest.mark.parametrize(
    ("threads", "width"), [(1, 4), *(pytest.param(2, width, marks=pytest.mark.slow) for width in (4, 8))]
)
def test_narrow_projections_are_trained(threads, width):
    """In a separate process, because without `sound_backward`, oneDNN crashes on some processors."""
    code = ODD.replace("THREADS", str(threads)).replace("WIDTH", str(width))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_sound_backward_pass_has_the_same_values_and_leaves_the_network_as_it_was():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1, stride=2), nn.Conv2d(4, 8, 1, stride=(3, 2), bias=False), nn.Conv2d(8, 9, 3, stride=2)
    ).double()
    images = torch.randn(2, 3, 48, 33, dtype=torch.float64).contiguous(memory_format=torch.channels_last)

    def gradients():
        output = model(images)
        return output, *torch.autograd.grad(output.square().sum(), list(model.parameters()))

    plain = gradients()
    with sound_backward(model, torch.device("cpu")):
        strides = [layer.stride for layer in model]
        sound = gradients()
    assert strides == [(1, 1), (1, 1), (2, 2)]
    assert [layer.stride for layer in model] == [(2, 2), (3, 2), (2, 2)]
    assert not any(layer._forward_pre_hooks for layer in model)
    for before, after in zip(plain, sound, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
