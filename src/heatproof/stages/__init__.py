"""Stages of the workflow, a module each: what a job is told, what it leaves, and what runs. Importable without torch."""
