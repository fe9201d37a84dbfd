"""Tables of the stage `claims`: verdicts on registered claims, and the orders of methods beside published ones."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heatproof.claims.evidence import Case, Evidence, Model, Resampling
from heatproof.claims.judge import claims_table
from heatproof.claims.published_orders import published_orders
from heatproof.core.methods import all_methods
from heatproof.store.manifest import publish_tables, verified_bytes
from heatproof.store.table_formats import parse_csv
from heatproof.store.writing import write_table
from heatproof.workflow.stages._results import read_scores

if TYPE_CHECKING:
    from heatproof.workflow.stages.claims import Claims

log = logging.getLogger(__name__)


def claims(spec: Claims) -> None:
    """Write the verdict on each claim on the scores of a run and on published numbers, and the orders of both."""
    files, scores = read_scores(spec.results.scores, spec.cases)
    facts, pixels = spec.metrics, spec.pixels
    cases = [
        Case(
            *cell,
            **vars(facts[cell[3]]),
            saved_epoch_of=spec.saved_epochs.get(cell[2], ""),
            explains=spec.explains,
            pixels=pixels[cell[0]][cell[1]],
        )
        for cell in spec.cases
    ]
    evidence = Evidence(
        scores,
        cases,
        all_methods(spec.explainers),
        {name: Model(name, **vars(model)) for name, model in spec.models.items()},
        parse_csv(verified_bytes(spec.accuracy, listed=False), text=False),
        draws=Resampling(spec.seed, spec.bootstrap),
    )
    table = claims_table(evidence, spec.level)
    log.info("%s", table["verdict"].value_counts().to_dict())
    contents = dict(zip(spec.files.values(), (table, *published_orders(evidence, spec.level)), strict=True))
    for path, content in contents.items():
        write_table(content, path)
    publish_tables(spec, contents, [*files, spec.accuracy])
