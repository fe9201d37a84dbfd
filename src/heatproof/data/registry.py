"""Former name of `heatproof.core.dataset` and `heatproof.datasets.registry`."""

from heatproof.core.dataset import Dataset as Dataset
from heatproof.core.dataset import HasParts as HasParts
from heatproof.core.dataset import NamesFiles as NamesFiles
from heatproof.core.dataset import Split as Split
from heatproof.datasets.registry import DATASETS as DATASETS
from heatproof.datasets.registry import dataset as dataset
