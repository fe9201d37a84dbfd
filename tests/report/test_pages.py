import base64
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from tiny_data import DATASET, NAMED

from heatproof.plan.paths import MAPS, REFERENCE_MAPS, SCORES
from heatproof.report.gallery import gallery
from heatproof.report.pages import pages


class Reader(HTMLParser):
    """Tags, pictures and texts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.pictures, self.texts, self.links = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        if tag == "img":
            self.pictures.append(given)
        self.links += [given[key] for key in ("src", "href") if key in given]

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


@pytest.fixture
def page(results, tmp_path):
    def method(name, explainer, index=0, transform="raw", reference=False):
        return {
            "method": name,
            "explainer": explainer,
            "index": index,
            "transform": transform,
            "reference": reference,
        }

    gallery(
        {
            "images": 3,
            "datasets": [{"dataset": DATASET, "networks": [["net", "finetuned", ["idsds"]]]}],
            "methods": [
                method("gradient", "gradient"),
                method("variance", "noise", index=1),
                method("cam", "cam"),
                method("random", "random", reference=True),
            ],
            "maps": MAPS,
            "reference_maps": REFERENCE_MAPS,
            "scores": SCORES,
            "output": "results/figures/maps.html",
            "manifest": "results/figures/maps.json",
            "key": "k",
        },
        {},
    )
    return (tmp_path / "results/figures/maps.html").read_text(encoding="utf-8")


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
    # Three images, each with three maps; the fourth method does not apply.
    assert len(reader.pictures) == 3 + 3 * 3
    for picture in reader.pictures:
        assert picture["alt"]
        Image.open(io.BytesIO(base64.b64decode(picture["src"].partition(",")[2]))).verify()


def test_gallery_shows_the_map_of_its_row(page, results):
    picture = next(p for p in Reader(page).pictures if p["alt"] == "variance, net finetuned")
    shades = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture["src"].partition(",")[2])))).astype(int)
    assert (np.sign(shades - 127) * np.sign(results["variance"][0]) >= 0).all()
    assert shades.shape == results["variance"][0].shape


def test_gallery_shows_scores_of_images(page):
    texts = Reader(page).texts
    assert texts.count("0.25") == 2
    # Not defined on the second image of two methods; never scored for `variance`.
    assert texts.count("undefined") == 2 + 3
    assert texts.count("−0.50") == 2


SCORES_TABLE = """dataset,model,weights,method,metric,score,ci_low,ci_high,n_images,n_undefined,rank,gap
tiny,net,finetuned,<i>good</i>,idsds,0.61234,0.5,0.7,9,1,1,
tiny,net,finetuned,poor,idsds,-0.0001,-0.1,0.1,10,0,2,
tiny,net,finetuned,flat,idsds,,,,0,10,,
tiny,net,finetuned,cam,idsds,,,,0,0,,no layer
"""
RANK_TABLE = """method,kappa,ci_low,ci_high,rank,n_cases,bradley_terry
<i>good</i>,1.5,1.25,1.75,1,2,2.5
poor,-1.5,,,2,1,-2.5
cam,,,,,0,
"""
ACCURACY_TABLE = """dataset,model,weights,grid,baseline,in_domain,\
top1_clean,top1_worst_patch,top5_clean,top5_worst_patch,n_images
tiny,net,finetuned,4,zeros,True,0.9844,0.5,1,0.75,256
"""


@pytest.fixture
def shown(tmp_path):
    tables = {}
    for name, text in (("idsds_table", SCORES_TABLE), ("meta_rank", RANK_TABLE), ("accuracy", ACCURACY_TABLE)):
        (tmp_path / f"{name}.csv").write_text(text)
        tables[name] = {"table": str(tmp_path / f"{name}.csv"), "page": str(tmp_path / f"{name}.html")}
    pages(
        {"tables": tables, "references": ["poor"], "level": 0.9, "manifest": str(tmp_path / "pages.json"), "key": "k"},
        {},
    )
    return {name: Reader((tmp_path / f"{name}.html").read_text(encoding="utf-8")) for name in tables}


def test_scores_page_tells_every_case(shown):
    reader = shown["idsds_table"]
    assert "i" not in reader.tags
    assert {"<i>good</i>", "0.612", "0.50 to 0.70, +0.61, 1 undefined", "0.000", "−0.10 to 0.10, +0.00"} <= set(
        reader.texts
    )
    assert {"undefined on all 10 images", "does not apply: no layer"} <= set(reader.texts)
    assert any("90%" in text for text in reader.texts)


def test_ranking_and_accuracy_pages(shown):
    assert {"1.500", "1.25 to 1.75", "−1.500"} <= set(shown["meta_rank"].texts)
    assert {"98.4%", "50.0%", "75.0%", "256"} <= set(shown["accuracy"].texts)
    for reader in shown.values():
        assert not reader.links
