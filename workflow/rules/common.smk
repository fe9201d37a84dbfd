# Everything that is not a rule. The plan (heatproof.plan) owns names, paths and what each job is told.
import os
import sys

from heatproof.plan import belief, checks, claims, figures, page, paths
from heatproof.plan import overview as pictures
from heatproof.plan import similarity as alike
from heatproof.argument import to_argument
from heatproof.errors import HeatproofError
from heatproof.manifest import damages
from heatproof.workflow import (
    check_before_start,
    check_writable,
    hold_folder,
    job_environment,
    job_threads,
    stage,
    why_it_failed,
)

NAME = r"[\w.-]+"
ENVIRONMENT = "../../envs/heatproof.yaml"

try:
    plan = check_before_start(
        config,
        is_main=workflow.is_main_process,
        deployment=workflow.deployment_settings.deployment_method,
    )
    if workflow.is_main_process and not workflow.dryrun:
        hold_folder(".snakemake")
        check_writable(paths.RESULTS)
        # Snakemake takes a table that is there for whole, and no job may read it.
        for sentence in damages([*plan.tables(), paths.SCORES_TABLE]):
            print(f"heatproof: {sentence}", file=sys.stderr)
except HeatproofError as error:
    sys.exit(f"heatproof: {error}")

# What jobs need beside their specs, and what reruns none of them: see heatproof.workflow.stage.
os.environ.update(
    job_environment(
        plan, workflow.basedir, workflow.deployment_settings.deployment_method
    )
)
THREADS = job_threads(plan, workflow.resource_settings.cores, workflow.local_exec)


def updates(files):
    # Kept when the job starts: a shard is added to, and what is whole is not made again.
    return [update(file) for file in files]


def spec(value):
    return to_argument(value)


def say_where():
    if os.path.exists(paths.IDSDS_TABLE):
        print(
            f"The table is {paths.IDSDS_TABLE}; beside it meta_rank.csv, accuracy.csv and applicability.csv.",
            file=sys.stderr,
        )
    if os.path.exists(page.PAGE):
        print(f"The page to look at is {page.PAGE}.", file=sys.stderr)


def say_why():
    reason = why_it_failed(paths.RESULTS)
    if reason:
        print(f"heatproof: {reason}", file=sys.stderr)


# One job makes a shard of all explainers' maps together, or each explainer has a job apart (config).
APART = plan.config["attribution_jobs"] == "apart"
WHOSE = "{explainer}" if APART else "all"


def map_outputs(pattern, explainers):
    if APART:
        return updates(
            paths.map_files(paths.at(pattern, explainer=explainers), "{shard}")
        )
    return [
        f
        for name in explainers
        for f in updates(paths.map_files(paths.at(pattern, explainer=name), "{shard}"))
    ]


def curve_outputs(explainers):
    # With a wildcard for the explainer where jobs are apart, else every explainer by name.
    pattern = paths.at(paths.CURVES, response=list(plan.method_responses))
    return [
        f
        for name in ([explainers] if APART else explainers)
        for f in updates(
            paths.curve_files(paths.at(pattern, explainer=name), "{shard}")
        )
    ]


def attribute_spec(wildcards, explainers):
    w = {"model": None, "weights": None, **dict(wildcards)}
    chosen = [w["explainer"]] if APART else explainers
    return spec(
        plan.attribute_spec(
            w["dataset"], w["model"], w["weights"], chosen, int(w["shard"])
        )
    )
