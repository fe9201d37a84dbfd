# Everything that is not a rule. The plan (heatproof.plan) owns names, paths and what each job is told.
import json
import os
import sys

from heatproof import plan as paths
from heatproof.errors import HeatproofError
from heatproof.workflow import check_before_start, hold_folder, stage

NAME = r"[\w.-]+"
PYTHON = sys.executable

try:
    plan = check_before_start(config, is_main=workflow.is_main_process)
    if workflow.is_main_process and not workflow.dryrun:
        hold_folder(".snakemake")
except HeatproofError as error:
    sys.exit(f"heatproof: {error}")

# Jobs end when this process does; see heatproof.cli.
os.environ["HEATPROOF_CONTROLLER"] = str(os.getpid())

MACHINE = json.dumps(plan.machine(), sort_keys=True)



def updates(files):
    # Kept when the job starts: a shard is added to, and what is whole is not made again.
    return [update(file) for file in files]


def spec(value):
    return json.dumps(value, sort_keys=True)


def say_where():
    if os.path.exists(paths.IDSDS_TABLE):
        print(f"The table is {paths.IDSDS_TABLE}; beside it meta_rank.csv and accuracy.csv.", file=sys.stderr)
