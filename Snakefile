# The table of contents: what is made, and by which rules.
import re
import sys

from snakemake.utils import min_version

from heatproof.config.files import read_snakemake_config
from heatproof.errors import HeatproofError
from heatproof.files.publishing import escaped

min_version("9.13")


# As all commands read it: over the default that stands beside this file, or comes with the package where this is a module
# of another workflow. A config/config.yaml of the working folder may be somebody else's, and a config names code.
try:
    config = read_snakemake_config(
        config,
        workflow.config_settings,
        None if workflow.modifier.skip_configfile else workflow.basedir,
    )
except HeatproofError as error:
    sys.exit(escaped(f"heatproof: {error}"))


include: "workflow/rules/common.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    dataset=NAME,
    model=NAME,
    weights=NAME,
    explainer=NAME,
    metric="|".join(map(re.escape, plan.metric_names())),
    response=NAME,
    figure=NAME,
    baseline="[a-z]+",
    grid=r"\d+(x\d+)?",
    shard=r"\d+",


localrules:
    all,
    prepare,
    fetch,
    fetch_start,
    keep_epoch,


rule all:
    default_target: True
    input:
        lambda wildcards: graph.targets(),


include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/drops.smk"
include: "workflow/rules/attribute.smk"
include: "workflow/rules/curves.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/similarity.smk"
include: "workflow/rules/in_domain.smk"
include: "workflow/rules/overview.smk"
include: "workflow/rules/checks.smk"
include: "workflow/rules/report.smk"


onstart:
    # Again: Snakemake's scheduler has put its own handlers of signals in their place.
    start.handle_signals(False)


onsuccess:
    print_results(plan.results)


onerror:
    print_failure()
