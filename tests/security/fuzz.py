"""Change untrusted inputs at random, open them, and count the outcomes.

    python tests/security/fuzz.py [--cases 10000] [--seed 0] [--only KIND] [--csv FILE]

A case is *refused* with one sentence, *same* if the content that is read is unchanged, and *other* if other content is
read from a file without a digest: an image file, a checkpoint, a table or a config. It is *silent* if a store or a
manifest gives other values although it has digests, a *traceback* if any other exception is raised, and *code* if it
started a program, opened a connection or loaded a pickle. The exit status is 1 for any of the last three.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from heatproof.errors import HeatproofError
from heatproof.models import saved_by_torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

NASTY: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**63,
        10**30,
        -(10**9),
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        float("-inf"),
    ),
    *("", "x", "../x", "/etc/passwd", "a\nb", "\x1b[31m", "=1+1", "\u202e", "é" * 300, "1e-3", "os:system", "a\0b"),
    *([], {}, [None], [[]], {"x": 1}, [{"a": 1}, {"a": 2}], {"": ""}, list(range(50))),
]
STARTS_CODE = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
)
ROOM = 3 * 2**30


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return changed bytes: flipped bits, a cut, zeros, a part that is repeated or moved, or an insertion."""
    changed = bytearray(content)
    start = draw.randrange(len(changed))
    stop = min(len(changed), start + draw.choice([1, 4, 16, 200]))
    how = draw.randrange(7)
    if how == 0:
        for _ in range(draw.choice([1, 1, 1, 3, 30])):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif how == 1:
        del changed[start:]
    elif how == 2:
        changed[start:stop] = bytes(stop - start)
    elif how == 3:
        changed[start:start] = changed[start:stop]
    elif how == 4:
        del changed[start:stop]
    elif how == 5:
        changed[start:start] = draw.randbytes(draw.choice([1, 8, 100]))
    else:
        changed[start:stop] = draw.randbytes(stop - start)
    return bytes(changed)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all parts of a nested value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [way for key, item in inside for way in places(item, (*path, key))]


def mutate_tree(value: Any, draw: random.Random) -> Any:
    """Return a nested value with a part that is replaced, removed, renamed or added."""
    changed = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 2])):
        ways = places(changed)
        if not ways:
            return draw.choice(NASTY)
        *way, last = draw.choice(ways)
        parent = changed
        for key in way:
            parent = parent[key]
        how = draw.randrange(4)
        if how == 0 or isinstance(parent, list):
            parent[last] = copy.deepcopy(draw.choice(NASTY))
        elif how == 1:
            del parent[last]
        elif how == 2:
            parent[draw.choice(["x", "", "é", f"{last}_", "__class__"])] = parent.pop(last)
        else:
            parent[draw.choice(["more", "consolidated_metadata", "files", "key"])] = copy.deepcopy(draw.choice(NASTY))
    return changed


# ---- kinds of inputs -------------------------------------------------------------------------------------------------

Case = Callable[[random.Random], str]


def stores(folder: Path) -> dict[str, Case]:
    """Return cases of stores: changed bytes of any file, and changed metadata with matching digests."""
    from test_received_stores import ARRAYS, make

    from heatproof.core.provenance import digest
    from heatproof.store.reading import file_digest
    from heatproof.store.zarr_store import describe_store, read

    store = make(folder / "results/maps/s.zarr")
    files = [path for path in [*store.rglob("*"), *store.parent.glob("*.json")] if path.is_file()]

    def read_everything() -> list[Any]:
        description = describe_store(store)
        arrays = [read(store, name, 0, 6).tobytes() for name in ARRAYS]
        return [
            description["image_ids"],
            description["labels"].tolist(),
            description["coordinates"],
            description["attributes"]["key"],
            *arrays,
        ]

    expected = read_everything()

    def bytes_of_a_store(draw: random.Random) -> str:
        path = draw.choice(files)
        content = path.read_bytes()
        try:
            path.write_bytes(mutate_bytes(content, draw))
            return "same" if read_everything() == expected else "silent"
        finally:
            path.write_bytes(content)

    def metadata_with_right_digests(draw: random.Random) -> str:
        path = draw.choice([file for file in files if file.name == "zarr.json"])
        group, original_group, original = store / "zarr.json", (store / "zarr.json").read_bytes(), path.read_bytes()
        try:
            path.write_text(json.dumps(mutate_tree(json.loads(original), draw)))
            metadata = json.loads(group.read_text())
            attributes = metadata.get("attributes") if isinstance(metadata, dict) else None
            if isinstance(attributes, dict) and isinstance(attributes.get("files"), dict):
                attributes.pop("seal", None)
                if path != group:
                    attributes["files"][path.relative_to(store).as_posix()] = file_digest(path)
                attributes["seal"] = digest(attributes)
                group.write_text(json.dumps(metadata))
            return "same" if read_everything() == expected else "other"
        finally:
            path.write_bytes(original)
            group.write_bytes(original_group)

    return {"bytes of a store": bytes_of_a_store, "metadata with right digests": metadata_with_right_digests}


def manifests(folder: Path) -> dict[str, Case]:
    from heatproof.core.provenance import Key
    from heatproof.store.manifest import (
        read_if_intact,
        read_shard,
        require_manifest,
        touch,
        write_checksummed,
        write_manifest,
    )

    folder = folder / "results/scores"
    folder.mkdir(parents=True)
    (folder / "m.bin").write_bytes(b"made")
    path = folder / "m.json"
    write_manifest(path, [folder / "m.bin"], spec_key=Key("c", "s"), key="k", gap=None, images=[0, 3])
    content, expected = path.read_bytes(), require_manifest(path)

    def read_everything() -> str:
        try:
            touch(path)
            read_if_intact(path, "k")
            return "same" if require_manifest(path) == expected else "silent"
        finally:
            path.write_bytes(content)

    def bytes_of_a_manifest(draw: random.Random) -> str:
        path.write_bytes(mutate_bytes(content, draw))
        return read_everything()

    def manifest_with_a_right_digest(draw: random.Random) -> str:
        changed = mutate_tree(expected, draw)
        if not isinstance(changed, dict):
            return "same"
        write_checksummed(path, changed)
        (folder / "m.0.json").write_bytes(path.read_bytes())
        read_shard(str(folder / "m"), 0)
        return "other" if read_everything() == "silent" else "same"

    return {"bytes of a manifest": bytes_of_a_manifest, "manifest with a right digest": manifest_with_a_right_digest}


def configs(folder: Path) -> dict[str, Case]:
    from heatproof.workflow.config.files import default_config, merge, read_config
    from heatproof.workflow.plan.graph import Graph
    from heatproof.workflow.plan.validate import make_plan

    texts = [(HERE.parents[1] / f"config/{name}.yaml").read_bytes() for name in ("quick", "config", "parts")]
    trees = [yaml.safe_load(text) for text in texts]
    path = folder / "c.yaml"

    def config(draw: random.Random) -> str:
        graph = Graph(make_plan(merge(default_config(), mutate_tree(draw.choice(trees), draw))))
        # The complete graph takes long; the first jobs show whether specs can be made.
        for _, job in zip(range(20), graph.jobs(), strict=False):
            json.dumps(job.spec_json, allow_nan=False)
        return "other"

    def text_of_a_config(draw: random.Random) -> str:
        path.write_bytes(mutate_bytes(draw.choice(texts), draw))
        make_plan(read_config(path))
        return "other"

    return {"config": config, "text of a config": text_of_a_config}


def images(folder: Path) -> dict[str, Case]:
    from PIL import Image

    from heatproof.datasets.image_files import read_image

    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    encoded = {}
    for ending, options in {"png": {}, "jpeg": {}, "gif": {}, "webp": {}, "bmp": {}, "tiff": {}, "ppm": {}}.items():
        into = io.BytesIO()
        Image.fromarray(pixels).save(into, ending, **options)
        encoded[ending] = into.getvalue()

    def image_file(draw: random.Random) -> str:
        ending = draw.choice(list(encoded))
        path = folder / f"p.{draw.choice([ending, 'png', 'jpg'])}"
        path.write_bytes(mutate_bytes(encoded[ending], draw))
        assert np.isfinite(read_image(path, 24, 28)).all()
        return "other"

    return {"picture": image_file}


def checkpoints(folder: Path) -> dict[str, Case]:
    import torch
    from safetensors.torch import save

    from heatproof.models.weights_file import read_state

    state = {"a.weight": torch.arange(12.0).reshape(3, 4), "a.bias": torch.zeros(3)}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], momentum=0.9).state_dict()
    further = {"optimizer": optimizer, "epoch": 3, "names": ["a", "é"], "sizes": torch.Size([2]), "more": {1, 2.5}}
    contents = [save(state)]
    for old in (False, True):
        into = io.BytesIO()
        torch.save({"state_dict": state, **further}, into, _use_new_zipfile_serialization=not old)
        contents.append(into.getvalue())

    def checkpoint(draw: random.Random) -> str:
        number = draw.randrange(len(contents))
        path = folder / ("c.safetensors" if number == 0 else "c.pth")
        path.write_bytes(mutate_bytes(contents[number], draw))
        read_state(path, str(path))
        return "other"

    with zipfile.ZipFile(io.BytesIO(contents[1])) as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}

    def steps_of_a_checkpoint(draw: random.Random) -> str:
        path = folder / "s.pth"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, mutate_bytes(content, draw) if name.endswith("data.pkl") else content)
        read_state(path, str(path))
        return "other"

    return {"checkpoint": checkpoint, "steps of a checkpoint": steps_of_a_checkpoint}


def score_files(folder: Path) -> dict[str, Case]:
    from heatproof.report.tables.score_import import read_scores

    rows = [f"net,{method},m,{image},{score},true" for method, score in (("a", 0.5), ("b", "nan")) for image in "xyz"]
    content = ("\n".join(["model,method,metric,image,score,higher_is_better", *rows]) + "\n").encode()
    path = folder / "scores.csv"

    def table_of_scores(draw: random.Random) -> str:
        path.write_bytes(mutate_bytes(content, draw))
        read_scores([path])
        return "other"

    return {"table of scores": table_of_scores}


GROUPS = (stores, manifests, configs, images, checkpoints, score_files)
OUTCOMES = ("refused", "same", "other", "silent", "traceback", "code")
BAD = ("silent", "traceback", "code")


def run(cases: int, seed: int, only: str = "") -> dict[str, Counter[str]]:
    """Return the outcomes of the cases of each kind; forbidden outcomes are printed."""
    started: list[str] = []
    active = [False]

    def hook(event: str, arguments: Any) -> None:
        if active[0] and event in STARTS_CODE:
            started.append(f"{event} {arguments!r:.200}")

    sys.addaudithook(hook)
    # The audit hook would not see other processes.
    saved_by_torch._in_bounds = lambda read_everything, memory: read_everything()
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        kinds = {}
        for group in GROUPS:
            folder = Path(temporary) / group.__name__
            folder.mkdir()
            kinds |= group(folder)
        kinds = {name: kind for name, kind in kinds.items() if only in name}
        limit = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        # Requests for far more memory than these files justify fail.
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, limit[1]))
        for number in range(cases):
            name = list(kinds)[number % len(kinds)]
            started.clear()
            active[0] = True
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outcome = kinds[name](random.Random(f"{seed} {number} {name}"))
            except HeatproofError as error:
                outcome = "refused" if "\n" not in str(error) else "traceback"
            except Exception:
                outcome = "traceback"
                print(f"{number} {name}:", *traceback.format_exc().splitlines()[-7:], sep="\n    ", flush=True)
            active[0] = False
            if started:
                outcome = "code"
            if outcome in ("silent", "code"):
                print(f"{number} {name}: {outcome} {started[:1]}", flush=True)
            table.setdefault(name, Counter())[outcome] += 1
        resource.setrlimit(resource.RLIMIT_AS, limit)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a kind's name")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    table = run(options.cases, options.seed, options.only)
    table["all"] = sum(table.values(), Counter())
    rows = [("kind", "cases", *OUTCOMES)]
    rows += [(name, str(of.total()), *(str(of[outcome]) for outcome in OUTCOMES)) for name, of in table.items()]
    for row in rows:
        print(f"{row[0]:<30}", *(f"{cell:>10}" for cell in row[1:]))
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s")
    if options.csv:
        options.csv.write_text("".join(",".join(row) + "\n" for row in rows))
    return int(any(table["all"][outcome] for outcome in BAD))


if __name__ == "__main__":
    sys.exit(main())
