"""A spec as one argument of a command: JSON, packed where that would be too long for the system."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

# Linux takes 131,072 bytes in one argument, and the shell's whole command is one.
LONGEST = 100_000
PACKED = "zlib:"


def to_argument(spec: Mapping[str, Any]) -> str:
    """Return a spec as text without line breaks; the same spec gives the same text."""
    text = json.dumps(spec, sort_keys=True)
    if len(text) <= LONGEST:
        return text
    return PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def of_argument(text: str) -> Any:
    """Return the spec that `to_argument` made the text of."""
    if text.startswith(PACKED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(PACKED))).decode()
    return json.loads(text)
