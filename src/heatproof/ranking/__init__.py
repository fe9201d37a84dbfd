"""From many test cases to one ranking."""
