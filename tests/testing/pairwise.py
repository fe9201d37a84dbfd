"""Rows of values of several factors that contain every pair of values of two factors."""

from itertools import combinations, product


def covering(factors):
    """Return rows, with one value of each factor, such that every pair of values of two factors is in a row.

    The search is greedy: each row starts with a pair that is still missing, and has of every other factor the value
    that adds most missing pairs.

    Parameters
    ----------
    factors
        The values of each factor, by name.
    """
    names = list(factors)
    missing = {
        ((first, left), (other, right)): None
        for first, other in combinations(names, 2)
        for left, right in product(factors[first], factors[other])
    }
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in (name for name in names if name not in row):
            row_so_far = dict(row)
            row[name] = max(
                factors[name], key=lambda value: sum(p in missing for p in _pairs(names, row_so_far, name, value))
            )
        for pair in combinations([(name, row[name]) for name in names], 2):
            missing.pop(pair, None)
        rows.append(tuple(row[name] for name in names))
    return rows


def _pairs(names, row, name, value):
    for other, held in row.items():
        pair = ((other, held), (name, value))
        yield pair if names.index(other) < names.index(name) else pair[::-1]
