"""Where the numbers of the index page come from: every manifest behind them, from the tables back to the images."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heatproof.manifest import read_piece, require_manifest

Spec = Mapping[str, Any]


def link(path: str, page: str) -> str:
    """Return the address of a file as seen from a page, by a relative path."""
    return quote(Path(os.path.relpath(path, Path(page).parent)).as_posix())


def manifests(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield what each manifest is of (``what``, ``of``), its ``path``, and the ``code`` digest where the plan has it.

    A store of several shards is yielded once, with the manifest of its first and the count ``shards``.
    """
    patterns, codes = spec["patterns"], spec["codes"]
    for name, path in spec["tables"].items():
        manifest = spec["manifests"].get(name)
        if manifest:
            yield {"what": "table", "of": path.rpartition("/")[2], "path": manifest, "code": codes.get(name)}
    shards = spec["shards"]
    for entry in spec["datasets"]:
        name = entry["dataset"]["name"]
        seen: set[str] = set()
        for network in entry["networks"]:
            where = {"dataset": name, "model": network["model"], "weights": network["weights"]}
            of = " · ".join(where.values())
            for metric in network["scored"]:
                path = patterns["scores"].format(**where, metric=metric)
                yield {"what": "scores", "of": f"{of} · {metric}", "path": path, "code": codes["scores"].get(metric)}
            for explainer, reference in {
                method["explainer"]: method["reference"] for method in spec["methods"]
            }.items():
                base = spec["reference_maps" if reference else "maps"].format(**where, explainer=explainer)
                if base not in seen:
                    seen.add(base)
                    yield _store("maps", f"{name if reference else of} · {explainer}", base, shards)
                for response in (spec.get("curves") or {"responses": []})["responses"]:
                    curves = spec["curves"]["store"].format(**where, explainer=explainer, response=response["name"])
                    yield _store("curves", f"{of} · {explainer} · {response['name']}", curves, shards)
            for grid, baseline in network["grids"]:
                base = spec["drops"].format(**where, grid=grid, baseline=baseline)
                yield _store("patch drops", f"{of} · grid {grid}, {baseline}", base, spec["drop_shards"])
            path = patterns["weights"].format(**where)
            yield {"what": "weights", "of": of, "path": path, "code": network["weights_code"]}
        yield {"what": "dataset", "of": name, "path": entry["dataset"]["manifest"]}


def _store(what: str, of: str, base: str, shards: int) -> dict[str, Any]:
    return {"what": what, "of": of, "path": f"{base}.0.json", "base": base, "shards": shards}


def provenance(spec: Spec) -> dict[str, Any]:
    """Return what the manifests say.

    Returns
    -------
    dict
        ``rows``: what, of, href, path, key, key of config slice and code, code digest ("" where it stands in the key
        alone), seed, images, device. ``versions``: each set of library versions with how many manifests have it.
    """
    rows: list[list[Any]] = []
    versions: dict[str, int] = {}
    for item in manifests(spec):
        made = read_piece(item["base"], 0) if "base" in item else _said(item["path"])
        made_by = made.get("made_by", {})
        seed = made_by.get("seed", spec["seed"])
        images = made["images"][1] if "images" in made else None
        of = item["of"] + (f" (first of {item['shards']} shards)" if item.get("shards", 1) > 1 else "")
        code = item.get("code") or made_by.get("code") or ""
        keys = [made.get("key") or "", made.get("spec_key") or ""]
        href = link(item["path"], spec["output"])
        rows.append([item["what"], of, href, item["path"], *keys, code, seed, images, made.get("device") or ""])
        if "versions" in made:
            told = json.dumps(made["versions"], sort_keys=True)
            versions[told] = versions.get(told, 0) + 1
    distinct = [{"libraries": json.loads(told), "count": count} for told, count in versions.items()]
    return {"rows": rows, "versions": distinct}


def _said(path: str) -> dict[str, Any]:
    return require_manifest(path) if os.path.exists(path) else {}
