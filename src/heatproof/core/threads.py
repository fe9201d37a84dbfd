"""Pools of threads that compute with NumPy or SciPy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from threading import RLock

from threadpoolctl import ThreadpoolController

# A collected generator can close its pool while the same thread opens another one.
_lock = RLock()
# Restores the number of threads of BLAS; open while any pool is.
_limit = ExitStack()
_open_pools = 0


@contextmanager
def numeric_pool(threads: int, name: str = "") -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that may call NumPy and SciPy; the context waits for all of its tasks.

    While a pool is open, BLAS starts no threads of its own, which would spin against those of the pool.

    Parameters
    ----------
    threads
        Number of threads.
    name
        Prefix of their names.
    """
    with _one_blas_thread(), ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        yield pool


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit BLAS to the calling thread. The setting is the process's, so the last of several contexts restores it."""
    global _open_pools
    with _lock:
        if not _open_pools:
            _limit.enter_context(_blas_of_numpy_and_scipy().limit(limits=1, user_api="blas"))
        _open_pools += 1
    try:
        yield
    finally:
        with _lock:
            _open_pools -= 1
            if not _open_pools:
                _limit.close()


# To look for the libraries takes milliseconds.
@cache
def _blas_of_numpy_and_scipy() -> ThreadpoolController:
    """Return a controller of every BLAS except one that torch brings along, because a network may run beside a pool."""
    # The controller sees only what is loaded.
    import scipy.linalg  # noqa: F401

    controller = ThreadpoolController()
    paths = [Path(library.filepath) for library in controller.lib_controllers]
    # PyTorch's own libraries are in torch/lib and torch.libs.
    return controller.select(filepath=[str(path) for path in paths if not {"torch", "torch.libs"} & {*path.parts[-3:]}])
