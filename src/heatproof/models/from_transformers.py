"""Registered architecture for image classifiers of transformers, from a local folder."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from heatproof.core.input_facts import InputFacts
from heatproof.errors import HeatproofError, first_line, is_out_of_memory
from heatproof.models.registry import Design, architecture
from heatproof.store.reading import open_regular, parse_json

CONFIG, PROCESSOR, INDEX = "config.json", "preprocessor_config.json", ".index.json"
# A config with the names of 21,841 classes has 2 MB, and so has an index of a thousand files.
MOST_BYTES = 2**26
LARGEST_SIDE, MOST_CHANNELS = 2**16, 2**10


def transformers_facts(*, name: str, stated: Collection[str] = ()) -> InputFacts:
    """Return the input format of a network, read from the image processor in its folder.

    Parameters
    ----------
    name
        Path of the folder.
    stated
        Names of facts that the config sets; with mean and std among them, the folder needs no image processor.

    Returns
    -------
    InputFacts
        Normalisation and size; no layer for CAMs.

    Raises
    ------
    HeatproofError
        If the folder has no config, or no image processor with the normalisation of images.
    """
    config, defaults = read_json_file(name, CONFIG), InputFacts()
    mean, std = (defaults.mean, defaults.std) if {"mean", "std"} <= set(stated) else _normalisation(name)
    sides = config.get("image_size")
    if not sides:
        return InputFacts(mean, std, None)
    size = sides if isinstance(sides, list) else [sides, sides]
    if len(size) != 2 or not all(map(is_valid_side, size)):
        raise _unusable(name, CONFIG, "image_size")
    return InputFacts(mean, std, (size[0], size[1]))


def _normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation from the image processor in a folder."""
    if not has_file(name, PROCESSOR):
        raise HeatproofError(
            f"The model transformers:{name} has no {PROCESSOR}: save the model's image processor in the folder, or "
            "give mean and std in the model's settings."
        )
    processor = read_json_file(name, PROCESSOR)
    if "image_mean" not in processor or "image_std" not in processor:
        raise HeatproofError(
            f"The {PROCESSOR} in {name} has no image_mean and image_std: save the model's image processor there, or "
            "give mean and std in the model's settings."
        )
    mean, std = (_numbers(name, processor, key) for key in ("image_mean", "image_std"))
    if len(mean) != len(std) or min(std) <= 0:
        raise _unusable(name, PROCESSOR, "image_mean and image_std")
    return mean, std


def has_file(name: str, file: str) -> bool:
    """Return whether the folder of a model contains a file."""
    return os.path.lexists(Path(name).expanduser() / file)


def is_valid_side(value: Any) -> bool:
    """Return whether a value is a valid number of pixels along a side."""
    return type(value) is int and 0 < value <= LARGEST_SIDE


def _numbers(name: str, processor: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = processor[key]
    fits = isinstance(values, list) and 0 < len(values) <= MOST_CHANNELS
    if not fits or not all(
        type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e6 for value in values
    ):
        raise _unusable(name, PROCESSOR, key)
    return tuple(values)


def _unusable(name: str, file: str, key: str) -> HeatproofError:
    return HeatproofError(
        f"The {file} in {name} has an invalid {key}: save the model and its image processor there again."
    )


def _design(*, name: str) -> Design:
    return Design(str(read_json_file(name, CONFIG).get("model_type", "transformers"))[:100])


def read_json_file(name: str, file: str) -> dict[str, Any]:
    """Return the content of a JSON file in the folder of a model.

    Raises
    ------
    HeatproofError
        If it is not a regular file, is too long, or is not a JSON object.
    """
    try:
        with open_regular(Path(name).expanduser() / file) as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        content = parse_json(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
        return content
    except (OSError, ValueError, HeatproofError) as error:
        raise HeatproofError(
            f"The model transformers:{name} has no {file} that can be read ({first_line(error)}): give a folder that "
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
    # Checks the file before transformers opens it.
    read_json_file(name, CONFIG)
    try:
        # trust_remote_code=False: code in the folder is not run.
        config = AutoConfig.from_pretrained(Path(name).expanduser(), local_files_only=True, trust_remote_code=False)
        config.num_labels = num_classes
        return AutoModelForImageClassification.from_config(config)
    except Exception as error:  # values that fit no network can raise any exception
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(f"The model transformers:{name} is not an image classifier ({reason}).") from None


def read_weights(path: Path, name: str, most: int | None = None) -> dict[str, Any]:
    """Return the weights of a folder with the names of this version of transformers, which differ from those in files.

    Raises
    ------
    HeatproofError
        If the file is not in the folder of the model, is damaged, or has names that transformers does not know.
    """
    from transformers import AutoConfig, AutoModelForImageClassification

    if path.parent.resolve() != Path(name).expanduser().resolve():
        raise HeatproofError(
            f"The checkpoint {path} is not in the folder of the model transformers:{name}: name the weights in it, "
            f"such as {name}/model.safetensors, and with several files their model.safetensors{INDEX}."
        )
    # transformers would unpickle files that are not safetensors.
    state = _read_parts(path, most)
    try:
        config = AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
        kind: Any = AutoModelForImageClassification._model_mapping[type(config)]
        inner = kind.from_pretrained(None, config=config, state_dict=state)
    except Exception as error:  # transformers and its dependencies can raise any exception
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(f"The weights {path} cannot be read by transformers ({reason}).") from None
    return dict(inner.state_dict())


def _read_parts(path: Path, most: int | None) -> dict[str, Any]:
    """Return the tensors of a file, or of all files that an index in the same folder lists."""
    from heatproof.models.weights_file import read_state

    if not path.name.endswith(INDEX):
        return read_state(path, str(path), most)
    weight_map = read_json_file(str(path.parent), path.name).get("weight_map")
    files = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    if not files or any(Path(file).name != file for file in files):
        raise HeatproofError(f"The index {path} does not name files beside it: save the model there again.")
    state: dict[str, Any] = {}
    for file in sorted(files):
        state |= read_state(path.parent / file, str(path.parent / file), most)
    return state
