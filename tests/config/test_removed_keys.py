"""Keys that went are ignored, and each is named in one sentence with the version."""

import re

import pytest
import yaml

from heatproof.errors import HeatproofError
from heatproof.workflow.check import check_config
from heatproof.workflow.config import removed
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.config.removed import REMOVED_KEYS, without_removed_keys
from heatproof.workflow.config.schema import Settings, normalise
from heatproof.workflow.start import check_before_start


def config_with(key_path, value):
    """Return a config that sets one key, given by its path."""
    for key in reversed(key_path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize("key_path", REMOVED_KEYS)
@pytest.mark.parametrize("value", [{"images": 0}, {"images": "many", "unknown": 1}, None, 3, []])
def test_a_key_that_went_changes_nothing_whatever_its_value(key_path, value):
    before = merge(default_config(), config_with(key_path, value))
    config, sentences = without_removed_keys(before)
    assert sentences == [REMOVED_KEYS[key_path]]
    assert normalise(before) == normalise(config) == normalise(default_config())


@pytest.mark.parametrize(("key_path", "sentence"), REMOVED_KEYS.items())
def test_a_sentence_names_the_key_and_the_version(key_path, sentence):
    assert re.match(rf"{re.escape(key_path)} went in heatproof \d+\.\d+\.\d+ and is ignored: \w.*\.$", sentence)
    assert key_path.split(".")[0] not in Settings.model_fields or "." in key_path, "a key either went or counts"


def test_other_keys_of_a_section_stay_and_are_checked(monkeypatch):
    monkeypatch.setitem(removed.REMOVED_KEYS, "report.old", "report.old went.")
    config = {"report": {"old": 1, "images": 7}}
    assert normalise(config)["report"]["images"] == 7
    assert config == {"report": {"old": 1, "images": 7}}, "the caller's config stays"
    with pytest.raises(HeatproofError, match="no key 'odl'"):
        normalise({"report": {"old": 1, "odl": 1}})
    with pytest.raises(HeatproofError, match="must be a mapping"):
        normalise({"report": 3})


def test_check_and_the_start_of_a_run_say_it_once(tmp_path, capsys):
    sentence = REMOVED_KEYS["precision_guard"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"precision_guard": {"images": 100}, "explainers": ["random"]}), encoding="utf-8")
    assert check_config(path).count(sentence) == 1
    config = merge(default_config(), yaml.safe_load(path.read_text(encoding="utf-8")))
    for is_main, times in ((True, 1), (False, 0)):
        check_before_start(config, is_main)
        assert capsys.readouterr().err.count(f"heatproof: {sentence}") == times
