"""What is explained of an image, in words by which rows of maps and images find each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def explained_words(kind: str, columns: Sequence[Any], digests: Sequence[str] | None) -> list[str]:
    """Return what is explained in words, which are the same for the same alone."""
    if digests is not None:
        return [f"target {one}" for one in digests]
    called = {"multilabel": "label", "regression": "output"}.get(kind, "class")
    return [f"{called} {one}" for one in columns]
