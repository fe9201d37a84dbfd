"""The messages about odd checkpoints are those in odd_checkpoints.md."""

from pathlib import Path

import odd_checkpoints
import pytest

PAGE = Path(__file__).with_name("odd_checkpoints.md").read_text(encoding="utf-8")
READ = {"parallel.pth", "lightning.ckpt", "compiled.pt", "averaged.pth", "others_names.th"}


@pytest.mark.parametrize("name", odd_checkpoints.KINDS)
def test_messages_equal_those_in_the_documentation(name, tmp_path):
    message = odd_checkpoints.message_about(name, tmp_path)
    assert message.startswith("It is read") == (name in READ)
    assert f"| {odd_checkpoints.KINDS[name][0]} | {message} |" in PAGE, "python tests/models/odd_checkpoints.py"
    assert "\n" not in message
