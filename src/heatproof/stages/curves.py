"""The stage that caches responses along maps: what a model says while an image is perturbed as a map tells.

One job makes a shard of one response, for every explainer it is given. Each explainer has a store of its own, with its
methods as a dimension, so that a method that is added later computes its own share and no more. Images are read, and
run intact, once for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from heatproof.data.ahead import read_ahead
from heatproof.data.prepare import open_dataset
from heatproof.data.registry import Dataset
from heatproof.errors import NotApplicable
from heatproof.manifest import read_piece
from heatproof.models.network import normalise, use_machine
from heatproof.perturbation.dataset_mean import dataset_options
from heatproof.perturbation.responses import intact_responses
from heatproof.perturbation.whole import WholeBatches, open_network
from heatproof.pieces import Piece, open_piece
from heatproof.progress import track
from heatproof.sequences import Perturbation
from heatproof.store import ArraySpec, read

log = logging.getLogger(__name__)

SAID = ("logit_label", "logit_predicted", "log_probability_label", "log_probability_predicted", "predicted", "intact")
OF_MAPS = ("changed", "magnitude", "positive", "total_magnitude", "total_positive", "pixels")
# What a store holds at every point of a sequence. `intact` is the class predicted for the image as it is, and the
# totals and pixels are those of the whole map: the same at every point, and nothing once compressed.
QUANTITIES = {"curves": (*SAID, *OF_MAPS), "pictures": (*SAID, "entropy"), "explanations": ("change",)}

Answer = dict[str, np.ndarray]
Work = tuple[Mapping[str, Any], Piece]


def curves(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Make one shard of a response along the maps of the spec's explainers, adding to what is there already.

    An explainer that does not apply to the model is published as a gap with its reason.

    Raises
    ------
    HeatproofError
        If a map or a response has a value that is not finite, or maps are missing or damaged.
    """
    device = use_machine(machine)
    dataset = open_dataset(spec["dataset"])
    size = dataset.images("evaluation", 0, 1).shape[-2:]
    every: list[Work] = []
    for explainer in spec["explainers"]:
        maps = read_piece(explainer["maps_store"], spec["shard"])
        piece = _open(spec, explainer, dataset, size, maps["key"])
        if maps["gap"]:
            piece.publish_gap(maps["gap"], str(device))
        else:
            every.append((explainer, piece))
    todo = [(explainer, piece) for explainer, piece in every if piece.missing()[0] < piece.missing()[1]]
    for explainer, piece in every:
        if (explainer, piece) not in todo:
            log.info("%s: all images are there already", explainer["name"])
            piece.publish(str(device))
    if todo:
        _run(spec, todo, dataset, machine, device)
    # Only now: until the job ends well, Snakemake may remove what it published.
    for _, piece in every:
        piece.forget_journal()


def _open(
    spec: Mapping[str, Any], explainer: Mapping[str, Any], dataset: Dataset, size: tuple[int, ...], maps_key: str
) -> Piece:
    response = spec["response"]
    methods = [method["method"] for method in explainer["methods"]]
    made_by = {
        key: spec[key] for key in ("dataset", "model", "weights", "seed", "response", "precision") if key in spec
    }
    made_by["explainer"] = {key: explainer[key] for key in ("name", "kind", "options")}
    upstream = [maps_key]
    if response["kind"] == "pictures":
        # Entropies are sizes of files: another encoder, other numbers.
        made_by["encoder"] = import_module("heatproof.perturbation.pic").encoder()
        upstream.append(made_by["encoder"])
    quantities = QUANTITIES[response["kind"]]
    shape = (len(methods), len(quantities), _points(response, size))
    return open_piece(
        spec,
        spec["store"].format(explainer=explainer["name"]),
        explainer["key"],
        dataset.splits["evaluation"],
        {"response": ArraySpec(("method", "quantity", "point"), shape, "float64", chunk_by_image=False)},
        made_by=made_by,
        inputs=[spec["weights"]],
        coordinates={"method": methods, "quantity": list(quantities)},
        upstream=upstream,
    )


def _points(response: Mapping[str, Any], size: tuple[int, ...]) -> int:
    settings = response["settings"]
    if response["kind"] == "curves":
        return Perturbation.from_described(settings).points(*size)
    return len(_thresholds(settings)) + 2 if response["kind"] == "pictures" else 1


def _thresholds(settings: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(settings["thresholds"] or import_module("heatproof.perturbation.pic").THRESHOLDS)


def _run(
    spec: Mapping[str, Any], todo: list[Work], dataset: Dataset, machine: Mapping[str, Any], device: torch.device
) -> None:
    split = dataset.splits["evaluation"]
    # Explainers look into the network, and a compiled one does not let them.
    explains = spec["response"]["kind"] == "explanations" or spec["response"]["settings"].get("update")
    machine = {**machine, "compile": bool(machine.get("compile")) and not explains}
    batch_size, whole = machine["batch_size"], open_network(spec, dataset.num_classes, machine, device)
    settings = dict(spec["response"]["settings"])
    if "baseline" in settings:
        facts = spec["model"]["facts"]
        settings["baseline_options"] = dataset_options(
            settings["baseline"], settings["baseline_options"], dataset, facts
        )
    start, stop = min(piece.missing()[0] for _, piece in todo), spec["images"][1]
    gaps: dict[str, str] = {}
    # Reading and the intact images are paid by the first explainer of a batch.
    began = time.monotonic()
    for low, images in read_ahead(
        lambda low: normalise(dataset.images("evaluation", low, min(low + batch_size, stop)), spec["model"]["facts"]),
        track(range(start, stop, batch_size), "responses", unit="batch"),
        device,
    ):
        high = min(low + batch_size, stop)
        labels, ids = torch.from_numpy(split.labels[low:high]), list(split.ids[low:high])
        intact = intact_responses(whole, images, labels, ids, batch_size, device)
        for explainer, piece in todo:
            # As a rule with the first image of the batch; where images were added, within it or after it.
            begin = max(piece.missing()[0], low)
            if begin >= high or explainer["name"] in gaps:
                continue
            before, row = whole.images, begin - low
            ask = _Ask(
                spec=spec,
                settings=settings,
                explainer=explainer,
                images=images[row:],
                labels=labels[row:],
                ids=ids[row:],
                intact={name: values[row:] for name, values in intact.items()},
                dataset=dataset,
                whole=whole,
                batch_size=batch_size,
                device=device,
            )
            maps = read(explainer["maps_store"] + ".zarr", "attribution", begin, high)
            try:
                answers = ask.methods(maps)
            except NotApplicable as reason:
                # It applied to the images, and does not to what they are changed to.
                log.info("%s does not apply: %s", explainer["name"], reason)
                gaps[explainer["name"]] = str(reason)
                continue
            piece.add(begin, {"response": answers}, time.monotonic() - began, whole.images - before)
            began = time.monotonic()
    for explainer, piece in todo:
        if explainer["name"] in gaps:
            piece.publish_gap(gaps[explainer["name"]], str(device))
        else:
            piece.publish(str(device))


@dataclass(frozen=True)
class _Ask:
    """What is asked of a network about some images, along all methods of one explainer.

    Attributes
    ----------
    images, labels, ids
        (N, C, H, W) normalised, (N,) and N strings.
    intact
        What the network says of the images as they are.
    """

    spec: Mapping[str, Any]
    settings: Mapping[str, Any]
    explainer: Mapping[str, Any]
    images: torch.Tensor
    labels: torch.Tensor
    ids: list[str]
    intact: Mapping[str, np.ndarray]
    dataset: Dataset
    whole: WholeBatches
    batch_size: int
    device: torch.device

    def methods(self, maps: np.ndarray) -> np.ndarray:
        """Return the answers along maps (N, maps, H, W): (N, methods, quantities, points) float64."""
        kind = self.spec["response"]["kind"]
        ask = {"curves": self._curves, "pictures": self._pictures, "explanations": self._explanations}[kind]
        parts = []
        for method in self.explainer["methods"]:
            own = maps[:, method["index"]]
            answer = ask(np.abs(own) if method["transform"] == "abs" else own, method)
            parts.append(np.stack([answer[quantity] for quantity in QUANTITIES[kind]], axis=1))
        return np.stack(parts, axis=1)

    @property
    def _targets(self) -> torch.Tensor:
        """The label, and the class predicted for the intact image: (N, 2)."""
        return torch.stack([self.labels, torch.from_numpy(self.intact["predicted"])], dim=1)

    def _curves(self, maps: np.ndarray, method: Mapping[str, Any]) -> Answer:
        sequence = Perturbation.from_described(self.settings)
        arrays = import_module("heatproof.perturbation.curves").response_curves(
            self.whole,
            self.images,
            maps,
            self._targets,
            self.ids,
            {"": sequence},
            seed=self.spec["seed"],
            batch_size=self.batch_size,
            device=self.device,
            intact=self.intact,
            explain=self._explain(method) if sequence.update else None,
        )[""]
        shape = arrays["predicted"].shape
        of_maps = {key: arrays[key] for key in ("changed", "magnitude", "positive")}
        for key in ("total_magnitude", "total_positive"):
            of_maps[key] = np.broadcast_to(arrays[key][:, None], shape)
        of_maps["pixels"] = np.full(shape, maps.shape[1] * maps.shape[2])
        return {**self._said(arrays), **of_maps}

    def _pictures(self, maps: np.ndarray, method: Mapping[str, Any]) -> Answer:
        facts = self.spec["model"]["facts"]
        arrays = import_module("heatproof.perturbation.pic").pic_responses(
            self.whole,
            self.images,
            maps,
            self._targets,
            self.ids,
            mean=facts["mean"],
            std=facts["std"],
            thresholds=_thresholds(self.settings),
            seed=self.spec["seed"],
            batch_size=self.batch_size,
            device=self.device,
            masks=self.settings["masks"],
        )
        return {**self._said(arrays), "entropy": arrays["entropy"]}

    def _said(self, arrays: Mapping[str, np.ndarray]) -> Answer:
        """Take the two targets apart, and lay the intact prediction beside every point."""
        apart = {
            f"{output}_{target}": arrays[output][:, :, place]
            for output in ("logit", "log_probability")
            for place, target in enumerate(("label", "predicted"))
        }
        intact = np.broadcast_to(self.intact["predicted"][:, None], arrays["predicted"].shape)
        return {**apart, "predicted": arrays["predicted"], "intact": intact}

    def _explanations(self, maps: np.ndarray, method: Mapping[str, Any]) -> Answer:
        changes, _ = import_module("heatproof.perturbation.sensitivity").max_sensitivity(
            self._explain(method),
            self.images.to(self.device),
            self.labels.to(self.device),
            self.ids,
            self.spec["seed"],
            self.settings["radius"],
            self.settings["samples"],
            self.settings["norm"],
            batch_size=self.batch_size,
            intact=torch.from_numpy(maps),
        )
        # A map of zeros has no relative change. A store holds no NaN where something was computed: -1 stands for it.
        return {"change": np.where(np.isfinite(changes), changes, -1.0)[:, None]}

    def _explain(self, method: Mapping[str, Any]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        explaining = import_module("heatproof.stages.explaining")
        return explaining.method_maps(
            self.explainer, method, self.whole.network, self.dataset, self.spec, self.ids, self.batch_size, self.device
        )
