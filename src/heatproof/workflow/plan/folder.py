"""The results folder as a value, with the paths of all files that more than one stage reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.core.methods import NO_MODEL

_NETWORK = "{dataset}/{model}/{weights}"


@dataclass(frozen=True)
class Folder:
    """A results folder. Its properties are patterns of paths, with the wildcards of the rules.

    Attributes
    ----------
    root
        Path of the folder.
    """

    root: str = "results"

    def file(self, name: str) -> str:
        """Return the path of a file from its path in the folder, which may contain wildcards."""
        return f"{self.root}/{name}"

    @property
    def dataset(self) -> str:
        """Manifest of a dataset."""
        return self.file("datasets/{dataset}.json")

    @property
    def weights(self) -> str:
        """Weights of a network."""
        return self.file(f"weights/{_NETWORK}.safetensors")

    @property
    def weights_manifest(self) -> str:
        """Manifest of the weights of a network."""
        return self.file(f"weights/{_NETWORK}.json")

    @property
    def maps(self) -> str:
        """Store of an explainer's maps, without ``.zarr``."""
        return self.file(f"maps/{_NETWORK}/{{explainer}}")

    @property
    def reference_maps(self) -> str:
        """Store of the maps of an explainer that does not use the model, without ``.zarr``."""
        return self.file(f"maps/{{dataset}}/{NO_MODEL}/{NO_MODEL}/{{explainer}}")

    def store(self, rule: str) -> str:
        """Return the store of the responses of a rule, without ``.zarr``.

        Parameters
        ----------
        rule
            ``drops``, ``features``, ``curves``, ``subsets``, ``parts`` or ``channels``.
        """
        return self.file(f"{rule}/{_NETWORK}{STORED[rule]}")

    def on_grids(self, rule: str) -> str:
        """Return the store of ``drops`` or ``features`` for a grid and a baseline, without ``.zarr``."""
        return self.store(rule).replace("{response}", "g{grid}_{baseline}")

    @property
    def drops(self) -> str:
        """Store of patch drops for a grid and a baseline, without ``.zarr``."""
        return self.on_grids("drops")

    @property
    def scores(self) -> str:
        """Scores of a test case."""
        return self.file(f"scores/{_NETWORK}/{{metric}}.parquet")

    @property
    def scores_manifest(self) -> str:
        """Manifest of the scores of a test case."""
        return self.file(f"scores/{_NETWORK}/{{metric}}.json")


# Rule to the part of the path of its stores after the network.
STORED = {"drops": "/{response}", "features": "/{response}", "curves": "/{explainer}/{response}"}
STORED |= {"subsets": "/{response}", "parts": "", "channels": ""}
