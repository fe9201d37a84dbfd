"""`heatproof init` finds the table of labels and writes the options to read it, or reports which names it needs."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError
from heatproof.workflow.check import check_config
from heatproof.workflow.commands.cli import main
from heatproof.workflow.commands.init import init
from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.validate import make_plan

COUNT = 40


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Forty image files of 32×32 pixels in one folder, in the working folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(COUNT):
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    return "photos"


def write(path, header, row):
    Path(path).write_text("\n".join([header, *(row(number) for number in range(COUNT))]) + "\n", encoding="utf-8")


def init_config(photos, **options):
    """Return the dataset that `init` writes, as options and as it is read, and the text of the config."""
    output = init(photos, "cifar_resnet20", **options)
    config_lines = {line.removeprefix("# ") for line in Path("mine.yaml").read_text(encoding="utf-8").splitlines()}
    assert {line for line in output.splitlines() if line.startswith("Assumed")} <= config_lines
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "heatproof run mine.yaml" in output
    plan = make_plan(read_config("mine.yaml"))
    settings = dict(yaml.safe_load(text)["datasets"][0]["photographs"])
    assert settings.pop("dataset") == "image_folder"
    assert plan.datasets["photographs"]["options"].get("labels") == settings.get("labels")
    return settings, image_folder(seed=0, **settings), text


@pytest.mark.parametrize("table", ["photos/labels.csv", "labels.csv", "photos/metadata.tsv"])
def test_a_table_in_or_next_to_the_folder_is_found(photos, table):
    mark = "\t" if table.endswith("tsv") else ","
    write(table, f"Path{mark}Label", lambda n: f"{n}.png{mark}{('ant', 'bee')[n % 2]}")
    settings, dataset, text = init_config(photos)
    assert settings["labels"] == ("../labels.csv" if table == "labels.csv" else Path(table).name)
    assert (settings["task"], dataset.class_names) == ("multiclass", ("ant", "bee"))
    assert "for photos: 2 classes; 28 train, 4 validation, 8 evaluation images" in text
    assert "gives 2 classes, by its columns file Path; label Label" in text
    output = check_config("mine.yaml")
    assert "is sound" in output
    assert f"photographs: {Path(table).name} gives 2 classes, by its columns file Path; label Label" in output


def test_findings_and_assumptions_are_written_as_comments(photos):
    write(
        "photos/train.csv",
        "Image Index,Finding,patient_id",
        lambda n: f"{n}.png,{('A|B', 'A', 'No Finding', '')[n % 4]},{n // 2}",
    )
    settings, dataset, text = init_config(photos, columns=["label=Finding"])
    assert settings["separator"] == "|"
    assert settings["unknown"] == ["blank"]
    assert settings["none"] == ["No Finding"]
    assert settings["columns"] == {"label": "Finding", "group": "patient_id"}
    assert (settings["task"], dataset.task, dataset.class_names) == ("multilabel", "multilabel", ("A", "B"))
    assert "for photos: 2 labels, several per image; " in text
    assert '# Assumed: none: ["No Finding"] (The column' in text
    assert "# Assumed: group: patient_id" in text
    assert "10 of 40 images are left out, because no label is known." in text


def test_the_task_can_be_chosen(photos):
    write("photos/ages.csv", "file,age", lambda n: f"{n}.png,{20 + n % 25}")
    with pytest.raises(HeatproofError, match=r"25 different numbers, .*--task TASK"):
        init(photos, "cifar_resnet20")
    assert not Path("mine.yaml").exists()
    settings, dataset, text = init_config(photos, task="regression")
    assert (settings["task"], dataset.task, dataset.class_names) == ("regression", "regression", ("age",))
    assert "for photos: numbers; " in text
    # A metric that reads probabilities would not be applicable.
    assert yaml.safe_load(text)["metrics"] == [
        {name: {"output": "logit"}} for name in ("deletion_morf", "deletion_lerf")
    ]


def test_the_task_multilabel_separates_tags_at_blanks(photos):
    write("photos/t.csv", "image_name,tags", lambda n: f"{n},{('haze', 'clear primary', 'clear primary road')[n % 3]}")
    settings, dataset, _ = init_config(photos, task="multilabel")
    assert (settings["separator"], dataset.class_names) == (" ", ("clear", "haze", "primary", "road"))


def test_each_label_of_an_image_is_scored(photos):
    write("photos/t.csv", "file,a,b", lambda n: f"{n}.png,1,{int(n % 4 > 0)}")
    _, dataset, text = init_config(photos)
    rows = int((dataset.splits["evaluation"].labels == 1).sum())
    assert rows > len(dataset.splits["evaluation"].ids)
    assert yaml.safe_load(text)["evaluation"]["images"] == {"drops": rows, "curves": rows}
    assert "is sound" in check_config("mine.yaml")


def test_too_few_labels_of_evaluation_images_are_refused(photos):
    write("photos/t.csv", "file,a,b", lambda n: f"{n}.png,0,{int(n == 0)}")
    with pytest.raises(HeatproofError, match=r"8 images of photos that are to be scored have [01] label\(s\)"):
        init(photos, "cifar_resnet20")


def test_columns_of_classes_can_be_named_on_the_command_line(photos, capsys):
    write("photos/t.csv", "id,a,b,c", lambda n: f"{n},{n % 2},{1 - n % 2},{n % 3}")
    arguments = ["init", photos, "--model", "cifar_resnet20", "--column", "label=a", "--column", "label=b"]
    assert main([*arguments, "--task", "multiclass"]) == 0
    settings = yaml.safe_load(Path("mine.yaml").read_text())["datasets"][0]["photographs"]
    assert settings["columns"] == {"label": ["a", "b"], "file": "id"}
    assert main([*arguments, "--column", "label", "--out", "other.yaml"]) == 1
    assert "--column label: write what it is and its name" in capsys.readouterr().err


def test_class_folders_and_a_table_need_a_choice(photos):
    for number in range(COUNT):
        folder = Path("photos") / ("ant", "bee")[number % 2]
        folder.mkdir(exist_ok=True)
        (Path("photos") / f"{number}.png").rename(folder / f"{number}.png")
    write("photos/labels.csv", "file,label", lambda n: f"{n}.png,{('one', 'two')[n // 2 % 2]}")
    with pytest.raises(
        HeatproofError, match=r"class folders and a table .*--labels photos/labels.csv, or --labels folders"
    ):
        init(photos, "cifar_resnet20")
    assert init_config(photos, labels="folders")[1].class_names == ("ant", "bee")
    Path("mine.yaml").unlink()
    assert init_config(photos, labels="photos/labels.csv")[1].class_names == ("one", "two")
    Path("mine.yaml").unlink()
    Path("photos/labels.csv").rename("labels.csv")
    assert init_config(photos)[1].class_names == ("ant", "bee"), "a table elsewhere does not change what folders say"


def test_several_tables_need_a_choice(photos):
    for name in ("a.csv", "b.csv"):
        write(f"photos/{name}", "file,label", lambda n: f"{n}.png,{n % 2}")
    Path("photos/notes.txt").write_text("remarks\nof the day\n")
    with pytest.raises(
        HeatproofError, match=r"has tables that name its images, photos/a.csv, photos/b.csv: give --labels"
    ):
        init(photos, "cifar_resnet20")
    with pytest.raises(HeatproofError, match=r"There is no file c.csv: --labels is a table of labels, or folders"):
        init(photos, "cifar_resnet20", labels="c.csv")


def test_texts_of_a_table_cannot_end_a_comment(photos):
    Path("photos/labels.csv").write_text(
        "\n".join(['file,"the\nplugins: [evil]"', *(f"{n}.png,{'ab'[n % 2]}" for n in range(COUNT))]), encoding="utf-8"
    )
    _, _, text = init_config(photos)
    assert "plugins" not in yaml.safe_load(text)
