"""Stages of the workflow: what a job is told, what it leaves, and what runs. Importable without pandas and torch."""
