"""The results folder, as a value: where everything that more than one stage reads or writes is."""

from __future__ import annotations

from dataclasses import dataclass

# Stands for the model and for the weights in the path of maps that know no model.
NO_MODEL = "no_model"
_NETWORK = "{dataset}/{model}/{weights}"
# Folders that two results folders can have in common.
COMMON = ("datasets", "weights", "checkpoints")


@dataclass(frozen=True)
class Folder:
    """A results folder. Properties are patterns of paths with the wildcards of the rules.

    Attributes
    ----------
    root
        The folder.
    shared
        The results folder that datasets and weights are in, where that is another one; "" where they are in this one.
    """

    root: str = "results"
    shared: str = ""

    def file(self, name: str) -> str:
        """Return the path of a file by its name in the folder, in which wildcards stay."""
        common = self.shared and name.partition("/")[0] in COMMON
        return f"{self.shared if common else self.root}/{name}"

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
        """Store of an explainer's maps, without its ending."""
        return self.file(f"maps/{_NETWORK}/{{explainer}}")

    @property
    def reference_maps(self) -> str:
        """Store of the maps of an explainer that knows no model, without its ending."""
        return self.file(f"maps/{{dataset}}/{NO_MODEL}/{NO_MODEL}/{{explainer}}")

    def store(self, rule: str) -> str:
        """Return the store of the responses that a rule makes, without its ending.

        Parameters
        ----------
        rule
            ``drops``, ``features``, ``curves``, ``subsets``, ``parts`` or ``channels``.
        """
        return self.file(f"{rule}/{_NETWORK}{STORED[rule]}")

    def on_grids(self, rule: str) -> str:
        """Return the store of the responses of ``drops`` or ``features`` on a grid and baseline, without its ending."""
        return self.store(rule).replace("{response}", "g{grid}_{baseline}")

    @property
    def drops(self) -> str:
        """Store of patch drops on a grid and baseline, without its ending."""
        return self.on_grids("drops")

    @property
    def scores(self) -> str:
        """Scores of a test case."""
        return self.file(f"scores/{_NETWORK}/{{metric}}.parquet")

    @property
    def scores_manifest(self) -> str:
        """Manifest of the scores of a test case."""
        return self.file(f"scores/{_NETWORK}/{{metric}}.json")


# Rule to the end of the path of its stores, in the place of a network; patch drops and features have names too.
STORED = {"drops": "/{response}", "features": "/{response}", "curves": "/{explainer}/{response}"}
STORED |= {"subsets": "/{response}", "parts": "", "channels": ""}
