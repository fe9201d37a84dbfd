"""Pools of threads, and the threads that BLAS starts beside them."""

import threading

import numpy as np
import pytest
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_info, threadpool_limits

from heatproof.core.threads import numeric_pool


def threads_of_blas():
    """Return the numbers of threads of every BLAS but PyTorch's own."""
    # A test in the same process may have loaded those of further libraries.
    of_numpy = ("/numpy", "/scipy")
    libraries = [
        library
        for library in threadpool_info()
        if library["user_api"] == "blas" and any(map(library["filepath"].count, of_numpy))
    ]
    return {library["num_threads"] for library in libraries}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if threads_of_blas() != {2}:
            pytest.skip("NumPy's BLAS has no settable number of threads")
        yield


def test_blas_has_one_thread_while_a_pool_is_open_and_as_many_as_before_afterwards():
    with numeric_pool(2, "reader") as pool:
        assert pool.submit(threads_of_blas).result() == {1}
        assert pool.submit(lambda: threading.current_thread().name).result().startswith("reader")
    assert threads_of_blas() == {2}


def test_an_error_restores_the_threads_of_blas():
    with pytest.raises(ZeroDivisionError), numeric_pool(2) as pool:
        pool.submit(lambda: 1 // 0).result()
    assert threads_of_blas() == {2}


def test_the_last_of_overlapping_pools_restores_the_threads_of_blas():
    first, second = numeric_pool(1), numeric_pool(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert threads_of_blas() == {1}
    second.__exit__(None, None, None)
    assert threads_of_blas() == {2}


def test_images_of_information_curves_are_interpolated_with_one_thread_of_blas(monkeypatch):
    from heatproof.core.perturb import pic

    seen = set()
    interpolate = pic.interpolate

    def noting(image, visible):
        seen.update(threads_of_blas())
        return interpolate(image, visible)

    monkeypatch.setattr(pic, "interpolate", noting)
    masks = np.random.default_rng(0).random((1, 2, 8, 8)) < 0.3
    assert len(list(pic._variants(np.zeros((1, 8, 8, 3), np.float32), masks))) == 3
    assert seen == {1}
    assert threads_of_blas() == {2}
