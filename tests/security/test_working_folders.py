"""No file of a working folder that nobody named decides what `heatproof` executes.

Each attack plants a file in a received folder, which leaves a trace where it is executed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import heatproof
from heatproof.config import default_config, read_config
from heatproof.errors import HeatproofError
from heatproof.running import refuse_code_of_snakemake
from heatproof.workflow import forget_specs

SOURCE = Path(heatproof.__file__).parents[1]
SMALL = {"evaluation": {"images": 6, "accuracy_images": 0}, "explainers": ["saliency", "random"]}


def trace(folder):
    """Return code that writes into the folder."""
    return f"open({str(folder / 'ran')!r}, 'a').write(__name__ + ' ')\n"


def config_of_the_folder(folder):
    """Replace the default config by one that calls a hub file of the folder."""
    hub = {"dataset": "torch.hub:load", "repo_or_dir": ".", "model": "evil", "source": "local"}
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(yaml.safe_dump({"datasets": [{"digits": hub}]}))
    (folder / "hubconf.py").write_text(f"{trace(folder)}def evil(**options):\n    raise SystemExit(1)\n")


def module_instead_of_snakemake(folder):
    (folder / "snakemake.py").write_text(trace(folder))


def module_that_snakemake_imports(folder):
    for name in ("yaml", "configargparse", "pulp", "psutil", "torch", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(trace(folder))


def plugins_beside_snakemakes_memory(folder):
    """Let Snakemake find plugins where its remote jobs install them."""
    for kind in ("executor", "storage", "report", "logger", "scheduler"):
        package = folder / f".snakemake/pip-deployments/snakemake_{kind}_plugin_x"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(trace(folder))


def config_with_a_shipped_name(folder):
    """Put a file under the name of a config that comes with heatproof."""
    config_of_the_folder(folder)
    (folder / "config/config.yaml").rename(folder / "quick")


def profile_with_a_shipped_name(folder):
    """Put a profile under the name of one that comes with heatproof; a profile can name configs, and so code."""
    config_of_the_folder(folder)
    (folder / "slurm").mkdir()
    (folder / "slurm/config.yaml").write_text("configfile: config/config.yaml\ncores: 1\n")


def profile_of_the_environment(folder):
    """Put a profile where Snakemake looks first for one that the user's environment names."""
    profile_with_a_shipped_name(folder)
    (folder / "slurm").rename(folder / "my_cluster")


NAMED, SHIPPED = ["run", "small.yaml", "-n"], ["run", "quick", "-n"]
ATTACKS = {
    config_of_the_folder: (NAMED, SHIPPED, ["report", "quick"], ["status", "quick"], ["check", "quick"]),
    module_instead_of_snakemake: (SHIPPED,),
    module_that_snakemake_imports: (SHIPPED, ["status", "quick"]),
    plugins_beside_snakemakes_memory: (SHIPPED, ["report", "quick"]),
    config_with_a_shipped_name: (SHIPPED, ["status", "quick"]),
    profile_with_a_shipped_name: (["run", "-n", "--profile", "slurm"],),
    profile_of_the_environment: (["run", "-n"],),
}


def heatproof_in(folder, *arguments, timeout=100):
    """Run a command in a folder. Whether it ends well is no matter here: some are refused with a sentence."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    given = {"PYTHONPATH": str(SOURCE), "SNAKEMAKE_PROFILE": "my_cluster", "OMP_NUM_THREADS": "1"}
    if not (Path(folder) / "my_cluster").exists():
        del given["SNAKEMAKE_PROFILE"]
    return subprocess.run(
        [sys.executable, "-m", "heatproof", *arguments],
        cwd=folder,
        env={**plain, **given},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture
def received(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


@pytest.mark.slow
@pytest.mark.workflow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_file_that_nobody_named_is_executed(received, attack):
    attack(received)
    for command in ATTACKS[attack]:
        done = heatproof_in(received, *command)
        assert not (received / "ran").exists(), f"{command}: {done.stderr[-600:]}"
        assert "Traceback" not in done.stderr, done.stderr


def test_the_default_config_is_that_of_the_package(received, monkeypatch):
    monkeypatch.chdir(received)
    before = default_config()
    config_of_the_folder(received)
    assert default_config() == before == read_config("small.yaml") | {key: before[key] for key in SMALL}
    assert not (received / "ran").exists()


def test_a_clone_has_its_own_default(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("seed: 7\n")
    assert default_config(tmp_path) == {"seed": 7}
    assert default_config(tmp_path / "config") == default_config()


def test_plugins_beside_snakemakes_memory_are_refused(received, monkeypatch):
    monkeypatch.chdir(received)
    refuse_code_of_snakemake()
    plugins_beside_snakemakes_memory(received)
    with pytest.raises(HeatproofError, match=r"\.snakemake/pip-deployments of this folder.*: remove it"):
        refuse_code_of_snakemake()


def test_a_profile_of_the_environment_is_not_looked_up_in_the_folder(received, monkeypatch):
    monkeypatch.chdir(received)
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "my_cluster")
    refuse_code_of_snakemake()
    profile_of_the_environment(received)
    with pytest.raises(HeatproofError, match="SNAKEMAKE_PROFILE names my_cluster"):
        refuse_code_of_snakemake()
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(received / "my_cluster"))
    refuse_code_of_snakemake()


def test_specs_of_jobs_do_not_come_with_the_results(tmp_path):
    """A spec says what a job runs, and is not written again where it is there already."""
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "prepare-1.json").write_text("{}")
    results.mkdir()
    (results / ".jobs").symlink_to(elsewhere)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        forget_specs(str(results))
    (results / ".jobs").unlink()
    (results / ".jobs").mkdir()
    (results / ".jobs/prepare-1.json").write_text("{}")
    forget_specs(str(results))
    assert not (results / ".jobs").exists()


def test_code_of_the_users_own_config_runs(received):
    """What README promises: a module that the user's config names, on the user's PYTHONPATH."""
    (received / "mine.py").write_text(f"{trace(received)}def flat(model, images, targets):\n    return images.sum(1)\n")
    named = {**SMALL, "explainers": ["random", {"flat": {"explainer": "mine:flat"}}]}
    (received / "small.yaml").write_text(yaml.safe_dump(named))
    environment = {**os.environ, "PYTHONPATH": f".{os.pathsep}{SOURCE}"}
    command = [sys.executable, "-m", "heatproof", "status", "small.yaml"]
    done = subprocess.run(command, cwd=received, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (received / "ran").exists()
