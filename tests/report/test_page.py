"""The index page: its content, and its behaviour in a browser."""

import base64
import io
import json
import os
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tiny_data import COUNT, DATASET, IMAGES, NAMED

from heatproof.claims.judge import COLUMNS as CLAIM_COLUMNS
from heatproof.core.methods import MethodSpec, all_methods
from heatproof.core.provenance import Key
from heatproof.core.sequences import Perturbation
from heatproof.core.specs import Runtime, ShardRange
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.report.page import data as page_data
from heatproof.report.page.data import count_that_fits, low_is_good, mean_curve, title
from heatproof.report.page.page import group_claims
from heatproof.report.results import format_number
from heatproof.store.manifest import write_checksummed
from heatproof.store.reading import file_digest
from heatproof.store.writing import write_table
from heatproof.store.zarr_store import ArraySpec
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages._page import maps_of_dataset
from heatproof.workflow.stages._shards import Origin, open_shard
from heatproof.workflow.stages.checks import Checks
from heatproof.workflow.stages.report_page import PageCurve, PageDataset, PageNetwork, PageTable, ReportPage

RESULTS = Folder()
FILES = {"page": "results/report/index.html", "gallery": "results/figures/maps.html"}
PAGE, GALLERY = FILES.values()
SCORES_TABLE = "results/scores.csv"
LINKS = {"checks.page": "checks/index.html", "figure.idsds": "figures/idsds.svg", "overview.places_png": "places.png"}
LINKS |= {"reliability.consistency_png": "ranking/consistency.png", "similarity.figure": "similarity/similarity.png"}

EVIL = "<img src=x onerror=\"document.title='pwned'\">&amp;"
QUOTED = '"' + EVIL.replace('"', '""') + '"'
SCORES_TEXT = f"""dataset,model,weights,method,metric,score,ci_low,ci_high,n_images,n_undefined,rank,gap
tiny,net,finetuned,smooth,idsds,0.7,0.6,0.8,4,0,1,
tiny,net,finetuned,{QUOTED},idsds,0.61234,0.5,0.7,3,1,2,
tiny,net,finetuned,random,idsds,-0.1,-0.2,0.1,4,0,3,
tiny,net,finetuned,cam,idsds,,,,0,0,,it has <b>no</b> layer
tiny,net,finetuned,smooth,infidelity,3,2,4,4,0,1,
"""
RANK_TEXT = f"""method,kappa,ci_low,ci_high,rank,n_cases,n_networks,bradley_terry,in_best_set,note
smooth,1.5,1.25,1.75,1,2,3,2.5,True,
{QUOTED},0,-0.5,0.5,2,2,3,0,False,
random,-1.5,,,3,2,2,-2.5,False,2 networks: an interval needs 3
"""
APPLICABILITY_TEXT = """dataset,model,weights,explainer,images,figure,value,limit,gap
tiny,net,finetuned,cam,0,,,,it has <b>no</b> layer
tiny,net,finetuned,noise,4,completeness_error,0.000123,1,
"""
CLAIMS = [
    {"claim": "absolute_hurts", "place": "4.1", "sentence": "IG is better <i>raw</i>.", "verdict": "reproduced"}
    | {"value": 0.25, "ci_low": 0.2, "ci_high": 0.3, "q": 0.004, "published_verdict": "open", "seeds": 5},
    {"claim": "ranks_agree", "place": "3", "sentence": "Ranks agree.", "verdict": "not testable here"}
    | {"reason": f"because {EVIL}", "published_verdict": "not testable here", "published_value": 0.625},
    {"claim": "ranks_agree_again", "place": "3", "sentence": "Ranks agree.", "verdict": "not testable here"}
    | {"reason": "because of seeds", "published_verdict": "contradicted", "published_value": -0.125},
]
CLAIMS_TEXT = pd.DataFrame(CLAIMS, columns=CLAIM_COLUMNS).assign(paper="001").to_csv(index=False)
VERDICT_TEXT = """dataset,model,weights,metric,verdict,sentence,best,n_best,n_above_references,n_methods,n_images,\
images_needed,cannot_see
tiny,net,finetuned,idsds,found,<b>smooth</b> is the best of 2 methods.,smooth a b c d,5,1,2,4,3,Redundant evidence.
"""
ACCURACY_TABLE = """dataset,model,weights,grid,baseline,in_domain,\
top1_clean,top1_worst_patch,top5_clean,top5_worst_patch,n_images
tiny,net,finetuned,4,zeros,True,0.9844,0.5,1,0.75,256
"""
IN_DOMAIN_TABLE = """dataset,model,weights,grid,baseline,in_domain,layer,\
paired,paired_low,paired_high,auc,auc_low,auc_high,\
accuracy_intact,accuracy_deleted,confidence_intact,confidence_deleted,ece_intact,ece_deleted,n_images,gap
tiny,net,finetuned,4,zeros,True,layer1.0,0.831,0.76,0.883,0.712,0.65,0.775,,,,,,,256,
tiny,net,finetuned,4,zeros,True,output,,,,,,,0.911,0.822,0.933,0.844,0.012,0.037,256,
tiny,flat,finetuned,4,zeros,False,,,,,,,,,,,,,,0,no <b>kernel</b> runs
"""
SEQUENCE = Perturbation(mode="deletion", order="morf", steps=4).to_settings()


class Reader(HTMLParser):
    """The tags, images and texts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.images, self.texts, self.links = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        if tag == "img":
            self.images.append(values)
        self.links += [values[key] for key in ("src", "href") if key in values]

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


def described(name, *maps):
    return MethodSpec(
        name, name, maps=tuple((map_name, False) for map_name in maps or [name]), uses_model=name != "random"
    )


def page_table(path):
    return PageTable(path, "results/tables.json")


@pytest.fixture
def page_spec(results):
    """The spec of the stage for the small stores, with response curves and claims."""
    texts = {
        "idsds_table": SCORES_TEXT,
        "meta_rank": RANK_TEXT,
        "verdict": VERDICT_TEXT,
        "accuracy": ACCURACY_TABLE,
        "applicability": APPLICABILITY_TEXT,
        "in_domain": IN_DOMAIN_TABLE,
        "claims": CLAIMS_TEXT,
    }
    for name, text in texts.items():
        Path(f"results/{name}.csv").write_text(text, encoding="utf-8")
    write_checksummed(
        "results/tables.json",
        {
            "key": "tables-key",
            "config": "tables-config",
            "code": "tables-code",
            "versions": {"numpy": "2.1"},
            "files": [],
        },
    )
    table = Path("results/scores/tiny/net/finetuned/idsds.parquet")
    listed = {"file": table.name, "sha256": file_digest(table), "bytes": table.stat().st_size}
    scores = {"key": "scores-key", "config": "c", "code": "d", "versions": {"numpy": "2.1"}, "files": [listed]}
    write_checksummed("results/scores/tiny/net/finetuned/idsds.json", scores)
    split = open_dataset(DATASET).splits["evaluation"]
    quantities = ["changed", "pixels", "logit_label", "log_probability_label"]
    for explainer, methods in (("gradient", 1), ("noise", 2), ("random", 1), ("cam", 1)):
        shard = open_shard(
            ShardRange(0, COUNT, (0, IMAGES)),
            RESULTS.store("curves").format(
                dataset="tiny", model="net", weights="finetuned", explainer=explainer, response="d"
            ),
            Origin(Key("config", "code"), {"seed": 0}),
            split,
            {"response": ArraySpec(("method", "quantity", "point"), (methods, 4, 5), "float64", chunk_by_image=False)},
            coordinates={"method": [str(n) for n in range(methods)], "quantity": quantities},
        )
        if explainer == "cam":
            shard.publish("cpu", "no layer")
            continue
        steps = np.linspace(0, 1, 5)
        values = np.stack([steps * 256, np.full(5, 256.0), 2 - steps, np.log(1 - steps * 0.5)])
        shard.add(0, {"response": np.broadcast_to(values, (IMAGES, methods, 4, 5))}, 1.0, IMAGES)
        shard.publish("cpu")
    network = PageNetwork(
        where={"dataset": "tiny", "model": "net", "weights": "finetuned"},
        grids=[(4, "zeros")],
        displayed_metrics=["idsds"],
        drops=(4, "zeros", "logit"),
        scored_metrics=["idsds"],
    )
    return ReportPage(
        page_tables={name: page_table(f"results/{name}.csv") for name in texts},
        all_metrics=False,
        directions={"idsds": True, "infidelity": False},
        references=["random"],
        level=0.9,
        seed=7,
        scored_images=IMAGES,
        images=3,
        shards=1,
        drop_shards=1,
        datasets=[PageDataset(replace(DATASET, manifest="results/datasets/tiny.json"), [network])],
        explainers=[
            described("gradient", EVIL),
            described("noise", "smooth", "variance"),
            described("cam"),
            described("random"),
        ],
        curves=[PageCurve("d", ["tiny"], SEQUENCE, ["ids"], IMAGES, 1)],
        figures=[],
        upstream=Key("upstream", "upstream"),
        links={name: f"results/{path}" for name, path in LINKS.items()},
        templates="templates",
        files=FILES,
        manifest="results/report/index.json",
        key=Key("page-config", "page-code"),
    )


def written(page_spec, path=PAGE):
    page_spec.run(Runtime())
    return Path(path).read_text(encoding="utf-8")


def data_of(page, name):
    """Return the data that the script of the page reads from an element."""
    return json.loads(page.partition(f'<script type="application/json" id="{name}">')[2].partition("</script>")[0])


def test_the_page_needs_no_other_file_and_escapes_names(page_spec):
    page = written(page_spec)
    reader = Reader(page)
    assert not any(link.startswith(("http", "//", "file:", "/")) for link in reader.links)
    assert EVIL in reader.texts
    assert not {"b", "i", "img"} & set(reader.tags)
    # Four scripts with data, the library, and the script of the page.
    assert reader.tags.count("script") == 6
    assert "it has <b>no</b> layer" in reader.texts


def test_sequences_that_no_metric_reads_have_no_section_and_no_data(page_spec):
    # Otherwise the script fails at the first network of an empty list and fills no table after it.
    html = written(replace(page_spec, curves=[replace(page_spec.curves[0], datasets=[], metrics=[])]))
    assert 'id="curves-data"' not in html
    assert 'id="curves"' not in html
    assert 'id="curves-data"' in written(page_spec)


@pytest.mark.parametrize(
    ("task", "rows", "words"),
    [
        ("multiclass", "label", " images with a 90%"),
        ("multilabel", "label", " labels of images (those of one image count as one) with a 90%"),
        ("multilabel", "picture", " images with a 90%"),
        ("multilabel", "distinct", " images with a 90%"),
        ("regression", "label", " numbers of images (those of one image count as one) with a 90%"),
    ],
)
def test_the_page_names_the_rows_that_are_counted(page_spec, task, rows, words):
    entry = replace(page_spec.datasets[0], dataset=replace(page_spec.datasets[0].dataset, task=task, rows=rows))
    text = " ".join(written(replace(page_spec, images=0, datasets=[entry])).split())
    assert f"Scores are means over {IMAGES}{words}" in text


def test_outputs_on_deleted_images_are_mentioned_only_if_there_are_any(page_spec):
    html = written(page_spec)
    assert 'id="calibration-table"' in html
    assert "so compare accuracy, confidence and calibration" in html
    table = pd.read_csv("results/in_domain.csv")
    table[table["layer"] != "output"].to_csv("results/in_domain.csv", index=False)
    tables_again = {**page_spec.page_tables, "in_domain": page_table("results/in_domain.csv")}
    html = written(replace(page_spec, page_tables=tables_again))
    assert 'id="in-domain-table"' in html
    assert 'id="calibration-table"' not in html
    assert "so compare accuracy, confidence and calibration" not in html


def test_the_verdict_is_first_followed_by_its_reliability(page_spec):
    page_spec.run(Runtime())
    html = Path(PAGE).read_text(encoding="utf-8")
    order = ["found", "scores", "maps", "ranking", "models", "provenance"]
    places = [html.index(f'<section id="{name}"') for name in order]
    assert places == sorted(places)


def test_downloads_are_the_tables(page_spec):
    links = [link for link in Reader(written(page_spec)).links if link.startswith("data:text/csv")]
    contents = {base64.b64decode(link.partition(",")[2]) for link in links}
    assert contents == {Path(facts.path).read_bytes() for facts in page_spec.page_tables.values()}


def test_scores_have_their_case_and_manifest(page_spec):
    scores = data_of(written(page_spec), "scores-data")
    case, other = scores["cases"]
    assert (case["href"], case["key"], case["higher"]) == (
        "../scores/tiny/net/finetuned/idsds.json",
        "scores-key",
        True,
    )
    assert (other["higher"], other["range"]) == (False, [0, 4])
    assert scores["rows"][1] == [0, EVIL, 0.61234, 0.5, 0.7, 0.71234, 2, 3, 1, ""]
    assert scores["rows"][3] == [0, "cam", None, None, None, None, None, 0, 0, "it has <b>no</b> layer"]


def test_maps_have_scores_drops_and_gaps(page_spec):
    maps = data_of(written(page_spec), "maps-data")["datasets"][0]
    assert np.shape(maps["networks"][0]["drops"]["values"]) == (3, 16)
    cells = maps["cells"][0][0]
    assert cells[3] == {"gap": "it has <b>no</b> layer"}
    assert [cell["scores"] for cell in (cells[1], cells[2])] == [[0.25], [None]]
    assert maps["cells"][1][0][1]["scores"] == [None]
    assert maps["left_out"] == [0, 0]


def test_every_manifest_is_in_the_provenance(page_spec):
    provenance = data_of(written(page_spec), "provenance-data")
    by_path = {row[3]: row for row in provenance["rows"]}
    assert by_path["results/tables.json"][4:8] == ["tables-key", "tables-config", "tables-code", 7]
    assert by_path["results/scores/tiny/net/finetuned/idsds.json"][4:7] == ["scores-key", "c", "d"]
    # Two explainers, one that is not applicable, one reference, and the curves of these four.
    assert [row[0] for row in provenance["rows"]].count("maps") == 4
    assert [row[0] for row in provenance["rows"]].count("curves") == 4
    # The manifests of the seven tables, and of the scores.
    assert {"libraries": {"numpy": "2.1"}, "count": 8} in provenance["versions"]


def test_the_page_has_claims_curves_and_maps_only_if_the_spec_has_them(page_spec):
    full = written(page_spec)
    assert all(f'id="{name}"' in full for name in ("claims", "curves", "maps"))
    tables = {name: table for name, table in page_spec.page_tables.items() if name != "claims"}
    bare = replace(page_spec, images=0, curves=[], page_tables=tables)
    assert GALLERY.rpartition("/")[2] in full
    Path(GALLERY).unlink()
    page = written(bare)
    assert not any(f'id="{name}"' in page for name in ("claims", "curves", "maps"))
    assert "claims.csv" not in page
    assert GALLERY.rpartition("/")[2] not in page
    assert not Path(GALLERY).exists()


def test_tested_claims_come_first_and_others_are_folded(page_spec):
    page = written(page_spec)
    table = page[page.index('id="claims-table"') : page.index('id="claims-untested"')]
    folded = page.partition('id="claims-untested"')[2].partition("</details>")[0]
    assert table.index("absolute_hurts") < table.index("ranks_agree_again"), "those of the run first"
    assert "trainings per side: 5" in table
    assert '<th scope="row">ranks_agree</th>' not in table
    assert "Claims that neither can test, by reason: 1" in folded
    assert "ranks_agree</strong>" in folded
    assert "0.62" in folded


def test_reasons_of_one_kind_are_grouped():
    reasons = ["the config has no rise", "the config has none of a, b", "no two networks differ only in bias", "other"]
    row = {"verdict": "not testable here", "published_verdict": "not testable here"}
    groups = group_claims(pd.DataFrame([{**row, "reason": f"because {reason}"} for reason in reasons]))
    assert [len(rows) for rows in groups["untested"].values()] == [2, 1, 1]
    assert [claim["lack"] for claim in groups["untested"]["a method or a network is not in the config"]] == reasons[:2]
    assert groups["untested"]["other"][0]["lack"] == ""


def test_protocol_checks_are_on_the_page_if_they_were_run(page_spec):
    assert 'id="checks"' not in written(page_spec)
    path = Path(Checks.paths(RESULTS)["captions"])
    path.parent.mkdir()
    path.write_text("factor,figure,shows,conclusion\ngrid,grid.png,Ranks by P.,P < 16 flips them.\n", encoding="utf-8")
    more = replace(page_spec, page_tables={**page_spec.page_tables, "captions": page_table(str(path))})
    page = written(more)
    assert 'id="checks"' in page
    assert "P &lt; 16 flips them." in page
    assert 'href="../checks/index.html"' in page


def test_a_missing_store_is_one_sentence(page_spec):
    Path(RESULTS.maps.format(dataset="tiny", model="net", weights="finetuned", explainer="noise") + ".0.json").unlink()
    with pytest.raises(HeatproofError, match=r"noise\.0\.json is missing: run your snakemake"):
        page_spec.run(Runtime())


# ---- scores side by side, ranking and accuracy -----------------------------------------------------------------------

SIDE_BY_SIDE = """dataset,model,weights,method,metric,score,ci_low,ci_high,n_images,n_undefined,rank,gap
tiny,net,finetuned,<i>good</i>,idsds,0.61234,0.5,0.7,9,1,1,
tiny,net,finetuned,poor,idsds,-0.0001,-0.1,0.1,10,0,2,
tiny,net,finetuned,flat,idsds,,,,0,10,,
tiny,net,finetuned,cam,idsds,,,,0,0,,no layer
"""
RANKS = """method,kappa,ci_low,ci_high,rank,n_cases,n_networks,bradley_terry,in_best_set,note
<i>good</i>,1.5,1.25,1.75,1,2,3,2.5,True,
poor,-1.5,,,2,1,1,-2.5,,1 network: an interval needs 3
cam,,,,,0,0,,False,
"""


@pytest.fixture
def side_by_side(page_spec):
    Path("results/idsds_table.csv").write_text(SIDE_BY_SIDE)
    Path("results/meta_rank.csv").write_text(RANKS)
    return Reader(written(replace(page_spec, references=["poor"], images=0, curves=[])))


def test_scores_side_by_side_have_every_case(side_by_side):
    assert "i" not in side_by_side.tags
    assert {"<i>good</i>", "0.612", "0.50 to 0.70, +0.61, 1 undefined", "0.000", "−0.10 to 0.10, +0.00"} <= set(
        side_by_side.texts
    )
    assert {"undefined on all 10 images", "not applicable: no layer"} <= set(side_by_side.texts)
    assert any("90%" in text for text in side_by_side.texts)


def test_the_page_has_ranking_and_accuracy(side_by_side):
    assert {"1.500", "1.250", "1.750", "−1.500", "✓", "1 network: an interval needs 3"} <= set(side_by_side.texts)
    assert {"98.4%", "50.0%", "75.0%", "256"} <= set(side_by_side.texts)


@pytest.mark.parametrize(
    ("independent", "words"), [("case", "Every test case counts once"), ("network", "A network counts")]
)
def test_the_leaderboard_is_on_the_page_if_the_config_has_one(page_spec, independent, words):
    assert 'id="leaderboard"' not in written(page_spec)
    Path("results/leaderboard.csv").write_text(RANK_TEXT.replace("smooth,1.5", "smooth,7.75"), encoding="utf-8")
    tables = {**page_spec.page_tables, "leaderboard": page_table("results/leaderboard.csv")}
    page = written(replace(page_spec, page_tables=tables, independent=independent, images=0, curves=[]))
    part = page.partition('<section id="leaderboard"')[2].partition("</section>")[0]
    assert words in part
    assert "7.750" in part
    assert EVIL not in part
    assert "leaderboard.csv" in part


def test_methods_without_an_interval_have_the_verdict_open(side_by_side):
    row = side_by_side.texts[: side_by_side.texts.index("1 network: an interval needs 3")][-4:]
    assert row[0] == "open", row


def test_the_ranking_is_of_the_test_cases_that_the_page_shows(page_spec):
    """With all metrics these are the cases of scores.csv, and the ranking is that of `heatproof rank` on this file."""
    Path("results/ranking.csv").write_text(RANKS.replace("poor,-1.5", "poor,-4.25"))
    tables = {**page_spec.page_tables, "ranking": page_table("results/ranking.csv")}
    texts = Reader(written(replace(page_spec, page_tables=tables, images=0, curves=[]))).texts
    assert "−4.250" in texts
    assert "1.500" in texts
    # The row also has κ over the metrics of patch drops only.
    assert {"κ, all metrics", "κ, patch drops"} <= set(texts)


def test_the_verdict_has_all_methods_of_the_set_and_its_limits(side_by_side):
    assert "Set of the best, highest mean first: smooth, a, b, c, d." in side_by_side.texts
    assert "Redundant evidence." in side_by_side.texts
    assert "κ, patch drops" in side_by_side.texts


def test_layers_and_outputs_have_separate_tables(side_by_side):
    assert {"layer1.0", "0.831", "0.760", "0.883", "0.712", "0.650", "0.775"} <= set(side_by_side.texts)
    assert "no <b>kernel</b> runs" in side_by_side.texts
    assert {"91.1%", "82.2%", "93.3%", "84.4%", "0.012", "0.037"} <= set(side_by_side.texts)
    assert "output" not in side_by_side.texts


# ---- the page of maps ------------------------------------------------------------------------------------------------


@pytest.fixture
def page(page_spec):
    explainers = [
        described("gradient"),
        described("noise", "smooth", "variance"),
        described("cam"),
        described("random"),
    ]
    return written(replace(page_spec, explainers=explainers, curves=[]), GALLERY)


def test_gallery_escapes_names(page):
    reader = Reader(page)
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert NAMED in reader.texts
    assert any("<script>alert(1)</script>" in text for text in reader.texts)
    assert any("it has <b>no</b> layer" in text for text in reader.texts)


def test_gallery_needs_no_other_file(page):
    reader = Reader(page)
    assert all(link.startswith("data:image/png;base64,") for link in reader.links)
    # Three images, each with four maps; the fifth method is not applicable.
    assert len(reader.images) == 3 + 3 * 4
    for image in reader.images:
        assert image["alt"]
        Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))).verify()


def test_gallery_shows_the_map_of_its_row(page, results):
    image = next(p for p in Reader(page).images if p["alt"] == "variance, net finetuned")
    shades = np.asarray(Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))).astype(int)
    assert (np.sign(shades - 127) * np.sign(results["variance"][0]) >= 0).all()
    assert shades.shape == results["variance"][0].shape


def test_gallery_shows_scores_of_images(page):
    texts = Reader(page).texts
    assert texts.count("0.25") == 3
    # Undefined on the second image for three methods; `variance` has no scores.
    assert texts.count("undefined") == 3 + 3
    assert texts.count("−0.50") == 3


# ---- numbers and curves ----------------------------------------------------------------------------------------------


def test_the_mean_curve_interpolates_and_does_not_extrapolate():
    changed = np.array([[0.0, 0.5, 1.0], [0.0, 0.25, 0.75]])
    values = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    mean = mean_curve(changed, values, np.array([0.0, 0.25, 0.5, 1.0]))
    np.testing.assert_allclose(mean, [1.0, 0.75, 0.25, np.nan])


@pytest.mark.parametrize(
    ("mode", "order", "low"), [("deletion", "morf", True), ("deletion", "lerf", False), ("insertion", "morf", False)]
)
def test_the_direction_of_a_curve_follows_from_mode_and_order(mode, order, low):
    settings = Perturbation(mode=mode, order=order, steps=4).to_settings()
    assert low_is_good(settings) is low
    assert title(settings).startswith(mode)


def test_many_maps_are_reduced_to_a_number_that_fits():
    assert count_that_fits(4, 6, 26, (32, 32)) == (4, 6)
    images, networks = count_that_fits(50, 100, 200, (224, 224))
    assert images == 1
    assert 0 < networks < 100
    assert images * networks * 200 * 96 * 96 < 8_000_000


@pytest.mark.parametrize(("value", "text"), [("0.0004", "0.000"), ("-0.25", "−0.250"), ("", ""), ("a", "a")])
def test_numbers_are_formatted(value, text):
    assert format_number(value) == text


def test_the_plan_has_other_metrics_only_if_requested():
    plans = [make_plan(merge(default_config(), {"report": {"all_metrics": on}})) for on in (False, True)]
    quick, page = (Graph(plan).job("report_page", {}) for plan in plans)
    assert SCORES_TABLE not in quick.inputs
    assert quick.spec.curves == []
    assert SCORES_TABLE in page.inputs
    full, spec = plans[1], page.spec
    assert len(spec.curves) == sum(r.kind == "curves" for r in full.method_responses.values())
    assert set(spec.directions) == set(full.metric_names())
    # The file is small.
    assert len(json.dumps(page.spec_json)) < 100_000


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        # Chromium has no sandbox for root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, page_spec):
    """The page opened from disk, offline. It must not send requests or write to the console."""
    page_spec.run(Runtime())
    console, requests = [], []
    context = browser.new_context(offline=True)
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(Path(PAGE).resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    # Chromium ignores keys that are pressed before its first paint.
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    yield page
    assert page.title() == "Which attribution method can be trusted"
    assert console == []
    assert [url for url in requests[1:] if not url.startswith(("data:", "blob:"))] == []
    context.close()


def names(page):
    return page.locator("#scores-table tbody th[scope=row]").all_inner_texts()


@pytest.mark.slow
def test_browser_sorts_with_the_keyboard_and_sets_aria_sort(opened):
    from playwright.sync_api import expect

    assert names(opened)[:3] == ["smooth", EVIL, "random"]
    head = opened.locator("#scores-table thead th", has_text="score").first
    for order, first in (("ascending", "random"), ("descending", "smooth")):
        head.get_by_role("button").press("Enter")
        expect(head).to_have_attribute("aria-sort", order)
        assert names(opened)[0] == first
        # Methods without a score are last in both directions.
        assert names(opened)[-1] == "cam"


@pytest.mark.slow
def test_browser_filters_by_any_name(opened):
    opened.locator("#scores-method").select_option(EVIL)
    assert names(opened) == [EVIL]
    opened.locator("#scores-method").select_option("")
    opened.locator("#scores-metric").select_option("infidelity")
    assert names(opened) == ["smooth"]
    opened.locator("#scores-metric").select_option("")
    opened.get_by_label("only rows with a score").check()
    assert "cam" not in names(opened)
    opened.locator("#scores input[type=search]").fill("onerror")
    assert names(opened) == [EVIL]


@pytest.mark.slow
def test_browser_opens_a_map_with_its_drops(opened):
    assert opened.locator("#maps-shown li").count() == 6
    assert opened.locator("#maps-shown .gap").inner_text().startswith("cam\n")
    # Sixteen patches on the image and on each of the four maps.
    assert opened.locator("#maps-shown circle:not(.halo)").count() == 16 * 5
    opened.get_by_role("checkbox", name="patch drops").uncheck()
    assert opened.locator("#maps-shown circle").count() == 0
    opened.locator("#maps-order").select_option("score")
    opened.locator("#maps-shown button").first.press("Enter")
    assert opened.locator("#maps-large").is_visible()
    assert opened.locator("#maps-large img").count() == 2
    opened.keyboard.press("Escape")
    assert not opened.locator("#maps-large").is_visible()


@pytest.fixture
def sortable(page_spec):
    """The spec of the stage if maps can be sorted by a metric of which lower is better."""
    (dataset,) = page_spec.datasets
    (network,) = dataset.networks
    where = {**network.where, "metric": "infidelity"}
    rows = [
        {**network.where, "metric": "infidelity", "method": name, "image": image, "class": 0, "score": score}
        for name, score in (("smooth", 3.0), ("random", 1.0), ("variance", 2.0))
        for image in open_dataset(DATASET).splits["evaluation"].ids
    ]
    write_table(pd.DataFrame(rows), RESULTS.scores.format(**where))
    sortable_network = replace(network, sort_metrics=["infidelity"], scored_metrics=["idsds"])
    return replace(page_spec, datasets=[replace(dataset, networks=[sortable_network])])


def test_maps_sort_by_every_metric_that_scores_an_image(sortable):
    """Scores are grouped by image and method; a metric without scores of images is not offered."""
    data = maps_of_dataset(*sortable.datasets, sortable, sortable.explainers)
    names = [method.name for method in all_methods(sortable.explainers)]
    for of_image in data["sorts"]:
        ((only,),) = of_image
        assert (only["metric"], only["higher"]) == ("infidelity", False)
        score_of = {"smooth": 3.0, "random": 1.0, "variance": 2.0}
        assert dict(zip(names, only["scores"], strict=True)) == {name: score_of.get(name) for name in names}
    (fitted,) = page_data.fit_to_page([data], len(names))
    assert len(fitted["sorts"]) == len(fitted["cells"])


@pytest.mark.slow
def test_browser_sorts_maps_by_any_metric(browser, sortable):
    sortable.run(Runtime())
    opened = browser.new_page()
    opened.goto(Path(PAGE).resolve().as_uri())
    opened.wait_for_selector("html[data-ready]", state="attached")
    order = opened.locator("#maps-order")
    labels = ["as in the config", "best idsds first", "best infidelity first"]
    assert order.locator("option").all_inner_texts() == labels
    order.select_option(label="best infidelity first")
    names_of_maps = opened.locator("#maps-shown li .name").all_inner_texts()[1:]
    # Lower is better; then undefined scores, and last a method that is not applicable.
    assert names_of_maps == ["random", "variance", "smooth", EVIL, "cam"]
    assert "infidelity 1.00" in opened.locator("#maps-shown li").nth(1).inner_text()
    opened.close()


@pytest.mark.slow
def test_browser_draws_curves(opened):
    assert opened.locator("#curves-plot path").count() == 4
    rows = opened.locator("#curves-list tbody tr")
    assert rows.count() == 5
    # A straight line from 1 to one half; a method that is not applicable comes last.
    assert "0.750" in rows.first.inner_text()
    assert "not applicable" in rows.last.inner_text()
    opened.locator("#curves-output").select_option("logit")
    assert "1.500" in rows.first.inner_text()
    coloured = opened.locator("#curves-plot path:not(.other)").count()
    opened.get_by_label("highlight variance").check()
    assert opened.locator("#curves-plot path:not(.other)").count() == coloured + 1


@pytest.mark.slow
def test_all_controls_have_accessible_names(opened):
    for table in opened.locator("main table").all():
        assert table.locator("caption").count() == 1
    unnamed = opened.evaluate(
        """() => [...document.querySelectorAll("main select, main input, main button")].filter(e =>
          !(e.labels && e.labels.length) && !e.ariaLabel && !e.textContent.trim()).length"""
    )
    assert unnamed == 0
    # Only elements that scroll are wider than a phone.
    opened.set_viewport_size({"width": 360, "height": 700})
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light")])
def test_axe_finds_nothing_serious(opened, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": width, "height": 800})
    violations = axe.Axe().run(opened).response["violations"]
    assert [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ] == []
