"""Estimates of `heatproof estimate` for three kinds of configs, compared with what their jobs take.

    python benchmarks/estimate_error.py --out FOLDER

A first look with a training (config/quick.yaml), every metric of the default config on a published-size ResNet-20 at 32
pixels, and a ResNet-18 at 224 pixels on noise. The jobs run one after another, each by the command that the workflow
calls. Both columns are processor seconds, start-up included, as `estimate` counts them on a CPU; one line per stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from _shared import make_parser, print_table
from device import NOISE, working_in

ROOT = Path(__file__).resolve().parent.parent
RESNET = {"architecture": "torchvision_model", "options": {"name": "resnet18"}}
# Name to the overrides of the default config, and whether the target is results/scores.csv.
KINDS: dict[str, tuple[dict[str, Any] | str, bool]] = {
    "training and five methods, ResNet of a first look": ("config/quick.yaml", False),
    "responses along every map, ResNet-20 at 32×32": (
        {
            "models": [{"resnet20": {"architecture": "cifar_resnet20"}}],
            "evaluation": {"images": 64, "accuracy_images": 64},
            "weights": ["finetuned"],
            "pretraining": {"epochs": 2},
            "finetuning": {"epochs": 1},
            "explainers": ["saliency", {"integrated_gradients": {"steps": 20}}, "grad_cam", "random"],
            "metrics": [{"deletion_morf": {"steps": 16}}, {"mas_insertion": {"steps": 16}}, "soundness"],
        },
        True,
    ),
    "ResNet-18 at 224×224": (
        {
            "datasets": [{"noise": NOISE}],
            "models": [{"resnet18": RESNET}],
            "evaluation": {"images": 16, "accuracy_images": 16},
            "weights": ["finetuned"],
            "pretraining": {"epochs": 1, "batch_size": 16},
            "finetuning": {"epochs": 1, "batch_size": 16},
            "explainers": ["saliency", {"integrated_gradients": {"steps": 16}}, "grad_cam", "occlusion", "random"],
            "metrics": [],
        },
        False,
    ),
}


def estimated_seconds(config: dict[str, Any], responses: bool) -> dict[str, float]:
    """Return the estimated seconds of each stage."""
    from heatproof.workflow.estimate import account
    from heatproof.workflow.estimate.estimate import BUDGET, images_to_time, time_all
    from heatproof.workflow.estimate.measure import Bench
    from heatproof.workflow.plan.validate import make_plan

    plan = make_plan(config)
    size = 224 if "torchvision_model" in str(config["models"]) else 32
    with tempfile.TemporaryDirectory() as folder:
        measured, _ = time_all(Bench(plan, Path(folder), images_to_time(size), print), responses, BUDGET)
    seconds: dict[str, float] = {}
    for job in account.jobs_with_costs(plan, measured, responses):
        seconds[job.stage] = seconds.get(job.stage, 0.0) + job.seconds
    return seconds


def measured_seconds(config: dict[str, Any], responses: bool) -> dict[str, float]:
    """Run the jobs of a config; return the processor seconds of each stage."""
    from heatproof.workflow.estimate.account import TABLE_OF, jobs_to_tables
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.plan.validate import make_plan
    from heatproof.workflow.start import job_environment, spec_file

    plan = make_plan(config)
    graph = Graph(plan)
    environment = {**os.environ, **job_environment(plan, ROOT, ())}
    seconds: dict[str, float] = {}
    for job in jobs_to_tables(graph, responses):
        command = [sys.executable, "-P", "-m", "heatproof.workflow.job", spec_file(graph, job, "results")]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{job.stage} fails.")
        stage = TABLE_OF.get(job.stage, job.stage)
        seconds[stage] = seconds.get(stage, 0.0) + used.ru_utime + used.ru_stime
    return seconds


def main() -> None:
    from heatproof.workflow.config.files import default_config, merge, read_config

    args = make_parser(__doc__).parse_args()
    rows = []
    for name, (laid, responses) in list(KINDS.items())[: 1 if args.small else None]:
        config = read_config(ROOT / laid) if isinstance(laid, str) else merge(default_config(), laid)
        with tempfile.TemporaryDirectory() as folder, working_in(folder):
            estimated, measured = estimated_seconds(config, responses), measured_seconds(config, responses)
        rows += [[name, stage, estimated.get(stage, 0.0), seconds] for stage, seconds in measured.items()]
        rows.append([name, "all", sum(estimated.values()), sum(measured.values())])
        table = pd.DataFrame(rows, columns=["config", "stage", "estimated s", "measured s"])
        table["estimated over measured"] = table["estimated s"] / table["measured s"]
        print_table(table, "estimate_error", args.out)


if __name__ == "__main__":
    main()
