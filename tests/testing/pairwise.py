"""Rows of a few values of each factor, in which every two values of two factors meet."""

from itertools import combinations, product


def covering(factors):
    """Return rows, one value of each factor, such that every pair of values of two factors is in one.

    The greedy way: each row starts with a pair that is still missing, and takes of every other factor the value that
    makes most missing pairs.

    Parameters
    ----------
    factors
        By name the values of each.
    """
    names = list(factors)
    missing = {
        ((one, left), (other, right)): None
        for one, other in combinations(names, 2)
        for left, right in product(factors[one], factors[other])
    }
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in (name for name in names if name not in row):
            known = dict(row)
            row[name] = max(
                factors[name], key=lambda value: sum(p in missing for p in _pairs(names, known, name, value))
            )
        for pair in combinations([(name, row[name]) for name in names], 2):
            missing.pop(pair, None)
        rows.append(tuple(row[name] for name in names))
    return rows


def _pairs(names, row, name, value):
    for other, held in row.items():
        pair = ((other, held), (name, value))
        yield pair if names.index(other) < names.index(name) else pair[::-1]
