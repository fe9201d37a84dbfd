"""Small versions of the papers' configs: every file of docs/papers.md, on tiny networks and rendered images.

    python benchmarks/papers_small.py [CONFIG ...] --out FOLDER

CONFIGS are those of one command of the page, such as `paper paper_mas`; without them, all combinations of the page run
one after another. Each config keeps its datasets and networks by name, its explainers, metrics, drops, weights and all
other keys. Data are rendered creatures (`parts`) in place of those that have a `root`; networks are tiny ones of the
same families, trained here for a few steps; there are few images; options that only cost passes, such as the steps of a
path, are lowered. FOLDER keeps the results of each combination, in a folder that is named as on the page, and the table
of all files, which is stored when each combination ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from _shared import make_parser

from heatproof.core.registry import options_of
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.config.files import read_config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from blocks.papers import Row, folder, papers  # noqa: E402 - where the line above says

CREATURES = {"dataset": "parts", "classes": 4, "train_images": 256, "validation_images": 64, "evaluation_images": 128}
IMAGES = 8
# Architecture, and the name of the network in its package, to the stand-in and its options; the first that matches.
STAND_INS: list[tuple[str, str, dict[str, Any]]] = [
    (r"bcos_model .*", "cifar_bcos_resnet20", {"width": 4}),
    (r".* wide_resnet\d+.*", "cifar_resnet32", {"width": 8}),
    (r".* resnet18", "cifar_resnet20", {"width": 4}),
    (r".* resnet50", "cifar_resnet32", {"width": 4}),
    (r".* resnet101", "cifar_resnet44", {"width": 4}),
    (r".* resnet152", "cifar_resnet56", {"width": 4}),
    (r".* (vgg\d+(?:_bn)?)", r"cifar_\1", {"width": 4}),
    (r".* vit_.*", "small_vit", {"dim": 16, "depth": 2, "heads": 2, "patch": 8}),
    (r".* efficientnet_.*", "timm_model", {"name": "test_efficientnet"}),
    (r".* densenet\d+", "_stand_ins:densenet", {}),
    (r".* inception_v\d", "_stand_ins:inception", {}),
    (r"bagnet33 ", "cifar_bagnet", {"width": 4}),
    (r"resnet50_(\w+) ", r"cifar_resnet20_\1", {"width": 4}),
    (r"vgg16_nobias ", "cifar_vgg11_nobias", {"width": 4}),
    (r"(cifar_\w+) ", r"\1", {"width": 4}),
]
# Layers of a config to those of the stand-ins, and the numbers of channels of these.
LAYERS = {"layer4.2.conv3": ("stages.14.conv2", 16), "features.28": ("features.28", 32)}
# Options that multiply the passes of an explainer, and their lower values.
COSTLY = {"steps": 16, "prior_steps": 2, "layer_steps": 2, "samples": 2, "masks": 8, "topk": 2}
# Keys of a network for published weights and for its training at full size.
DROPPED = ("checkpoint", "sha256", "transfer", "options", "pretraining")
EPOCHS, BATCH = 8, 32
# With these rates a tiny network learns in few steps; with the rates of large networks it would not.
QUICK = {"optimizer": "adamw", "lr": 0.003, "random_resized_crop": 0.0}


def named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of an entry of a list of a config."""
    return (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))


def small_dataset(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return rendered creatures in place of data that lie in a folder."""
    return {name: dict(CREATURES) if "root" in settings else settings}


def small_model(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a tiny network of the same family, without published weights."""
    description = f"{settings.get('architecture', name)} {settings.get('options', {}).get('name', '')}"
    fitting = (stand_in for stand_in in STAND_INS if re.fullmatch(stand_in[0], description))
    pattern, stand_in, options = next(fitting, (None, "", {}))
    if pattern is None:
        raise SystemExit(f"There is no stand-in for the network {description}: enter one in STAND_INS of {__file__}.")
    remaining = {key: value for key, value in settings.items() if key not in DROPPED}
    trained = {"finetuning": small_training(settings["finetuning"])} if "finetuning" in settings else {}
    inherited_options = settings.get("options", {}) if stand_in == r"\1" else {}
    architecture = re.sub(f"^(?:{pattern})$", stand_in, description)
    return {name: {**remaining, "architecture": architecture, "options": {**inherited_options, **options}, **trained}}


def small_training(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a few epochs, and the saved epochs at the same shares of the training."""
    lowered = {
        key: min(most, settings[key]) for key, most in (("epochs", EPOCHS), ("batch_size", BATCH)) if key in settings
    }
    if settings.get("keep"):
        lowered["keep"] = sorted({max(1, epoch * EPOCHS // settings["epochs"]) for epoch in settings["keep"]})
    return {**settings, **lowered}


def small_explainer(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return an explainer with fewer passes."""
    accepted = options_of(EXPLAINERS[settings.get("explainer", name)].function)
    return {name: {**settings, **{key: most for key, most in COSTLY.items() if key in accepted}}}


def small_metric(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a metric that recomputes maps in fewer steps."""
    return {name: {**settings, "steps": 4} if settings.get("update") else settings}


def small_channel(name: str) -> str:
    """Return a channel of a stand-in for one of a config."""
    layer, _, number = name.rpartition(":")
    stand_in, channels = LAYERS[layer]
    return f"{stand_in}:{int(number) % channels}"


def shrunk(configs: tuple[str, ...], networks: int | None = None, images: int = IMAGES) -> dict[str, Any]:
    """Return a small config from the configs of a command.

    Parameters
    ----------
    configs
        Names of files in config/, each of which overrides those before it.
    networks
        Largest number of networks, spread over the list from its first on; None keeps all.
    images
        Number of explained images, a third of the number for accuracies.
    """
    config = read_config(*(ROOT / f"config/{name}.yaml" for name in configs))
    small = {"datasets": small_dataset, "models": small_model, "explainers": small_explainer, "metrics": small_metric}
    for key, lowered in small.items():
        config[key] = [lowered(*named(entry)) for entry in config[key]]
    config["models"] = config["models"][:: -(-len(config["models"]) // networks) if networks else 1]
    there = {name for name, settings in map(named, config["models"]) for name in settings.get("datasets", ())}
    if there:
        config["datasets"] = [entry for entry in config["datasets"] if named(entry)[0] in there]
    if channels := config.get("similarity", {}).get("channels"):
        config["similarity"]["channels"] = list(map(small_channel, channels))
    config["pretraining"] = small_training(config["pretraining"]) | QUICK
    config["finetuning"] = small_training(config["finetuning"])
    config["evaluation"] |= {"images": images, "accuracy_images": 3 * images}
    return config


def build_file(target: str, root: Path, cores: int) -> tuple[bool, float]:
    """Build a file in a folder with a config.yaml; return whether it exists, and the seconds that it took."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(root)]
    command += ["--configfile", str(root / "config.yaml"), "--cores", str(cores), "--", target]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    (root / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    there = done.returncode == 0 and (root / target).is_file()
    if not there:
        print(done.stdout[-1500:] + done.stderr[-1500:], flush=True)
    return there, time.monotonic() - began


def combinations() -> dict[tuple[str, ...], list[str]]:
    """Return the files of the page that each combination of configs builds."""
    targets: dict[tuple[str, ...], list[str]] = {}
    rows: list[Row] = [row for of_paper in papers().values() for row in of_paper]
    for row in rows:
        if row.configs and row.target not in targets.setdefault(row.configs, []):
            targets[row.configs].append(row.target)
    return targets


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("configs", nargs="*", help="those of one command of the page; all of the page's without")
    options.add_argument("--networks", type=int, help="at most so many of a config, spread over its list")
    options.add_argument("--cores", type=int, default=2)
    args = options.parse_args()
    targets_of_configs = combinations()
    requested = [tuple(args.configs)] if args.configs else list(targets_of_configs)
    if requested[0] not in targets_of_configs:
        listed = "\n".join(" ".join(configs) for configs in targets_of_configs)
        raise SystemExit(f"The page has no command of these configs; it has those of\n{listed}")
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        for configs in requested:
            path = out / folder(configs)
            path.mkdir(parents=True, exist_ok=True)
            config = shrunk(configs, 2, 4) if args.small else shrunk(configs, args.networks)
            (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
            facts = {"configs": "+".join(configs), "networks": len(config["models"])}
            facts["images"] = config["evaluation"]["images"]
            rows = []
            for target in targets_of_configs[configs]:
                there, seconds = build_file(target, path, args.cores)
                rows.append({**facts, "file": target, "made": there, "seconds": seconds})
                print(f"{'made' if there else 'NOT MADE':9}{seconds:7.1f} s  {' '.join(configs)}: {target}", flush=True)
            table = stored(rows, out / "papers_small.csv", list(targets_of_configs))
        if args.out:
            print(f"{args.out} has the files, and papers_small.csv, the table of them.")
        if not table.loc[table["configs"].isin(map("+".join, requested)), "made"].all():
            raise SystemExit(1)


def stored(rows: list[dict[str, Any]], path: Path, order: list[tuple[str, ...]]) -> pd.DataFrame:
    """Store the rows of a combination in the table, in place of those of an earlier run; return the table."""
    table = pd.DataFrame(rows)
    if path.exists():
        earlier = pd.read_csv(path)
        table = pd.concat([earlier[earlier["configs"] != rows[0]["configs"]], table])
    number_of_configs = {"+".join(configs): number for number, configs in enumerate(order)}
    table = table[table["configs"].isin(number_of_configs)]
    table = table.sort_values("configs", key=lambda names: names.map(number_of_configs), kind="stable")
    table.to_csv(path, index=False, float_format="%.4g")
    return table


if __name__ == "__main__":
    main()
