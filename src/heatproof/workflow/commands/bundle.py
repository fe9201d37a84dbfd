"""Bundles: one file with the tables, the page and the provenance of a run, to cite, verify and rank with others."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from heatproof.core.from_json import as_type
from heatproof.core.provenance import Key
from heatproof.errors import HeatproofError
from heatproof.store.archive import MOST_UNPACKED, Member, read_archive
from heatproof.store.manifest import parse_checksummed, read_checksummed, verified_bytes
from heatproof.store.publishing import public
from heatproof.store.reading import FOLDER, one_sentence_errors, parse_json, read_result_bytes, resolve_user_folder
from heatproof.store.strict_yaml import dump
from heatproof.store.table_formats import MOST_BYTES, UserTable, read_user_table
from heatproof.store.writing import atomic_write
from heatproof.workflow.plan.paths import RESULTS

if TYPE_CHECKING:
    from heatproof.workflow.plan.graph import Graph

# Patterns of the files that are packed, if a manifest lists them; a * does not match folders.
PACKED = ("*.csv", "ranking/*.csv", "similarity/*.csv", "baselines/*.csv", "report/index.html", "figures/*.svg")
SUMS, CONFIG, ABOUT = "SHA256SUMS", "config.yaml", "about.json"
RANKED = ("scores.csv", "idsds_table.csv")
# Version of the format; raised whenever earlier bundles cannot be verified any more.
FORMAT = 2
# The earliest time in a zip file, for all members, so that the same run makes the same bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)
MOST_ABOUT, MOST_SUMS, MOST_MANIFEST = 2**19, 2**22, 2**24
# Members whose content is read from a bundle, besides the table that is ranked, with their largest sizes.
READ_MEMBERS = {SUMS: MOST_SUMS, CONFIG: MOST_ABOUT, ABOUT: MOST_ABOUT, ".json": MOST_MANIFEST}
AGAIN = "ask for the bundle again, or make it with `heatproof bundle`"


@dataclass(frozen=True)
class BundleRecord:
    """The provenance of a bundle, by which it is decided whether two bundles can be compared.

    Attributes
    ----------
    format
        Version of the format of the bundle.
    heatproof
        Version of heatproof that made it.
    config
        All values of the config, without secrets and local paths.
    datasets
        Name of each dataset to its key.
    keys
        Path of each manifest to its key.
    """

    format: int
    heatproof: str
    config: dict[str, Any]
    datasets: dict[str, Key]
    keys: dict[str, Key]


def bundle(configs: Sequence[str], *, out: str) -> str:
    """Write a bundle of a run: tables, page and figures with their manifests, the config, and checksums.

    Parameters
    ----------
    configs
        Configs of the run; empty for those of the last run.
    out
        Path of the bundle, which ends in ``.zip``.

    Returns
    -------
    str
        A sentence on the content of the bundle.

    Raises
    ------
    HeatproofError
        If there is no table of scores, a file is not a current result of this config, or its bytes differ from its
        manifest.
    """
    from heatproof.workflow.last_run import load_named_or_last
    from heatproof.workflow.plan.graph import Graph

    if not out.endswith(".zip"):
        raise HeatproofError(f"The bundle is called {out}: give it a name that ends in .zip.")
    followed = load_named_or_last(configs)
    graph = Graph(followed.plan)
    contents, keys = _files_to_pack(graph, shlex.join(["heatproof", "run", *followed.named]))
    if not any(name in contents for name in RANKED):
        raise HeatproofError(f"{RESULTS} has neither {' nor '.join(RANKED)}: run the workflow to one of them first.")
    if sum(map(len, contents.values())) > MOST_UNPACKED:
        raise HeatproofError(f"The tables and figures have more than {MOST_UNPACKED >> 30} GiB: bundle fewer of them.")
    files = len(contents)
    datasets = {name: followed.plan.dataset_spec(name).key for name in followed.plan.datasets}
    # As it will be read from JSON, with text as keys.
    config = json.loads(json.dumps(public(followed.plan.config), default=str))
    record = BundleRecord(FORMAT, version("heatproof"), config, datasets, keys)
    contents[CONFIG], contents[ABOUT] = _as_yaml(config), json.dumps(asdict(record), indent=1, sort_keys=True).encode()
    contents[SUMS] = _sums({name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    with atomic_write(out) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, NO_TIME), data, zipfile.ZIP_DEFLATED)
    size = Path(out).stat().st_size
    note = f"{out}: {files} files of {RESULTS}, and the config, {size / 2**20:.1f} MiB"
    return f"{note}; `heatproof verify {out}` checks it. {followed.note}".rstrip()


def _files_to_pack(graph: Graph, command: str) -> tuple[dict[str, bytes], dict[str, Key]]:
    """Return the bytes of the files to pack and of their manifests, by name, and the keys of the manifests.

    Parameters
    ----------
    graph
        The jobs of the config; only files that their manifests list are packed.
    command
        Command that makes the files, for error messages.
    """
    from heatproof.workflow.reconcile import Results

    results, root = Results(graph), graph.plan.results.root
    contents, keys = dict[str, bytes](), dict[str, Key]()
    packed: list[str] = []
    for job in graph.jobs():
        for product in job.products:
            names = {os.path.relpath(file, root): file for file in product.files if file != product.manifest}
            names = {name: file for name, file in names.items() if _is_packed(name)}
            if not any(map(os.path.lexists, [product.manifest, *names.values()] if names else [])):
                continue
            if results.manifest(product.manifest) is None or not results.is_complete(product):
                missing = next((file for file in product.files if not os.path.lexists(file)), product.manifest)
                raise HeatproofError(f"{missing} is missing or damaged: `{command}` makes it again; pack it then.")
            manifest_name = os.path.relpath(product.manifest, root)
            for name, file in {manifest_name: product.manifest, **names}.items():
                with one_sentence_errors(file, f"`{command}` makes it again; pack it then"):
                    contents[name] = read_result_bytes(file)
            recorded = parse_checksummed(contents[manifest_name], Path(product.manifest)) or {}
            keys[manifest_name] = Key.of(recorded)
            for name, file in names.items():
                if _listed(recorded, manifest_name).get(name) != (digest := hashlib.sha256(contents[name]).hexdigest()):
                    raise HeatproofError(
                        f"The bytes of {file} differ from those that {product.manifest} lists (SHA-256 {digest[:8]}…): "
                        f"remove it, and `{command}` makes it again; pack the results then."
                    )
            packed += names.values()
    for job in graph.jobs_leading_to(packed):
        for product in job.products:
            if results.is_stale(job, product):
                raise HeatproofError(
                    f"{product.manifest} is from another config, code or input than the results to be packed: "
                    f"`{command}` makes it again; or name the config that the results are from."
                )
    return contents, keys


def _is_packed(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return any(folder == pattern.rpartition("/")[0] and fnmatch(last, pattern.rpartition("/")[2]) for pattern in PACKED)


def _listed(manifest: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the SHA-256 of the files that a manifest lists, by their paths in the results folder."""
    folder = os.path.dirname(name)
    return {os.path.normpath(os.path.join(folder, facts["file"])): facts["sha256"] for facts in manifest["files"]}


def _as_yaml(config: Mapping[str, Any]) -> bytes:
    # Sorted, so that the order does not depend on whether the values were read from JSON.
    return dump(json.loads(json.dumps(config, sort_keys=True))).encode()


def _sums(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())).encode()


# ---- reading bundles, which may come from an untrusted source --------------------------------------------------------


def verify(path: str) -> str:
    """Check the files of a bundle against its checksums and manifests, and the manifests against each other.

    Nothing that the bundle names is imported or executed, and nothing of it is written to disk.

    Returns
    -------
    str
        A sentence on what was checked.

    Raises
    ------
    HeatproofError
        If a file is missing, added or changed, or differs from its manifest.
    """
    members, record = read(path)
    manifests = len(record.keys)
    files = len(members) - manifests - len((CONFIG, ABOUT))
    return (
        f"{path} is complete and unchanged: its {len(members)} files match their checksums; its {manifests} manifests "
        f"list all {files} tables, figures and pages, and have the keys that it records for its config. Only a run can "
        "show whether the numbers follow from that config."
    )


def read(path: str | Path, keep: Mapping[str, int] = {}) -> tuple[dict[str, Member], BundleRecord]:
    """Return the members of a bundle by name, and its provenance, after the checks of `verify`.

    Parameters
    ----------
    path
        The bundle.
    keep
        Names of files whose content is returned in addition to that of manifests, each with its largest size in bytes.

    Raises
    ------
    HeatproofError
        If the file is not a bundle, or is damaged.
    """
    members = read_archive(path, {**keep, **READ_MEMBERS}, AGAIN, "a bundle")
    if SUMS not in members:
        raise HeatproofError(f"{path} has no {SUMS}: it is not a bundle of heatproof, or was packed again without it.")
    sums = members.pop(SUMS).content
    note = dict(line.split("  ", 1)[::-1] for line in sums.decode(errors="replace").split("\n") if "  " in line)
    for what, names in (("lacks", note.keys() - members), ("has, beside what it lists,", members.keys() - note)):
        if names:
            raise HeatproofError(f"{path} {what} {min(names)}: somebody changed it; {AGAIN}.")
    for name, member in members.items():
        if member.sha256 != note[name]:
            raise HeatproofError(f"{name} in {path} has other bytes than its checksum says: {AGAIN}.")
    if sums != _sums(note):
        raise HeatproofError(f"{SUMS} in {path} is not as heatproof writes it: {AGAIN}.")
    record = _read_about(path, members)
    _require_manifests(path, members, record)
    return members, record


def _read_about(path: str | Path, members: Mapping[str, Member]) -> BundleRecord:
    """Return the provenance of a bundle, after comparing it with the config in the bundle."""
    if missing := next((name for name in (ABOUT, CONFIG) if name not in members), None):
        raise HeatproofError(f"{path} has no {missing}: {AGAIN}.")
    with one_sentence_errors(f"{ABOUT} in {path}", AGAIN):
        value = parse_json(members[ABOUT].content)
        version_of_format = value.get("format") if isinstance(value, dict) else FORMAT
        if version_of_format != FORMAT:
            raise HeatproofError(
                f"{path} is a bundle of another version of heatproof, which this version cannot check: make it again "
                "with `heatproof bundle`, or use the other version."
            )
        record: BundleRecord = as_type(BundleRecord, value, "the record")
        as_type(dict[str, Any], record.config.get("metrics"), "metrics")
        same = members[CONFIG].content == _as_yaml(record.config)
    if not same:
        raise HeatproofError(f"{CONFIG} in {path} is not the config that {ABOUT} records: {AGAIN}.")
    return record


def _require_manifests(path: str | Path, members: Mapping[str, Member], record: BundleRecord) -> None:
    """Raise an error if no manifest lists a file as it is, or a manifest is damaged or from another config."""
    names = {name for name in members if name.endswith(".json")} - {ABOUT}
    if unknown := names ^ record.keys.keys():
        raise HeatproofError(f"{min(unknown)} in {path} is no manifest that {ABOUT} knows: {AGAIN}.")
    listed, keys = dict[str, tuple[str, int]](), dict[str, Any]()
    read: list[tuple[str, dict[str, Any]]] = []
    for name in sorted(names):
        with one_sentence_errors(f"{name} in {path}", AGAIN):
            recorded = parse_checksummed(members[name].content, Path(FOLDER, name))
        if recorded is None or "files" not in recorded:
            raise HeatproofError(f"{name} in {path} is damaged, or no manifest of files: {AGAIN}.")
        if Key.of(recorded) != record.keys[name]:
            raise HeatproofError(f"{name} in {path} is from another config or code than {ABOUT} says: {AGAIN}.")
        folder = os.path.dirname(name)
        for listed_file in recorded["files"]:
            file, facts = (
                os.path.normpath(os.path.join(folder, listed_file["file"])),
                (listed_file["sha256"], listed_file["bytes"]),
            )
            if listed.setdefault(file, facts) != facts:
                raise HeatproofError(f"Two manifests in {path} disagree on {file}: {AGAIN}.")
        keys[name] = recorded.get("key")
        read.append((name, recorded))
    for name in members.keys() - names - {ABOUT, CONFIG}:
        if listed.get(name) != (members[name].sha256, members[name].size):
            raise HeatproofError(f"No manifest in {path} lists {name} with the bytes that it has: {AGAIN}.")
    digests = {file: member.sha256 for file, member in members.items()}
    for name, recorded in read:
        for computed, stated in ((digests, recorded.get("input_sha256", {})), (keys, recorded.get("read", {}))):
            for file, value in stated.items():
                path_in_results = PurePosixPath(file)
                inside = str(path_in_results.relative_to(RESULTS)) if path_in_results.is_relative_to(RESULTS) else ""
                if computed.get(inside, value) != value:
                    raise HeatproofError(f"{name} in {path} was made from another {inside} than it has: {AGAIN}.")


def tables(paths: Sequence[str | Path]) -> list[UserTable]:
    """Return the tables of scores in bundles, results folders and table files.

    Raises
    ------
    HeatproofError
        If a table cannot be read, a table of a run differs from its manifest, or bundles cannot be compared. The
        message says why: two bundles have the same network, or differ in a dataset, a metric, the target or the drops.
    """
    user_tables: list[UserTable] = []
    abouts: dict[str, tuple[BundleRecord, bytes]] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = resolve_user_folder(path / RESULTS if (path / RESULTS).is_dir() else path)
            table = next((inside / name for name in RANKED if os.path.lexists(inside / name)), None)
            if table is None:
                raise HeatproofError(f"{path} has neither {' nor '.join(RANKED)}: name a run's results, or a table.")
            user_tables.append(UserTable(table, verified_bytes(table, most=MOST_BYTES)))
        elif path.suffix.lower() == ".zip":
            members, record = read(path, dict.fromkeys(RANKED, MOST_BYTES))
            name = next((name for name in RANKED if name in members), None)
            if name is None:
                raise HeatproofError(f"{path} has neither {' nor '.join(RANKED)}: {AGAIN}.")
            user_tables.append(UserTable(path / name, members[name].content))
            abouts[str(path)] = (record, members[name].content)
        elif FOLDER in path.absolute().parts and _is_of_a_run(path):
            user_tables.append(UserTable(path, verified_bytes(path, listed=False, most=MOST_BYTES)))
        else:
            user_tables.append(read_user_table(path))
    _require_comparable(abouts)
    return user_tables


def _is_of_a_run(table: Path) -> bool:
    """Return whether a table in a results folder is from a run: a file with the name of its manifest is not another."""
    manifest = table.with_suffix(".json")
    return manifest != table and (not manifest.exists() or read_checksummed(manifest) is not None)


def _require_comparable(abouts: Mapping[str, tuple[BundleRecord, bytes]]) -> None:
    seen: dict[tuple[str, str], tuple[str, Any]] = {}
    cases: dict[tuple[str, ...], str] = {}
    for path, (record, table) in abouts.items():
        for kind, what, value in _facts(record):
            before = seen.setdefault((kind, what), (path, value))
            if before[1] != value:
                raise HeatproofError(
                    f"{path} and {before[0]} cannot be ranked together: {kind} {what} is {_short(value)} in one and "
                    f"{_short(before[1])} in the other. Rank each by itself, or run both with the same."
                )
        with one_sentence_errors(f"The table in {path}", AGAIN):
            rows = csv.DictReader(io.StringIO(table.decode("utf-8-sig")))
            networks = {(row["dataset"], row["model"], row["weights"]) for row in rows}
        for case in networks:
            other = cases.setdefault(case, path)
            if other != path:
                raise HeatproofError(
                    f"{path} and {other} both have the network {' / '.join(case)}: they would count it twice. Give one "
                    "another name in its config, or leave one out."
                )


def _facts(record: BundleRecord) -> Iterator[tuple[str, str, Any]]:
    yield from (("the dataset", name, key) for name, key in record.datasets.items())
    yield from (("the metric", name, options) for name, options in record.config["metrics"].items())
    yield from (("the setting", name, record.config.get(name)) for name in ("target", "drops"))
    yield "the version of", "heatproof", record.heatproof


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "…"
