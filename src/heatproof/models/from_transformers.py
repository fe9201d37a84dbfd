"""Registered architecture for image classifiers of transformers, from a local folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.models.registry import Design, InputFacts, architecture

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"


def transformers_facts(*, name: str) -> InputFacts:
    """Return what a network expects of its input, as the folder's image processor says.

    Raises
    ------
    HeatproofError
        If the folder has no config, or no image processor that says how images are normalised.
    """
    config, processor = (_read(name, file) for file in (CONFIG, PROCESSOR))
    if "image_mean" not in processor or "image_std" not in processor:
        raise HeatproofError(
            f"The {PROCESSOR} in {name} says no image_mean and image_std: save the model's image processor there."
        )
    sides = config.get("image_size")
    size = (sides, sides) if isinstance(sides, int) else tuple(sides) if sides else None
    return InputFacts(tuple(processor["image_mean"]), tuple(processor["image_std"]), size)


def _design(*, name: str) -> Design:
    return Design(_read(name, CONFIG).get("model_type", "transformers"))


def _read(name: str, file: str) -> dict[str, Any]:
    path = Path(name).expanduser() / file
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeatproofError(
            f"The model transformers:{name} has no {file} that can be read ({error}): give a folder that "
            "`save_pretrained` of the model and of its image processor wrote; nothing is downloaded."
        ) from None


@architecture("transformers_model", transformers_facts, _design)
def transformers_model(num_classes: int, *, name: str) -> Any:
    """Image classifier of transformers, from a folder with its config; the checkpoint is the file of weights in it."""
    try:
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError:
        raise HeatproofError(
            "The architecture transformers_model needs transformers: pip install 'heatproof[transformers]'."
        ) from None
    try:
        # Code in the folder is not run.
        config = AutoConfig.from_pretrained(Path(name).expanduser(), local_files_only=True, trust_remote_code=False)
        config.num_labels = num_classes
        return AutoModelForImageClassification.from_config(config)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(f"The model transformers:{name} is no image classifier ({reason}).") from None


def read_weights(path: Path, name: str) -> dict[str, Any]:
    """Return the weights of a folder under the names of this version of transformers, which differ from those in files.

    Raises
    ------
    HeatproofError
        If the file is not in the folder of the model, or transformers cannot read it.
    """
    from transformers import AutoModelForImageClassification

    if path.parent.resolve() != Path(name).expanduser().resolve():
        raise HeatproofError(
            f"The checkpoint {path} is not in the folder of the model transformers:{name}: name the weights in it, "
            f"such as {name}/model.safetensors, and with several files their model.safetensors.index.json."
        )
    safe = ".safetensors" in path.name
    try:
        inner = AutoModelForImageClassification.from_pretrained(
            path.parent, local_files_only=True, trust_remote_code=False, use_safetensors=safe, weights_only=True
        )
    except Exception as error:  # the library and those under it fail in any way
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(f"The weights {path} cannot be read by transformers ({reason}).") from None
    return dict(inner.state_dict())
