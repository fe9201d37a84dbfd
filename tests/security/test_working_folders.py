"""No file in the working folder that the user did not name can determine what `heatproof` executes.

Each attack puts a file into a received folder, which writes another file if it is executed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import snakemake.io
import yaml
from PIL import Image
from waiting import finished

import heatproof
from heatproof.errors import HeatproofError
from heatproof.workflow.commands.run import refuse_code_of_snakemake
from heatproof.workflow.config.files import default_config, read_config
from heatproof.workflow.start import refuse_packages_of_folder, remove_specs

SOURCE = Path(heatproof.__file__).parents[1]
SMALL = {"evaluation": {"images": 6, "accuracy_images": 0}, "explainers": ["saliency", "random"]}


def trace(folder):
    """Return code that writes a file into the folder."""
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


def plugins_in_snakemakes_folder(folder):
    """Let Snakemake find plugins where its remote jobs install them."""
    for kind in ("executor", "storage", "report", "logger", "scheduler"):
        package = folder / f".snakemake/pip-deployments/snakemake_{kind}_plugin_x"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(trace(folder))


def config_with_a_shipped_name(folder):
    """Write a file with the name of a shipped config."""
    config_of_the_folder(folder)
    (folder / "config/config.yaml").rename(folder / "quick")


def profile_with_a_shipped_name(folder):
    """Write a profile with the name of a shipped one; a profile can name configs, and so code."""
    config_of_the_folder(folder)
    (folder / "slurm").mkdir()
    (folder / "slurm/config.yaml").write_text("configfile: config/config.yaml\ncores: 1\n")


def profile_of_the_environment(folder):
    """Write a profile where Snakemake first searches for one that an environment variable of the user names."""
    profile_with_a_shipped_name(folder)
    (folder / "slurm").rename(folder / "my_cluster")


def pickle_of_a_dry_run(folder):
    """Write a pickle where `--trust-io-cache` reads a cache of file states."""
    (folder / ".snakemake/iocache").mkdir(parents=True)
    code = trace(folder).strip()
    # GLOBAL, a string, a tuple of one, REDUCE.
    (folder / ".snakemake/iocache/latest.pkl").write_bytes(b"cbuiltins\nexec\n(V" + code.encode() + b"\ntR.")
    with pytest.raises(AttributeError), open(folder / ".snakemake/iocache/latest.pkl", "rb") as pickle:
        snakemake.io.IOCache.load(pickle)
    assert (folder / "ran").exists(), "the pickle does what it is to do"
    (folder / "ran").unlink()


def template_of_snakemake(folder):
    """Write a config that Snakemake takes for a template, whose code it runs."""
    code = trace(folder).strip()
    (folder / "small.yaml").write_text(f"__use_yte__: true\n__definitions__:\n  - {json.dumps(code)}\n")


def files_that_libraries_and_tools_read(folder):
    """Write every file that a library, Python, Snakemake, git, conda or a shell could read in a working folder."""
    plugins_in_snakemakes_folder(folder)
    (folder / ".snakemake/pip-deployments").rename(folder / "pip-deployments")
    pickle_of_a_dry_run(folder)
    config_of_the_folder(folder)
    module_that_snakemake_imports(folder)
    code = trace(folder)
    for name in ("evil", "hubconf", "setup", "conftest", "Snakefile", "startup", "__main__"):
        (folder / (name if name == "Snakefile" else f"{name}.py")).write_text(code)
    plain = {
        "matplotlibrc": "backend: module://evil\ntext.usetex: True\n",
        ".numba_config.yaml": "debug: 1\n",
        ".env": "PYTHONSTARTUP=startup.py\nPYTHONINSPECT=1\n",
        "pyvenv.cfg": "home = .\ninclude-system-site-packages = true\n",
        "evil.pth": f"import sys; {code}",
        "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
        "evil-1.0.dist-info/entry_points.txt": "[heatproof]\nevil = evil\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/config": f"[core]\n\tfsmonitor = touch {folder / 'ran'}\n\trepositoryformatversion = 0\n",
        ".bashrc": f"touch {folder / 'ran'}\n",
        ".condarc": "channels: [file:///evil]\n",
        "profiles/default/config.yaml": "configfile: config/config.yaml\n",
        "profiles/slurm/config.yaml": "configfile: config/config.yaml\n",
        "envs/heatproof.yaml": "dependencies: [evil]\n",
        "envs/heatproof.post-deploy.sh": f"touch {folder / 'ran'}\n",
        "_workflow/Snakefile": code,
        "workflow/rules/common.smk": code,
        ".python-version": "evil\n",
        "sitecustomize/__init__.py": code,
        "torch/__init__.py": code,
        "numpy/__init__.py": code,
        "timm/__init__.py": code,
        "results/.jobs/prepare-0000000000000000.json": json.dumps({"run": "evil:run", "spec": {}}),
    }
    for name, text in plain.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    # Each of these programs would write a file if it were started by this name.
    for name in ("latex", "dvipng", "git", "conda", "bash", "sh", "python"):
        (folder / name).write_text(f"#!/bin/sh\necho > {folder / 'ran'}\n")
        (folder / name).chmod(0o755)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    for number, pixels in enumerate(images):
        (folder / f"photos/{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"photos/{number % 2}/{number}.png")
    (folder / "mine.csv").write_text("method,image,score\na,x,1\na,y,2\nb,x,0\nb,y,1\n")


NAMED, SHIPPED = ["run", "small.yaml", "-n"], ["run", "quick", "-n"]
ATTACKS = {
    config_of_the_folder: (NAMED, SHIPPED, ["report", "quick"], ["status", "quick"], ["check", "quick"]),
    module_instead_of_snakemake: (SHIPPED,),
    module_that_snakemake_imports: (SHIPPED, ["status", "quick"]),
    plugins_in_snakemakes_folder: (SHIPPED, ["report", "quick"]),
    config_with_a_shipped_name: (SHIPPED, ["status", "quick"]),
    profile_with_a_shipped_name: (["run", "-n", "--profile", "slurm"],),
    profile_of_the_environment: (["run", "-n"],),
    pickle_of_a_dry_run: (["run", "quick", "-n", "--more=--trust-io-cache"],),
    template_of_snakemake: (NAMED, ["status", "small.yaml"]),
    files_that_libraries_and_tools_read: (
        NAMED,
        ["report", "small.yaml"],
        ["report"],
        ["status", "small.yaml"],
        ["check", "small.yaml"],
        ["estimate", "small.yaml", "--images", "2", "--seconds", "1"],
        ["prune", "small.yaml"],
        ["list", "methods"],
        ["init", "photos", "--model", "cifar_resnet20"],
        ["rank", "mine.csv", "--out", "ranked"],
        ["verify", "mine.csv"],
        ["maps", "ls"],
        ["--version"],
    ),
}


def heatproof_in(folder, *arguments):
    """Run a command in a folder, whatever its exit status: some are refused with a sentence."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    variables = {"PYTHONPATH": str(SOURCE), "SNAKEMAKE_PROFILE": "my_cluster", "OMP_NUM_THREADS": "1"}
    if not (Path(folder) / "my_cluster").exists():
        del variables["SNAKEMAKE_PROFILE"]
    return finished([sys.executable, "-m", "heatproof", *arguments], cwd=folder, env={**plain, **variables})


@pytest.fixture
def received(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


@pytest.mark.workflow
@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            attack, marks=pytest.mark.long if attack is files_that_libraries_and_tools_read else pytest.mark.slow
        )
        for attack in ATTACKS
    ],
    ids=lambda attack: attack.__name__,
)
def test_no_unnamed_file_is_executed(received, attack):
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


def test_a_clone_has_its_own_default_config(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("seed: 7\n")
    assert default_config(tmp_path) == {"seed": 7}
    assert default_config(tmp_path / "config") == default_config()


def test_plugins_in_snakemakes_folder_are_refused(received, monkeypatch):
    monkeypatch.chdir(received)
    refuse_code_of_snakemake()
    plugins_in_snakemakes_folder(received)
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


ODD = {
    "a link among the records": (".snakemake/metadata/x", lambda path: path.symlink_to("/etc/hostname")),
    "a link in place of the folder": (".snakemake", lambda path: path.symlink_to("/tmp")),
    "a link in place of the logs": (".snakemake/log", lambda path: path.symlink_to("/tmp")),
    "a pipe": (".snakemake/incomplete/a/b", os.mkfifo),
}


@pytest.mark.parametrize("what", ODD)
def test_snakemake_writes_through_no_link_and_waits_for_no_pipe(received, monkeypatch, what):
    monkeypatch.chdir(received)
    name, make = ODD[what]
    (received / name).parent.mkdir(parents=True, exist_ok=True)
    make(received / name)
    with pytest.raises(HeatproofError, match=rf"{name} is neither a file nor a folder, and Snakemake would write"):
        refuse_code_of_snakemake()


def test_links_within_conda_environments_are_accepted(received, monkeypatch):
    monkeypatch.chdir(received)
    (received / ".snakemake/conda/x").mkdir(parents=True)
    (received / ".snakemake/conda/x/python").symlink_to("python3")
    refuse_code_of_snakemake()


def test_conda_environments_of_a_working_folder_are_not_used(received, monkeypatch):
    """Snakemake would execute Python from .snakemake/conda, and install packages from .snakemake/conda-archive."""
    monkeypatch.chdir(received)
    monkeypatch.setenv("XDG_CACHE_HOME", str(received / "cache"))

    def prefix(conda_prefix=None, methods=("conda",)):
        settings = SimpleNamespace(deployment_method=set(methods), conda_prefix=conda_prefix)
        refuse_packages_of_folder(settings)
        return settings.conda_prefix

    assert prefix() == received / "cache/heatproof/conda"
    assert prefix("mine") == "mine"
    assert prefix(methods=()) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert prefix() == Path.home() / ".cache/heatproof/conda", "no folder of the working folder"
    (received / ".snakemake/conda-archive").mkdir(parents=True)
    prefix()
    (received / ".snakemake/conda-archive/x").touch()
    assert prefix(methods=()) is None
    with pytest.raises(HeatproofError, match=r"would install the packages in \.snakemake/conda-archive"):
        prefix()


DRAW = """
import pandas as pd
from heatproof.report import results
from heatproof.report.figures import drawing
@drawing.white_style
def draw():
    figure = drawing.new_figure(3, 2)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="a_b $x$")
    axes.set_title("$x$")
    figure.legend()
    return figure
results.save(draw(), "x.svg")
results.save(draw(), "x.png")
"""


def test_settings_of_matplotlib_in_the_folder_have_no_effect(received, tmp_path_factory):
    """Settings of matplotlib with LaTeX would start programs."""
    plain = tmp_path_factory.mktemp("plain")
    settings = {"backend": "module://evil", "text.usetex": True, "savefig.facecolor": "red", "lines.linewidth": 9}
    settings |= {"svg.fonttype": "none", "font.size": 30, "savefig.bbox": "tight", "axes.grid": True}
    (received / "matplotlibrc").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (received / "evil.py").write_text(trace(received))
    for name in ("latex", "dvipng"):
        (received / name).write_text(f"#!/bin/sh\necho > {received / 'ran'}\n")
        (received / name).chmod(0o755)
    for folder in (received, plain):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{received}:{os.environ['PATH']}"}
        done = subprocess.run([sys.executable, "-P", "-c", DRAW], cwd=folder, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    assert not (received / "ran").exists()
    for name in ("x.svg", "x.png"):
        assert (received / name).read_bytes() == (plain / name).read_bytes()


def test_a_pipe_in_place_of_matplotlibs_settings_is_refused(received):
    os.mkfifo(received / "matplotlibrc")
    done = heatproof_in(received, "list", "metrics")
    assert done.returncode == 1
    assert "matplotlibrc is a named pipe, not a regular file: remove it" in done.stderr


def test_specs_of_jobs_in_received_results_are_removed(tmp_path):
    """A spec determines what a job executes, and an existing spec is not written again."""
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "prepare-1.json").write_text("{}")
    results.mkdir()
    (results / ".jobs").symlink_to(elsewhere)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        remove_specs(str(results))
    (results / ".jobs").unlink()
    (results / ".jobs").mkdir()
    (results / ".jobs/prepare-1.json").write_text("{}")
    remove_specs(str(results))
    assert not (results / ".jobs").exists()


def test_code_that_the_users_config_names_is_executed(received):
    """As documented in README, a module that the user's config names is found on the user's PYTHONPATH."""
    (received / "mine.py").write_text(f"{trace(received)}def flat(model, images, targets):\n    return images.sum(1)\n")
    named = {**SMALL, "explainers": ["random", {"flat": {"explainer": "mine:flat"}}]}
    (received / "small.yaml").write_text(yaml.safe_dump(named))
    environment = {**os.environ, "PYTHONPATH": f".{os.pathsep}{SOURCE}"}
    command = [sys.executable, "-m", "heatproof", "status", "small.yaml"]
    done = finished(command, cwd=received, env=environment)
    assert done.returncode == 0, done.stderr
    assert (received / "ran").exists()
