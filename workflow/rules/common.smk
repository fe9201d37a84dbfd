# Everything that is not a rule. The job graph (heatproof.plan.graph) owns names, paths and what each job is told.
import os
import sys
from functools import cache

from snakemake.io import report as in_report
from snakemake.logging import logger
from snakemake.settings.types import RerunTrigger
from snakemake.sourcecache import LocalSourceFile

# `workflow` is Snakemake's own object.
from heatproof.workflow import last_run
from heatproof.workflow import start as ours
from heatproof.errors import HeatproofError, fault_of
from heatproof.plan import paths
from heatproof.plan.graph import benchmark_of
from heatproof.plan.stage import STAGES
from heatproof.files.publishing import escaped
from heatproof.workflow.terminal import say_what_came_out, speak

NAME = r"[\w.-]+"
ENVIRONMENT = "../../envs/heatproof.yaml"

try:
    ours.listen(workflow.is_main_process)
    ours.keep_from_the_folder(workflow.deployment_settings)
    deployment = workflow.deployment_settings.deployment_method
    is_main, is_local = workflow.is_main_process, workflow.local_exec
    graph = ours.check_before_start(config, is_main, deployment, is_local)
    plan, results = graph.plan, graph.plan.results
    if is_main:
        speak(logger, graph)
        # `workflow.dryrun` is false until Snakemake has an executor, which it has not while this is read.
        ours.begin(graph, results.root, workflow.output_settings.dryrun)
except Exception as error:
    # What the machine lacks is said in one sentence too.
    said = str(error) if isinstance(error, HeatproofError) else fault_of(error)
    if said is None:
        raise
    sys.exit(escaped(f"heatproof: {said}"))

# What jobs need beside their specs, and what reruns none of them.
os.environ.update(ours.job_environment(plan, workflow.basedir, deployment))
THREADS = ours.job_threads(plan, workflow.resource_settings.cores, is_local)

# One job makes a shard of all explainers' maps together, or each explainer has a job apart (config).
APART = plan.config["attribution_jobs"] == "apart"
# Snakemake's report reads captions from files. A workflow that stands elsewhere has none.
CAPTIONS = (
    ours.captions_folder()
    if is_main and isinstance(workflow.current_basedir, LocalSourceFile)
    else None
)
WHO, WHOSE = (["explainer"], "{explainer}") if APART else ([], "all")
NETWORK = ["dataset", "model", "weights"]


@cache
def record_run():
    last_run.record_run(
        config, ours.named_configs(workflow.config_settings), results.root
    )


def set_up_snakemake():
    # Manifests tell what is stale, and file times tell Snakemake (heatproof.workflow.reconcile), not what it remembers of jobs.
    workflow.dag_settings.rerun_triggers = frozenset({RerunTrigger.MTIME})
    workflow.dag.max_checksum_file_size = -1
    # With a limit, every finished job leaves a timer that has all ready jobs looked at once a second until the end.
    # What runs at once is limited by cores and jobs. Snakemake's own report schedules nothing.
    if workflow.scheduling_settings:
        workflow.scheduling_settings.max_jobs_per_timespan = None
    # Not where the Snakefile is only read, as by --lint and --list, which have no executor.
    if is_main and workflow.executor_plugin and not workflow.dryrun:
        record_run()


def reads(stage):
    def inputs(wildcards):
        set_up_snakemake()
        return ours.one_a_job(graph.job(stage, dict(wildcards)).inputs, apart=APART)

    return inputs


def leaves(stage):
    # What a stage says that it leaves, with its captions.
    return ours.outputs_of(graph, stage, in_report, update, CAPTIONS)


def says(stage):
    return STAGES[stage].message


def measured(stage, *wildcards):
    # Where Snakemake writes time and memory of a job.
    return benchmark_of(stage, [f"{{{name}}}" for name in wildcards])


def told(wildcards, output):
    # The job of these outputs, which `reads` has looked up before.
    job = graph.makers[output[0]]
    return ours.spec_file(graph, job, results.root, not workflow.dryrun)


def grows(amount):
    # More of it when a job is tried again.
    return lambda w, attempt: amount * attempt


def training_gpus(w):
    return plan.training_devices(w.model, w.get("weights", paths.PRETRAINED))


def say_why():
    if reason := ours.why_it_failed(results.root):
        print(escaped(f"heatproof: {reason}"), file=sys.stderr)
