"""`heatproof rank` on tables of scores from any source."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.report.tables.ranking import case_names, families_of, rank_table
from heatproof.report.tables.score_import import read_scores
from heatproof.workflow.commands.cli import main

METHODS = ("saliency", "saliency_abs", "grad_cam", "rise", "random", "edges")
MODELS = ("resnet", "vgg", "vit")


def tidy(**columns):
    rng = np.random.default_rng(0)
    rows = [
        {"model": model, "method": method, "score": quality + 0.5 * rng.normal(), **columns}
        for model in MODELS
        for quality, method in enumerate(METHODS)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def write(tmp_path):
    def write(table, name="mine.csv", **options):
        path = tmp_path / name
        table.to_csv(path, index=False, **options) if isinstance(table, pd.DataFrame) else path.write_text(table)
        return path

    return write


def values(table):
    return table.pivot(index="model", columns="method", values="score")


def test_a_tidy_table_is_read_as_it_is(write):
    table = tidy(dataset="d", weights="w", metric="road_morf", higher_is_better=False)
    read = read_scores([write(table)])
    expected = table[["method", "dataset", "model", "weights", "metric", "score", "higher_is_better"]]
    pd.testing.assert_frame_equal(read, expected, check_dtype=False)


def test_missing_columns_have_defaults(write):
    read = read_scores([write(tidy())])
    first = read.iloc[0].to_dict()
    assert (first["dataset"], first["weights"], first["metric"]) == ("mine", "", "score")
    assert read["higher_is_better"].all()


def test_other_column_names_are_recognised(write):
    """The only column of numbers is the score, and its name is that of the metric."""
    published = tidy().rename(columns={"method": "explainer", "score": "deletion_morf"})
    read = read_scores([write(published)])
    assert set(read["metric"]) == {"deletion_morf"}
    assert not read["higher_is_better"].any()
    pd.testing.assert_frame_equal(values(read), values(tidy()))


@pytest.mark.parametrize("header", ["method", "", "Attribution", "approach"])
def test_wide_tables_of_methods_by_models_are_read(write, header):
    wide = values(tidy()).T.reset_index().rename(columns={"method": header})
    pd.testing.assert_frame_equal(values(read_scores([write(wide)])), values(tidy()), check_names=False)


def test_wide_tables_of_models_by_methods_are_read(write):
    wide = values(tidy()).reset_index()
    pd.testing.assert_frame_equal(values(read_scores([write(wide, sep=";")])), values(tidy()), check_names=False)


def test_several_columns_are_several_metrics(write):
    table = tidy().rename(columns={"score": "idsds"})
    table["road_morf"] = 1 - table["idsds"]
    read = read_scores([write(table)])
    assert read.groupby("metric")["higher_is_better"].first().to_dict() == {"idsds": True, "road_morf": False}
    assert len(read) == 2 * len(table)


def test_several_tables_are_datasets(write):
    read = read_scores([write(tidy(), "a.csv"), write(tidy(), "b.csv")])
    assert read["dataset"].unique().tolist() == ["a", "b"]


def test_the_option_lower_reverses_the_order(write, capsys):
    path = write(tidy())
    up, down = (rank_table(read_scores([path], lower), repetitions=20).meta_rank for lower in ([], ["score"]))
    np.testing.assert_allclose(
        up.set_index("method")["kappa"].sort_index(), -down.set_index("method")["kappa"].sort_index()
    )


def test_missing_scores_are_not_counted(write):
    table = tidy()
    table["score"] = table["score"].astype(object)
    table.loc[0, "score"], table.loc[7, "score"] = "n/a", ""
    read = read_scores([write(table)])
    assert np.flatnonzero(read["score"].isna()).tolist() == [0, 7]
    counts = rank_table(read, repetitions=20).meta_rank.set_index("method")["n_cases"]
    assert counts.to_dict() == dict.fromkeys(METHODS, 3) | {"saliency": 2, "saliency_abs": 2}


def test_the_command_prints_and_writes(write, tmp_path, capsys):
    out = tmp_path / "found"
    assert main(["rank", str(write(tidy())), "--out", str(out), "--lower", "score"]) == 0
    printed = capsys.readouterr().out
    for words in ("6 methods in 3 test cases", "Meta-Rank", "bradley_terry", "left out", "Consistency", "Best of each"):
        assert words in printed
    names = {"meta_rank", "consistency", "consistency_groups", "stability_methods", "stability_cases", "families"}
    names.add("properties")
    assert {path.stem for path in out.glob("*.csv")} == names
    assert (out / "consistency.png").read_bytes().startswith(b"\x89PNG")
    pairs = pd.read_csv(out / "consistency.csv")
    assert pairs["shared"].tolist() == [6, 6, 6]
    assert pd.read_csv(out / "meta_rank.csv")["method"].iloc[-1] == "edges"


def test_without_a_folder_nothing_is_written(write, tmp_path):
    path = write(tidy())
    assert main(["rank", str(path)]) == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("shape", ["one case", "one method"])
def test_one_case_or_one_method_can_be_ranked(write, tmp_path, shape):
    table = tidy()
    table = table[table["model"] == "vit"] if shape == "one case" else table[table["method"] == "rise"]
    assert main(["rank", str(write(table)), "--out", str(tmp_path / "out")]) == 0


def test_scores_of_images_widen_the_interval(write):
    rng = np.random.default_rng(1)
    images = pd.concat([tidy().assign(image=f"i{number}") for number in range(12)])
    images["score"] += 3 * rng.normal(size=len(images))
    ranking = rank_table(read_scores([write(images)]), repetitions=100)
    means = images.groupby(["model", "method"], as_index=False)["score"].mean()
    alone = rank_table(read_scores([write(means)]), repetitions=100)
    assert "12 images" in ranking.note
    pd.testing.assert_frame_equal(ranking.meta_rank[["method", "kappa"]], alone.meta_rank[["method", "kappa"]])
    width = [(table.meta_rank["ci_high"] - table.meta_rank["ci_low"]).mean() for table in (ranking, alone)]
    assert width[0] > width[1]


def test_order_of_deletion_is_a_factor(write):
    both = [tidy(metric="road_morf", higher_is_better=False), tidy(metric="road_lerf")]
    groups = rank_table(read_scores([write(pd.concat(both))]), repetitions=20).tables["consistency_groups"]
    row = groups[(groups["factor"] == "order") & (groups["pairs_that"] == "differ in this alone")].iloc[0]
    assert row["n_pairs"] == 3
    assert row["spearman"] == pytest.approx(-1)


@pytest.mark.parametrize("option", [[], ["--lower", "score"]])
def test_the_directions_are_printed(write, capsys, option):
    both = pd.concat([tidy(metric="idsds"), tidy(metric="road_morf"), tidy(metric="score")])
    assert main(["rank", str(write(both)), *option]) == 0
    lower = "road_morf, score" if option else "road_morf"
    higher = "idsds" if option else "idsds, score"
    assert capsys.readouterr().out.startswith(f"Lower is better for {lower}; higher is better for {higher}. ")


def test_counts_are_not_taken_for_scores(write):
    """`rank` once took n_images for a metric."""
    table = tidy().rename(columns={"score": "mine"}).assign(n_images=64, n_undefined=0, rank=1, ci_low=0.1, ci_high=0.2)
    read = read_scores([write(table)])
    assert set(read["metric"]) == {"mine"}
    assert len(read) == len(table)


def test_metrics_that_others_represent_are_left_out_and_named(write, capsys):
    rng = np.random.default_rng(1)
    parts = [tidy(metric=name).assign(score=rng.normal(size=18)) for name in ("mas_insertion", "mas_deletion")]
    both = pd.concat([*parts, tidy(metric="mas_difference")])
    ranking = rank_table(read_scores([write(both)]), repetitions=20)
    assert set(ranking.meta_rank["n_cases"]) == {6}
    assert set(ranking.meta_rank["n_networks"]) == {3}
    assert set(ranking.tables["properties"]["property"]) == {"incremental insertion", "incremental deletion"}
    main(["rank", str(write(both))])
    assert "because other metrics represent them: mas_difference" in capsys.readouterr().out


def test_tables_of_a_run_are_ranked_as_in_the_run(write):
    """A score with a reason in ``gap`` does not count, nor does a metric that another one represents."""
    table = tidy(metric="idsds", gap="", counted_as="")
    table.loc[table["method"] == "rise", "gap"] = "defined on 1 of 64 images, a rank needs 32"
    duplicate = tidy(metric="idsds_probability", gap="", counted_as="idsds").assign(score=0.0)
    ranked = rank_table(read_scores([write(pd.concat([table, duplicate]))]), repetitions=20).meta_rank.set_index(
        "method"
    )
    assert ranked["n_cases"].to_dict() == dict.fromkeys(METHODS, 3) | {"rise": 0}


def test_families_come_from_method_names_or_a_column(write):
    assert families_of(tidy()) == {
        "saliency": "gradient",
        "saliency_abs": "gradient",
        "grad_cam": "cam",
        "rise": "perturbation",
        "random": "reference",
        "edges": "reference",
    }
    with_families = tidy().assign(family=["x", "y", "y", "", "x", "x"] * 3)
    assert families_of(read_scores([write(with_families)])) == {
        "saliency": "x",
        "saliency_abs": "y",
        "grad_cam": "y",
        "random": "x",
        "edges": "x",
    }


def test_cases_are_named_by_their_difference():
    cases = pd.DataFrame([("d", "m", "", "x"), ("d", "n", "", "x")], columns=["dataset", "model", "weights", "metric"])
    assert case_names(cases) == ["m", "n"]
    assert case_names(cases.head(1)) == ["d · m · x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read as a table"),
        ("method,score\n", "nothing to rank"),
        ("method\na\n", "nothing to rank"),
        ("method,score\na,1,2,3\nb,1,2\n", "cannot be read as a table"),
        ("method,score\na,good\n", "'a' the score 'good', which is not a number"),
        ("method,score\n,1\nb,2\n", "row without a method"),
        ("method,text\na,b\n", "no column of numbers"),
        ("model,score\na,1\n", "no column of methods"),
        ("1,2\n3,4\n", "no column of methods"),
        ("method,model,metric,x,y\na,m,q,1,2\n", "2 columns of numbers"),
        ("method,score,higher_is_better\na,1,perhaps\n", "'perhaps' under 'higher_is_better'"),
        ("method,score\na,1\na,2\n", "more than one score"),
        ("method,score,image\na,1,i\na,2,i\n", "two scores of image 'i'"),
        ("method,model,score\na,x,1\nb,y,2\n", "No test case compares"),
        ("method,score\na,\nb,\n", "No method has a score"),
        ("\x00\xff", "cannot be read as a table|nothing to rank"),
    ],
)
def test_invalid_tables_are_refused_in_one_sentence(write, content, message, capsys):
    path = write(content)
    assert main(["rank", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if line.startswith("heatproof: ")]
    assert len(lines) == 1
    assert pd.Series(lines).str.contains(message).all(), lines
    assert "Traceback" not in printed.err


def test_wrong_options_and_files_are_refused(write, tmp_path):
    path = write(tidy())
    with pytest.raises(HeatproofError, match=r"no metric 'scoer' in the table: did you mean 'score'"):
        read_scores([path], ["scoer"])
    with pytest.raises(HeatproofError, match="cannot be read as a table"):
        read_scores([tmp_path / "absent.csv"])
    assert main(["rank", str(path), "--out", str(path)]) == 1


def test_independent_cases_metrics_and_methods_can_be_chosen(write, tmp_path, capsys):
    """With two networks of one metric and one of three, each test case of the named methods counts once."""
    tables = [tidy(dataset="d", metric="idsds", higher_is_better=True)]
    extra = tidy(dataset="d", higher_is_better=True).query("model == 'vit'")
    others = {"other": -extra["score"], "third": np.sin(3 * extra["score"])}
    tables += [extra.assign(metric=name, score=score) for name, score in others.items()]
    path, methods = str(write(pd.concat(tables))), ["saliency", "grad_cam", "random"]
    rankings = {}
    for name, options in {
        "network": [],
        "case": ["--independent", "case"],
        "part": ["--independent", "case", "--metrics", "idsds,other", "--methods", ",".join(methods)],
    }.items():
        assert main(["rank", path, *options, "--out", str(tmp_path / name)]) == 0
        rankings[name] = pd.read_csv(tmp_path / name / "meta_rank.csv").set_index("method")
        printed = capsys.readouterr().out
        word = "3 networks" if name == "network" else "5 test cases" if name == "case" else "4 test cases"
        assert f"over {word};" in printed
    assert rankings["case"]["n_cases"].eq(5).all()
    assert rankings["case"]["n_networks"].eq(3).all()
    assert not np.allclose(rankings["case"]["kappa"], rankings["network"]["kappa"].reindex(rankings["case"].index))
    assert sorted(rankings["part"].index) == sorted(methods)
    assert rankings["part"]["n_cases"].eq(4).all()


@pytest.mark.parametrize("independent", ["network", "case"])
def test_duplicate_metrics_do_not_depend_on_the_ranked_methods(write, tmp_path, capsys, independent):
    """A metric under two names is one test case, also for too few methods to detect that."""
    scores = tidy(metric="idsds", higher_is_better=True)
    twice, methods = str(write(pd.concat([scores, scores.assign(metric="same")]))), ["saliency", "grad_cam", "random"]
    once = str(write(scores, "once.csv"))
    for name, path in {"twice": twice, "once": once}.items():
        options = ["--independent", independent, "--methods", ",".join(methods), "--out", str(tmp_path / name)]
        assert main(["rank", path, *options]) == 0
        assert ("other metrics represent them: same" in capsys.readouterr().out) == (name == "twice")
    tables = [pd.read_csv(tmp_path / name / "meta_rank.csv") for name in ("twice", "once")]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics", "scre"], "There is no metric 'scre' in the table: did you mean 'score'?"),
        (["--methods", "grad_cam,salience"], "There is no method 'salience' in the table: did you mean 'saliency'?"),
    ],
)
def test_unknown_metrics_and_methods_are_refused(write, capsys, options, message):
    assert main(["rank", str(write(tidy())), *options]) == 1
    assert message in capsys.readouterr().err
