"""The error about a missing config suggests which one could be meant."""

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.config.files import config_file


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nope.yaml", "check the path, or let `heatproof init PHOTOS --model MODEL` write one"),
        ("mein.yaml", r"did you mean mine\.yaml"),
        ("away/nope.yml", "check the path"),
        ("quik", "did you mean 'quick'"),
    ],
)
def test_a_missing_config_is_refused_with_a_suggestion(name, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(HeatproofError, match=hint) as caught:
        config_file(name)
    assert "function of your own" not in str(caught.value)
