"""Looking up names, and a user's own package.module:callable."""

import pytest

from heatproof.errors import HeatproofError
from heatproof.registry import import_callable, look_up, nearest

TABLE = {"saliency": 1, "rise": 2}


def test_look_up():
    assert look_up(TABLE, "rise", "explainer") == 2
    with pytest.raises(HeatproofError, match="no explainer named 'salency': did you mean 'saliency'"):
        look_up(TABLE, "salency", "explainer")
    with pytest.raises(HeatproofError, match=r"named 'qqq': known are rise, saliency\."):
        look_up(TABLE, "qqq", "explainer")


def test_nearest_of_nothing():
    assert nearest("x", {}) == "there are none."


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
def test_what_cannot_be_imported_is_one_sentence(reference, reason, tmp_path, monkeypatch):
    (tmp_path / "broken_syntax.py").write_text("def thing(:\n")
    (tmp_path / "broken_import.py").write_text("raise RuntimeError('out of\\nluck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HeatproofError, match="write it as package") as caught:
        import_callable(reference, "explainer")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_callable():
    with pytest.raises(HeatproofError, match="'os:sep' is not callable"):
        import_callable("os:sep", "dataset")
