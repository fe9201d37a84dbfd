"""Commands that are gone say what does their work now."""

import pytest

from heatproof.workflow.commands.cli import REMOVED, main


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("further", [[], ["a.yaml", "--out", "x.zip"]])
def test_a_removed_command_names_its_successor(name, further, capsys):
    assert main([name, *further]) == 1
    assert capsys.readouterr().err == f"heatproof: `heatproof {name}` went in heatproof 0.3.0: {REMOVED[name]}.\n"


def test_the_help_has_no_removed_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert not [name for name in REMOVED if f" {name} " in capsys.readouterr().out]
