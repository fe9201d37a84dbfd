"""What is stored for docs/null_control.md."""

FILES = {"null_control": ["null_control/concluded.csv", "null_control/false_differences.csv"]}
