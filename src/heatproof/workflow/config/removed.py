"""Keys that a config could once have: they are ignored, and a sentence says so."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

# Path of each key to what `heatproof check` and the start of a run say about it.
REMOVED_KEYS = {
    "precision_guard": "precision_guard went in heatproof 0.3.0 and is ignored: docs/devices.md has the effect of a "
    "lower precision.",
}


def without_removed_keys(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of a config without the keys that went, and a sentence for each key that it had."""
    remaining, sentences = copy.deepcopy(dict(config)), []
    for path, sentence in REMOVED_KEYS.items():
        *sections, key = path.split(".")
        section: Any = remaining
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict) and key in section:
            del section[key]
            sentences.append(sentence)
    return remaining, sentences
