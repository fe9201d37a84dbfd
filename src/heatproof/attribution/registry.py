"""Former name of `heatproof.explainers.registry`."""

from heatproof.explainers.registry import EXPLAINERS as EXPLAINERS
from heatproof.explainers.registry import explainer as explainer
