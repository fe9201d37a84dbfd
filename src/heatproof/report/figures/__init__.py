"""Figures that are each drawn from one table. A module of this package registers its figures and is found by itself."""
