"""The same work by heatproof and by captum, Quantus, pytorch-grad-cam and a bare loop: times, passes and agreement.

    pip install "heatproof[peers]"
    python benchmarks/peers.py --out FOLDER

Both run in one process and in turns, on torchvision's ResNet-18 at 224×224 and the embedded ResNet-20 at 32×32 with
random weights; times are medians of several rounds. "Times as fast" is the peer's time over heatproof's. Passes are
images that pass through the network; a gradient is one pass. Agreement is Spearman's correlation of the results, over
pixels of maps or over images and steps of scores. For a peer that fails, the row has the reason.
"""

import statistics
import time
import warnings
from importlib import import_module

import numpy as np
import torch
from _shared import make_parser, print_table
from metrics import networks, smooth
from scipy.stats import spearmanr

import heatproof
from heatproof.core.input_facts import InputFacts
from heatproof.explainers.registry import EXPLAINERS, ExplainContext

# Quantus flips values, not pixels: after every third of its steps the images are equal.
SEED, STEPS, GRID = 0, 48, 4
# Images per pass, for all: on a CPU larger activations are allocated again for every layer (malloc.py).
BATCH = {224: 4, 32: 16}
# Layer of class activation maps.
LAYER = {224: "layer4", 32: "stages"}
FRACTIONS = [part / 10 for part in range(1, 10)]


class Task:
    """A network, images and maps."""

    def __init__(self, network, size, count):
        self.network, self.size, self.batch = network, size, BATCH[size]
        self.images, self.maps = smooth(count, 3, size), smooth(count, 1, size)[:, 0] + 0.01 * torch.rand(1, size, size)
        self.labels = torch.arange(count) % 10
        self.passes = 0
        # captum passes tuples to a network, and concatenates them later.
        first = next(module for module in network.modules() if isinstance(module, torch.nn.Conv2d))
        first.register_forward_pre_hook(self._count)

    def _count(self, module, inputs):
        self.passes += len(inputs[0])

    @property
    def layer(self):
        return self.network.get_submodule(LAYER[self.size])

    def explain(self, name, **options):
        entry, ids = EXPLAINERS[name], tuple(map(str, range(len(self.images))))
        facts = InputFacts(size=(self.size, self.size), cam_layer=LAYER[self.size])
        context = ExplainContext(self.network, self.network, facts, self.images, self.labels, ids, SEED, self.batch)
        return entry.function(context, **{**entry.options, **options})[name].detach().numpy()

    def evaluate(self, metric, **options):
        return heatproof.evaluate(
            metric, self.network, self.images, self.labels, self.maps, batch_size=self.batch, seed=SEED, **options
        )

    def in_batches(self, function):
        """Return the maps of a function of images and labels, batch by batch, summed over channels."""
        parts = zip(self.images.split(self.batch), self.labels.split(self.batch), strict=True)
        return np.concatenate(
            [np.asarray(function(*part)).reshape(len(part[0]), -1, *[self.size] * 2).sum(1) for part in parts]
        )


def captum(name, **options):
    def run(task):
        method = getattr(import_module("captum.attr"), name)(task.network)
        return task.in_batches(lambda images, labels: method.attribute(images, target=labels, **options).detach())

    return run


def occlusion(task):
    window = (3, task.size // GRID, task.size // GRID)
    return captum("Occlusion", sliding_window_shapes=window, strides=window)(task)


def grad_cam(name):
    def run(task):
        package, targets = import_module("pytorch_grad_cam"), import_module("pytorch_grad_cam.utils.model_targets")
        with getattr(package, name)(task.network, [task.layer]) as method:
            return task.in_batches(
                lambda images, labels: method(images, [targets.ClassifierOutputTarget(int(label)) for label in labels])
            )

    return run


def quantus_flipping(task):
    method = import_module("quantus").PixelFlipping(
        features_in_step=3 * task.size**2 // STEPS, normalise=False, perturb_baseline=0.0, disable_warnings=True
    )
    arrays = task.images.numpy(), task.labels.numpy(), task.maps[:, None].expand(-1, 3, -1, -1).numpy()
    return np.array(method(task.network, *arrays, channel_first=True, softmax=False, batch_size=task.batch))[:, 2::3]


def flipping(task):
    result = task.evaluate("deletion_morf", steps=STEPS, baseline="zeros", output="logit")
    return next(result[name].values for name in result if result[name].ndim == 2)[:, 3::3]


def grad_cam_road(task):
    road = import_module("pytorch_grad_cam.metrics.road")
    targets = import_module("pytorch_grad_cam.utils.model_targets")
    method = road.ROADMostRelevantFirstAverage([round(100 * (1 - part)) for part in FRACTIONS])
    with torch.no_grad():
        return method(
            task.images,
            task.maps.numpy(),
            [targets.ClassifierOutputTarget(int(label)) for label in task.labels],
            task.network,
        )


def road(task):
    with torch.no_grad():
        intact = task.network(task.images).gather(1, task.labels[:, None])[:, 0].numpy()
    result = task.evaluate("road_morf", fractions=FRACTIONS, output="logit")
    curve = next(result[name].values for name in result if result[name].ndim == 2)
    return curve[:, -len(FRACTIONS) :].mean(1) - intact


def idsds(task):
    return task.evaluate("sds", grid=GRID, baseline="zeros")["score"].values


def bare_idsds(task):
    """Return the drops of all patches and their correlation with patch sums, image by image."""
    side, correlations = task.size // GRID, []
    with torch.inference_mode():
        for image, label, map_values in zip(task.images, task.labels, task.maps, strict=True):
            variants = image.repeat(GRID**2 + 1, 1, 1, 1)
            for patch in range(GRID**2):
                row, column = side * (patch // GRID), side * (patch % GRID)
                variants[patch + 1, :, row : row + side, column : column + side] = 0
            logits = task.network(variants)[:, label].numpy()
            sums = map_values.reshape(GRID, side, GRID, side).sum((1, 3)).flatten().numpy()
            correlations.append(spearmanr(sums, logits[0] - logits[1:]).statistic)
    return np.array(correlations)


def explain(name, **options):
    return lambda task: task.explain(name, **options)


# The work, by heatproof and by a peer.
WORK = {
    "IDSDS over given maps": (idsds, {"a bare loop": bare_idsds}),
    "pixel flipping, 48 steps": (flipping, {"Quantus": quantus_flipping}),
    "ROAD, 9 steps": (road, {"pytorch-grad-cam": grad_cam_road}),
    "saliency": (explain("saliency"), {"captum": captum("Saliency", abs=False)}),
    "input × gradient": (explain("input_x_gradient"), {"captum": captum("InputXGradient")}),
    "integrated gradients, 50 steps": (
        explain("integrated_gradients", steps=50),
        {"captum": captum("IntegratedGradients", n_steps=50, internal_batch_size=16)},
    ),
    "DeepLIFT": (explain("deep_lift"), {"captum": captum("DeepLift")}),
    "guided backprop": (explain("guided_backprop"), {"captum": captum("GuidedBackprop")}),
    "occlusion, 16 patches": (explain("occlusion", window=1 / GRID, stride=1 / GRID), {"captum": occlusion}),
    "Grad-CAM": (explain("grad_cam"), {"pytorch-grad-cam": grad_cam("GradCAM")}),
    "Score-CAM": (explain("score_cam"), {"pytorch-grad-cam": grad_cam("ScoreCAM")}),
}


def compare(task, title, work, our_function, name, peer_function, rounds):
    """Return a row; the two programs run in turns."""
    row = {"network": title, "work": work, "peer": name}
    times, scores, passes = {"heatproof": [], name: []}, {}, {}
    # The first round imports modules, and does not count.
    for turn in range(rounds + 1):
        for who, function in (("heatproof", our_function), (name, peer_function)):
            task.passes, began = 0, time.perf_counter()
            try:
                scores[who] = np.asarray(function(task), dtype=np.float64)
            except Exception as error:  # a peer can fail in any way
                return row | {"note": f"{who} fails: {' '.join(str(error).split())[:80]}"}
            if turn:
                times[who].append(time.perf_counter() - began)
            passes[who] = task.passes / len(task.images)
    median = {who: statistics.median(seconds) for who, seconds in times.items()}
    agreement = spearmanr(scores["heatproof"].ravel(), scores[name].ravel()).statistic
    return row | {
        "times as fast": median[name] / median["heatproof"],
        "agreement": agreement,
        "passes of heatproof": passes["heatproof"],
        "passes of the peer": passes[name],
    }


def main():
    options = make_parser(__doc__)
    options.add_argument("--images", type=int, default=8, help="of 224 pixels; eight times as many of 32")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for title, network, size in networks():
        if args.small and size > 100:
            continue
        count = 2 if args.small else args.images * (1 if size > 100 else 8)
        task = Task(network, size, count)
        for work, (ours, peers) in WORK.items():
            # One pass for each of the layer's channels takes minutes at 224 pixels, all of it in the network.
            if work == "Score-CAM" and size > 100:
                continue
            for name, theirs in peers.items():
                rows.append(compare(task, title, work, ours, name, theirs, 1 if args.small else args.rounds))
                print(rows[-1], flush=True)
    print_table(rows, "peers", args.out)


if __name__ == "__main__":
    main()
