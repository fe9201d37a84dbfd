"""Stage `claims`: judge every registered claim on published numbers and on the scores of a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heatproof.claims.card import claims_table
from heatproof.claims.evidence import Case, Evidence, Method, Model, Resampling
from heatproof.claims.published_orders import published_orders
from heatproof.files.tables import parse_csv
from heatproof.files.writing import write_table
from heatproof.report.results import read_scores
from heatproof.stores.manifest import publish_tables, verified_bytes

if TYPE_CHECKING:
    from heatproof.stages.claims import Claims


log = logging.getLogger(__name__)


def claims(told: Claims) -> None:
    """Write the verdict on each claim for the scores of a run and for published numbers, and the orders of both."""
    files, scores = read_scores(told.results.scores, told.cases)
    facts, pixels = told.metrics, told.pixels
    cases = [
        Case(
            *cell,
            **vars(facts[cell[3]]),
            saved_epoch_of=told.kept_epochs.get(cell[2], ""),
            explains=told.explains,
            pixels=pixels[cell[0]][cell[1]],
        )
        for cell in told.cases
    ]
    evidence = Evidence(
        scores,
        cases,
        [Method(one.name, one.kind, one.map, one.transform, one.uses_model) for one in told.methods],
        {name: Model(name, **vars(model)) for name, model in told.models.items()},
        parse_csv(verified_bytes(told.accuracy, listed=False), text=False),
        draws=Resampling(told.seed, told.bootstrap),
    )
    table = claims_table(evidence, told.level)
    log.info("%s", table["verdict"].value_counts().to_dict())
    made = dict(zip(told.files.values(), (table, *published_orders(evidence, told.level)), strict=True))
    for path, one in made.items():
        write_table(one, path)
    publish_tables(told, made, [*files, told.accuracy])
