# Everything that is not a rule. The job graph (heatproof.workflow.plan.graph) has the names, paths and spec of each job.
import atexit
import os
import sys
from functools import cache

from snakemake.io import report as in_report
from snakemake.logging import logger
from snakemake.settings.types import RerunTrigger

# `workflow` is Snakemake's own object.
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.publishing import escaped
from heatproof.core.specs import PRETRAINED
from heatproof.workflow.plan.graph import benchmark_of
from heatproof.workflow.plan.stage import STAGES
from heatproof.workflow import last_run, start, terminal

NAME = r"[\w.-]+"
ENVIRONMENT = "../../envs/heatproof.yaml"

try:
    start.handle_signals(workflow.is_main_process)
    start.refuse_packages_of_folder(workflow.deployment_settings)
    deployment = workflow.deployment_settings.deployment_method
    is_main, is_local = workflow.is_main_process, workflow.local_exec
    graph = start.check_before_start(config, is_main, deployment, is_local)
    plan, results = graph.plan, graph.plan.results
    # Runtime settings of jobs, which are not part of specs, so that changing them reruns no job.
    os.environ.update(start.job_environment(plan, FOLDER, deployment))
    if is_main:
        failures = terminal.Failures(graph)
        logger.addHandler(failures)
        # `workflow.dryrun` is false until Snakemake has an executor, which is created after this file is read.
        start.start_run(graph, results.root, workflow.output_settings.dryrun)
except Exception as error:
    # Faults of the machine, such as a lack of memory, are reported in one sentence too.
    said = str(error) if isinstance(error, HeatproofError) else machine_fault(error)
    if said is None:
        raise
    sys.exit(escaped(f"heatproof: {said}"))

THREADS = start.job_threads(plan, workflow.resource_settings.cores, is_local)

# One job makes a shard of the maps of all explainers, or each explainer has its own job (attribution_jobs in the
# config).
APART = plan.config["attribution_jobs"] == "apart"
# Snakemake's report reads captions from files. There are none if this workflow is a module from elsewhere.
CAPTIONS = start.captions_folder() if is_main and FOLDER else None
WHO, WHOSE = (["explainer"], "{explainer}") if APART else ([], "all")
NETWORK = ["dataset", "model", "weights"]


@cache
def record_run():
    last_run.record_run(
        config, start.named_configs(workflow.config_settings), results.root
    )


def set_up_snakemake():
    # Snakemake must decide by file times only, which heatproof.workflow.reconcile sets, and not by its records of jobs.
    workflow.dag_settings.rerun_triggers = frozenset({RerunTrigger.MTIME})
    workflow.dag.max_checksum_file_size = -1
    # With a limit, every finished job leaves a timer that checks all ready jobs once a second until the end of the run.
    # Cores and jobs limit what runs at the same time. There are no settings when Snakemake makes its own report.
    if workflow.scheduling_settings:
        workflow.scheduling_settings.max_jobs_per_timespan = None
    # --lint and --list, which only read the Snakefile, have no executor.
    if is_main and workflow.executor_plugin and not workflow.dryrun:
        record_run()


def inputs_of(stage):
    def inputs(wildcards):
        set_up_snakemake()
        return start.one_file_per_job(
            graph.job(stage, dict(wildcards)).inputs, apart=APART
        )

    return inputs


def outputs_of(stage):
    # The outputs that a stage declares, with its captions for the report.
    return start.outputs_of(graph, stage, in_report, update, CAPTIONS)


def message_of(stage):
    # Snakemake prints it alone, so that it names the network and the shard.
    has_wildcards = any(STAGES[stage].all_wildcards(plan))
    return STAGES[stage].message + (": {wildcards}" if has_wildcards else "")


def benchmark_file(stage, *wildcards):
    # Snakemake writes time and memory of a job there.
    return benchmark_of(stage, [f"{{{name}}}" for name in wildcards])


def spec_file(wildcards, output):
    # The job of these outputs. `inputs_of` has looked it up before.
    job = graph.producers[output[0]]
    return start.spec_file(graph, job, results.root, not workflow.dryrun)


def per_attempt(amount):
    # A job that is tried again gets more.
    return lambda w, attempt: amount * attempt


def training_gpus(w):
    return plan.training_devices(w.model, w.get("weights", PRETRAINED))


def print_failure():
    if reason := start.explain_failure(results.root):
        print(escaped(f"heatproof: {reason}"), file=sys.stderr)
    # At exit, after the last lines of Snakemake.
    atexit.register(terminal.print_failure, failures)
