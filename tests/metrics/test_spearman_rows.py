import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows

few_values = st.integers(-3, 3).map(float)
any_values = st.floats(-1e6, 1e6, allow_subnormal=False)
shapes = st.tuples(st.integers(1, 5), st.integers(2, 20))


@st.composite
def two_arrays(draw):
    shape = draw(shapes)
    values = draw(st.sampled_from([few_values, any_values]))
    return draw(arrays(np.float64, shape, elements=values)), draw(arrays(np.float64, shape, elements=values))


@given(two_arrays())
def test_correlations_equal_those_of_scipy(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [spearmanr(a, b).statistic for a, b in zip(*pair, strict=True)]
    np.testing.assert_allclose(spearman_rows(*pair), expected, rtol=0, atol=1e-12)


@given(two_arrays())
def test_correlations_are_symmetric_bounded_and_without_warnings(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        correlation = spearman_rows(*pair)
    np.testing.assert_array_equal(correlation, spearman_rows(*pair[::-1]))
    assert np.all(np.abs(correlation[~np.isnan(correlation)]) <= 1)


@given(arrays(np.float64, shapes, elements=few_values))
def test_a_row_correlates_with_itself_by_exactly_one_unless_constant(rows):
    constant = np.ptp(rows, axis=1) == 0
    np.testing.assert_array_equal(spearman_rows(rows, rows), np.where(constant, np.nan, 1))
    np.testing.assert_array_equal(spearman_rows(rows, -rows), np.where(constant, np.nan, -1))


def test_undefined_rows_do_not_disturb_others():
    a = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [1.0, np.nan, 3.0], [3.0, 1.0, 2.0]])
    b = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    np.testing.assert_array_equal(spearman_rows(a, b), [1, np.nan, np.nan, 1])
    np.testing.assert_array_equal(spearman_rows(b, a), [1, np.nan, np.nan, 1])


@pytest.mark.parametrize("shape", [(0, 4), (3, 1), (3, 0)])
def test_fewer_than_two_values_have_no_correlation(shape):
    np.testing.assert_array_equal(spearman_rows(np.zeros(shape), np.zeros(shape)), np.full(shape[0], np.nan))


def test_different_shapes_are_refused():
    with pytest.raises(HeatproofError, match=r"\(2, 4\) and \(2, 5\)"):
        spearman_rows(np.zeros((2, 4)), np.zeros((2, 5)))
