"""Rank methods over test cases, with intervals and tests of agreement."""
