"""Bundles: the tables of a finished run with what made them, in one file to cite, verify and rank with others."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.storage.files import written_aside
from heatproof.storage.strict_yaml import dump

TABLES = ("*.csv", "ranking/*.csv", "similarity/*.csv", "baselines/*.csv", "report/index.html", "figures/*.svg")
SUMS, CONFIG, ABOUT = "SHA256SUMS", "config.yaml", "about.json"
RANKED = ("scores.csv", "idsds_table.csv")
# The first moment that a zip file can tell: the same run makes the same bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)
# No table of a run comes near it.
MOST_BYTES = 2**30


def bundle(configs: Sequence[str], *, out: str, folder: str = "results") -> str:
    """Write the tables, the page and the figures of a run with its config, provenance and checksums.

    Parameters
    ----------
    configs
        As the run was given them; none for those of the last run.
    out
        The file, which ends in ``.zip``.
    folder
        The results.

    Returns
    -------
    str
        What is in it, in a sentence.

    Raises
    ------
    HeatproofError
        If there is no table, or a table has other bytes than its manifest says.
    """
    from heatproof.last_run import follow
    from heatproof.storage.manifest import verified

    if not out.endswith(".zip"):
        raise HeatproofError(f"The bundle is called {out}: give it a name that ends in .zip.")
    results = Path(folder)
    followed = follow(configs, folder)
    plan = followed.plan
    files = {path.relative_to(results).as_posix(): path for pattern in TABLES for path in sorted(results.glob(pattern))}
    if not any(name in files for name in RANKED):
        raise HeatproofError(f"{folder} has neither {' nor '.join(RANKED)}: run the workflow to one of them first.")
    contents = {name: (verified(path) if path.suffix == ".csv" else path).read_bytes() for name, path in files.items()}
    records = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    manifests = {name: record for name, record in records.items() if isinstance(record, dict) and "key" in record}
    contents[CONFIG] = dump(plan.config).encode()
    contents[ABOUT] = json.dumps(_about(plan, manifests), indent=1, sort_keys=True, default=str).encode()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(contents.items()))
    contents[SUMS] = sums.encode()
    with written_aside(out) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, NO_TIME), data, zipfile.ZIP_DEFLATED)
    size = Path(out).stat().st_size
    told = f"{out}: {len(files)} files of {folder}, config and provenance, {size / 2**20:.1f} MiB"
    return f"{told}; `heatproof verify {out}` checks it. {followed.told}".rstrip()


def _about(plan: Any, manifests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digests of what was measured: two runs that agree in them can be compared."""
    return {
        "heatproof": version("heatproof"),
        "datasets": {name: plan.dataset_spec(name).key for name in plan.datasets},
        "metrics": plan.config["metrics"],
        "drops": plan.config["drops"],
        "target": plan.config["target"],
        "images": plan.config["evaluation"],
        "manifests": manifests,
    }


def verify(path: str) -> str:
    """Check the files of a bundle against its checksums, and its tables against their manifests.

    Returns
    -------
    str
        A sentence.

    Raises
    ------
    HeatproofError
        If a file is missing, added or changed.
    """
    contents = read(path)
    tables = sum(name.endswith(".csv") for name in contents)
    return f"{path} is whole: {len(contents)} files have their checksums, {tables} tables among them."


def read(path: str | Path) -> dict[str, bytes]:
    """Return the files of a bundle by name, checked.

    Raises
    ------
    HeatproofError
        If it is no bundle, or not whole.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
            if sum(one.file_size for one in listed) > MOST_BYTES:
                raise HeatproofError(f"{path} holds more than {MOST_BYTES >> 30} GiB, which no bundle does.")
            contents = {one.filename: archive.read(one) for one in listed}
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise HeatproofError(f"{path} cannot be read as a bundle ({error}): make it with `heatproof bundle`.") from None
    if SUMS not in contents:
        raise HeatproofError(f"{path} has no {SUMS}: it is no bundle of heatproof, or was packed again without it.")
    lines = contents.pop(SUMS).decode(errors="replace").splitlines()
    told = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
    for what, names in (("lacks", told.keys() - contents), ("has, beside what it lists,", contents.keys() - told)):
        if names:
            raise HeatproofError(f"{path} {what} {min(names)}: somebody changed it; ask for the bundle again.")
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != told[name]:
            raise HeatproofError(f"{name} in {path} has other bytes than its checksum says: ask for the bundle again.")
    return contents


def unpacked(paths: Sequence[str | Path], folder: Path) -> list[Path]:
    """Return the tables to rank of bundles and results folders, bundles unpacked to a folder; other paths as they are.

    Raises
    ------
    HeatproofError
        If bundles cannot be compared, and why: the same network in two of them, a dataset with other images, a metric
        with other options, another target or fill.
    """
    found, abouts = [], {}
    for number, path in enumerate(map(Path, paths)):
        if path.is_dir():
            inside = path / "results" if (path / "results").is_dir() else path
            table = next((inside / name for name in RANKED if (inside / name).is_file()), None)
            if table is None:
                raise HeatproofError(f"{path} has neither {' nor '.join(RANKED)}: name a run's results, or a table.")
            found.append(table)
        elif path.suffix == ".zip":
            contents = read(path)
            name = next(name for name in RANKED if name in contents)
            own = folder / str(number)
            own.mkdir(parents=True)
            (own / name).write_bytes(contents[name])
            found.append(own / name)
            abouts[str(path)] = (json.loads(contents[ABOUT]), contents[name])
        else:
            found.append(path)
    _require_comparable(abouts)
    return found


def _require_comparable(abouts: Mapping[str, tuple[dict[str, Any], bytes]]) -> None:
    seen: dict[tuple[str, str], tuple[str, Any]] = {}
    cases: dict[tuple[str, ...], str] = {}
    for path, (about, table) in abouts.items():
        for kind, what, value in _facts(about):
            before = seen.setdefault((kind, what), (path, value))
            if before[1] != value:
                raise HeatproofError(
                    f"{path} and {before[0]} cannot be ranked together: {kind} {what} is {_short(value)} in one and "
                    f"{_short(before[1])} in the other. Rank each by itself, or run both with the same."
                )
        rows = csv.DictReader(io.StringIO(table.decode("utf-8-sig")))
        for case in {(row["dataset"], row["model"], row["weights"]) for row in rows}:
            other = cases.setdefault(case, path)
            if other != path:
                raise HeatproofError(
                    f"{path} and {other} both have the network {' / '.join(case)}: they would count it twice. Give one "
                    "another name in its config, or leave one out."
                )


def _facts(about: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    yield from (("the dataset", name, key) for name, key in about["datasets"].items())
    yield from (("the metric", name, options) for name, options in about["metrics"].items())
    yield from (("the setting", name, about[name]) for name in ("target", "drops"))
    yield "the version of", "heatproof", about["heatproof"]


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "…"
