"""`heatproof check`: find errors in a config before work starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from heatproof.core.lazy import torch
from heatproof.core.registry import suggest_name
from heatproof.core.specs import layer_and_channel
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS, require_library
from heatproof.models.packaged import find_packaged, is_packaged
from heatproof.models.registry import ARCHITECTURES
from heatproof.workflow.changed_data import describe_changes
from heatproof.workflow.config.files import read_config
from heatproof.workflow.config.removed import without_removed_keys
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.resolve import ModelChoice
from heatproof.workflow.plan.validate import Plan, make_plan, require_size
from heatproof.workflow.trial import Trial, inspect_image_files, run_trial


def check_config(*paths: str | Path, contents: bool = False) -> str:
    """Check a config, and return a summary of it, with the layers that explainers read.

    The summary also has changes of the data since existing results were computed.

    Parameters
    ----------
    paths
        A config, and others merged into it in turn.
    contents
        Whether to read every file of the data, and not only those whose size or times differ from the record.

    Raises
    ------
    HeatproofError
        A sentence about the first error that would end a run, or one for each explainer and metric of the user that
        fails, without which a run goes on.
    """
    config, removed = without_removed_keys(read_config(*paths))
    plan = make_plan(config)
    trial = check_machine(plan)
    if trial.unusable:
        raise HeatproofError("\n".join(trial.unusable))
    targets, image_files = describe_targets(plan), inspect_image_files(plan)
    changes = describe_changes(Graph(plan), contents)
    further_lines = "".join(f"\n{line}" for line in [*removed, *targets, *image_files, *trial.warnings, *changes])
    jobs = len(plan.pairs()) * len(plan.weights)
    name = " under ".join(map(str, paths))
    return (
        f"{name} is sound: {len(plan.datasets)} dataset(s), {len(plan.models)} model(s) with "
        f"{len(plan.weights)} weights each, {len(plan.methods)} methods from {len(plan.explainers)} explainers, "
        f"{plan.describe_images()}, {len(plan.test_cases())} test cases on {jobs} networks; {len(plan.metrics)} "
        f"further metrics in results/scores.csv.{further_lines}"
        + "".join(f"\n  {line}" for line in describe_layers(plan))
    )


def describe_targets(plan: Plan) -> list[str]:
    """Return a line for each dataset with its task and target; none for classes whose label is explained."""
    target = plan.config["target"]
    numbers = {"multilabel": "label", "regression": "number"}
    lines = []
    for name, entry in plan.datasets.items():
        task, kind = entry["task"], numbers.get(entry["task"])
        if plan.target_function:
            lines.append(f"{name}: {task}, of which {plan.target_function} is explained")
        elif task == "binary":
            lines.append(f"{name}: binary, and networks get one output")
        elif kind and isinstance(target, int):
            lines.append(f"{name}: {task}, {kind} {target} of every image is explained")
        elif kind:
            each = {"label": "each label of an image" if kind == "label" else "each number of an image"}
            lines.append(f"{name}: {task}, {each.get(target, 'the label with the largest logit')} is explained")
    return lines


def describe_layers(plan: Plan) -> list[str]:
    """Return a line for each model with the layer that CAMs read, its grid, and the tokens of attention.

    The list is empty if no explainer of the config needs them, because networks are built for it, with random weights.
    """
    kinds = [EXPLAINERS[entry.kind] for entry in plan.explainers.values() if entry.kind in EXPLAINERS]
    if not any(entry.needs or entry.applies_to & {"attention", "windows", "plain_vit"} for entry in kinds):
        return []
    pairs = [(model, plan.channels_of(dataset, model), plan.size_of(dataset, model)) for dataset, model in plan.pairs()]
    shapes = [(model, (channels, *size)) for model, channels, size in pairs if size is not None]
    return [f"{model}: {_layout(plan, model, shape)}." for model, shape in sorted(set(shapes), key=str)]


def _layout(plan: Plan, model: str, shape: tuple[int, ...]) -> str:
    from heatproof.explainers._network_traits import inspect_network
    from heatproof.models.network import build_network

    facts = plan.models[model].facts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            network = build_network(plan.model_spec(model), num_classes=2).eval().requires_grad_(False)
            for parameter in network.parameters():
                # With a head of zeros, the logits would not depend on any layer.
                if parameter.ndim == 2 and not parameter.any():
                    torch.nn.init.normal_(parameter)
            return str(inspect_network(network, torch.randn(2, *shape), facts.cam_layer))
        except Exception as error:
            # A user's network, such as one for images with one channel, can raise any exception.
            return f"not inspected ({type(error).__name__}: {' '.join(str(error).split())[:100]})"


def check_machine(plan: Plan, libraries: bool = True, here: bool = True) -> Trial:
    """Check that libraries, checkpoints and layers that a config needs exist, and run a trial of user code.

    Parameters
    ----------
    plan
        The plan.
    libraries
        Whether jobs use the libraries of this process; otherwise libraries are not checked, and there is no trial.
    here
        Whether jobs run on this machine.

    Returns
    -------
    Trial
        What the trial of user code shows; nothing if there is none.

    Raises
    ------
    HeatproofError
        If a library, a checkpoint or a layer that the user names does not exist.
    """
    if libraries:
        _require_libraries(plan)
    _check_checkpoints(plan)
    _check_layers(plan)
    _check_channels(plan)
    trial = run_trial(plan, here) if libraries else Trial()
    # After the trial, whose errors say more.
    for pair in plan.pairs():
        require_size(plan, *pair)
    return trial


def _require_libraries(plan: Plan) -> None:
    for entry in plan.explainers.values():
        if entry.kind in EXPLAINERS:
            require_library(EXPLAINERS[entry.kind])
    several = [where for where in plan.trainings() if plan.training_devices(*where) > 1]
    if several and find_spec("lightning_fabric") is None:
        model, weights = several[0]
        raise HeatproofError(
            f"The {weights} weights of {model!r} are trained on several devices, which needs lightning-fabric, and "
            'that is not installed: pip install "heatproof[multi-gpu]", or set devices to 1.'
        )


def _check_checkpoints(plan: Plan) -> None:
    """Raise an error if the file or the package of a checkpoint does not exist."""
    for model, entry in plan.models.items():
        if entry.checkpoint and is_packaged(entry.checkpoint):
            find_packaged(entry.checkpoint)
        for path in plan.checkpoint_file(model):
            if not Path(path).is_file():
                raise HeatproofError(
                    f"The checkpoint {path} of model {model!r} does not exist: give a path relative to "
                    f"{Path.cwd()}, where the workflow runs."
                )


def _check_layers(plan: Plan) -> None:
    """Raise an error if a network does not have the layer for CAMs that the user names.

    Networks are built only if an explainer reads the layer, or networks are compared, which reads its channels.
    """
    cams = any("cam_layer" in entry.needs for entry in plan.explainers.values())
    if not cams and not plan.config["report"]["all_metrics"]:
        return
    for model in plan.models.values():
        if model.facts.cam_layer is not None and not _is_known(model):
            from heatproof.core.layers import find_layer
            from heatproof.models.network import build_without_weights

            network = build_without_weights(plan.model_spec(model.name), num_classes=2)
            find_layer(network, model.facts.cam_layer, f"model {model.name!r}")


def _check_channels(plan: Plan) -> None:
    """Raise an error if no network has a channel that `similarity.channels` names.

    Networks are built on the meta device, without weights, and get images without values. A network that fails on them
    is not checked further.
    """
    named = plan.config["similarity"]["channels"]
    if not named:
        return

    from heatproof.core.perturb.channels import channel_counts
    from heatproof.models.network import build_without_weights

    layers, has, names = plan.channels.settings["layers"], dict[str, int](), set[str]()
    for dataset, model in plan.pairs():
        network = build_without_weights(plan.model_spec(model), num_classes=2).eval()
        names |= {name for name, _ in network.named_modules(remove_duplicate=False) if name}
        # If the size is not known, any common one will do.
        height, width = plan.size_of(dataset, model) or (64, 64)
        device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
        images = torch.zeros(2, plan.channels_of(dataset, model), height, width, device=device)
        for layer, count in channel_counts(network, images, layers).items():
            has[layer] = max(has.get(layer, -1), count)
    for entry in named:
        layer, channel = layer_and_channel(entry)
        if layer not in names:
            raise HeatproofError(
                f"similarity.channels names {entry!r}, a layer that no model has: {suggest_name(layer, names)}"
            )
        if layer in has and (count := has[layer]) <= (channel or 0):
            what = f"no more than {count} channels on a grid" if count else "no channels on a grid, once in a pass,"
            raise HeatproofError(
                f"similarity.channels names {entry!r}, and the layer has {what} in any model: "
                + (f"take a number from 0 to {count - 1}." if count else "name a convolution or what follows one.")
            )


def _is_known(model: ModelChoice) -> bool:
    """Return whether a model's layer for CAMs is that of its architecture, or contains it, so that it must exist."""
    entry = ARCHITECTURES.get(model.architecture)
    cam_layer = entry.facts_for(model.options, model.stated).cam_layer if entry else None
    return cam_layer is not None and f"{cam_layer}.".startswith(f"{model.facts.cam_layer}.")
