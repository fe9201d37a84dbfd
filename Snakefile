# The table of contents: what is made, and by which rules.
import os
import re

from snakemake.logging import logger
from snakemake.utils import min_version

from heatproof.config import default_config, merge
from heatproof.terminal import leave_out_configs

min_version("9.13")
leave_out_configs(logger)


# With --directory there may be none there, and the defaults would go unread without a word.
DEFAULTS = "config/config.yaml"
if not os.path.exists(DEFAULTS):
    DEFAULTS = os.path.join(workflow.basedir, DEFAULTS)


configfile: DEFAULTS


# In a module of another workflow, whose config it gets.
if workflow.modifier.skip_configfile:
    config = merge(default_config(), config)


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
    grid=r"\d+",
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
        lambda wildcards: reports.targets(plan),


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


onsuccess:
    say_what_came_out()


onerror:
    say_why()
