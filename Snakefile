# Entry point of the workflow. The rules are in workflow/rules.
import re
import sys

from snakemake.utils import min_version

from heatproof.workflow.config.files import read_snakemake_config
from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped

min_version("9.13")


# The config is read as by all commands: merged into the default config next to this file, or into that of the package
# if this workflow is a module of another one. A config/config.yaml in the working folder is ignored, because it may
# come from somebody else, and a config can name code.
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
    # Again, because Snakemake's scheduler has installed its own signal handlers.
    start.handle_signals(False)


onsuccess:
    terminal.print_results(plan.results)


onerror:
    print_failure()
