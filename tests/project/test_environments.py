"""The environment of conda has what the package requires and nothing else, and the package requires what it imports."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import yaml

import heatproof

ROOT = Path(__file__).parents[2]
# Names in conda-forge.
OF_CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch", "snakemake": "snakemake-minimal"}
# Packages that `snakemake[reports]` adds.
OF_EXTRAS = {"pygments"}


def bounds(requirements):
    """Return name to bounds of requirements, with or without a space between."""
    bounds_by_name = {}
    for requirement in requirements:
        name, _, limits = re.fullmatch(r"([\w.-]+)(\[[\w,-]+\])?\s*(.*)", requirement).groups()
        bounds_by_name[name.lower()] = limits
    return bounds_by_name


def packages_required():
    return bounds(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def test_conda_installs_the_packages_that_pip_installs():
    listed = yaml.safe_load((ROOT / "envs/heatproof.yaml").read_text())["dependencies"]
    conda = bounds(requirement for requirement in listed if isinstance(requirement, str))
    of_pip = bounds(next(requirement["pip"] for requirement in listed if isinstance(requirement, dict)))
    python = conda.pop("python")
    assert python == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for name in ("pip", *OF_EXTRAS):
        del conda[name]
    expected = packages_required()
    assert {**conda, **of_pip} == {
        OF_CONDA.get(name, name) if name not in of_pip else name: limits for name, limits in expected.items()
    }


def packages_imported():
    """Return the names of other packages that the sources import anywhere, to the modules that do."""
    files_by_package = {}
    for path in Path(heatproof.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names, "heatproof"}:
                files_by_package.setdefault(name, set()).add(path.name)
    return files_by_package


def test_imported_packages_are_required_and_required_ones_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = packages_required()
    optional = set().union(*(bounds(each) for each in project["optional-dependencies"].values()))
    # Modules whose package has another name.
    modules = {"pil": "pillow", "yaml": "pyyaml", "skimage": "scikit-image", "sklearn": "scikit-learn"}
    modules |= {"elpv_dataset": "elpv-dataset", "lightning_fabric": "lightning-fabric", "pytorch_grad_cam": "grad-cam"}
    # Modules that other packages install.
    modules |= {"pydantic_core": "pydantic", "snakemake_interface_logger_plugins": "snakemake"}
    where_imported = {
        modules.get(name.lower(), name.lower()).replace("_", "-"): where for name, where in packages_imported().items()
    }
    assert {name: where for name, where in where_imported.items() if name not in needed and name not in optional} == {}
    text = (ROOT / "pyproject.toml").read_text()
    not_imported = bounds(re.findall(r'"([^"]+)"', text.partition("# Not imported here")[2].partition("\n]")[0]))
    # Only its files are used.
    assert set(needed) - set(where_imported) - set(not_imported) == {"itables"}
