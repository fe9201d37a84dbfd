"""Lookup of names, and references package.module:callable to user code."""

import pytest

from heatproof.core.registry import import_callable, look_up, suggest_name
from heatproof.errors import HeatproofError

TABLE = {"saliency": 1, "rise": 2}


def test_unknown_names_are_refused_with_suggestions():
    assert look_up(TABLE, "rise", "explainer") == 2
    with pytest.raises(HeatproofError, match="no explainer named 'salency': did you mean 'saliency'"):
        look_up(TABLE, "salency", "explainer")
    with pytest.raises(HeatproofError, match=r"named 'qqq': known are rise, saliency\."):
        look_up(TABLE, "qqq", "explainer")


def test_names_with_the_same_beginning_are_nearest():
    assert (
        suggest_name("deletion", ["completeness", "deletion_lerf", "deletion_morf"]) == "did you mean 'deletion_morf'?"
    )


def test_an_unlike_name_lists_the_known_names():
    assert suggest_name("shapley_flow", TABLE) == "known are rise, saliency."


def test_only_listed_kinds_refer_to_the_command_list():
    many = {f"name_{number:02d}": number for number in range(20)}
    with pytest.raises(HeatproofError, match="and 4 more, as `heatproof list explainers` prints them"):
        look_up(many, "qqq", "explainer")
    with pytest.raises(HeatproofError, match=r"and 4 more\."):
        look_up(many, "qqq", "dataset in this config")


@pytest.mark.parametrize(("file", "folder"), [("mymod.py", "."), ("configs/mymod.py", "configs")])
def test_the_error_names_the_folder_of_a_module_off_the_path(tmp_path, monkeypatch, file, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["heatproof", "check", "configs/mine.yaml"])
    (tmp_path / "configs").mkdir()
    (tmp_path / file).write_text("")
    with pytest.raises(HeatproofError, match=rf"No module named 'mymod'\): put PYTHONPATH={folder} before the command"):
        import_callable("mymod:f", "explainer")


def test_an_empty_table_has_no_suggestion():
    assert suggest_name("x", {}) == "there are none."


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("no_such_package.module:thing", "No module named"),
        ("json:nothing", "has no attribute 'nothing'"),
        ("json:", "has no attribute ''"),
        (":thing", "Empty module name"),
        (".json:dumps", "relative import"),
        ("broken_syntax:thing", "invalid syntax"),
        ("broken_import:thing", "out of luck"),
    ],
)
def test_references_that_cannot_be_imported_are_refused_in_one_sentence(reference, reason, tmp_path, monkeypatch):
    (tmp_path / "broken_syntax.py").write_text("def thing(:\n")
    (tmp_path / "broken_import.py").write_text("raise RuntimeError('out of\\nluck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HeatproofError, match="write it as package") as caught:
        import_callable(reference, "explainer")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_that_are_not_callable_are_refused():
    with pytest.raises(HeatproofError, match="'os:sep' is not callable"):
        import_callable("os:sep", "dataset")
