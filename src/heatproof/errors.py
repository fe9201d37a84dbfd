"""Exceptions of heatproof, and messages for faults of the machine."""

from __future__ import annotations

import errno

RESUME_HINT = "what was finished is kept"
# What PyTorch says where it has no error type of its own: on a CPU and on Apple's GPUs. The last word is oneDNN's.
MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "bad_alloc",
    "start new thread",
    "could not create a primitive",
)
# What CUDA and PyTorch say of a GPU that cannot be used, and what to do about it.
GPU = (
    (
        ("busy or unavailable",),
        "is taken by another program that shares it with none",
        "end that program, or take another GPU with CUDA_VISIBLE_DEVICES",
    ),
    (
        ("no kernel image is available", "is not compatible with the current pytorch"),
        "is of a generation that this PyTorch was not built for",
        "install a PyTorch built for it, or set device: cpu",
    ),
    (
        ("driver version is insufficient", "nvidia driver on your system is too old"),
        "has a driver that is too old for this PyTorch",
        "update the driver, install a PyTorch for an older CUDA, or set device: cpu",
    ),
    (
        (
            "no cuda-capable device",
            "no cuda gpus are available",
            "gpu is lost",
            "uncorrectable ecc",
            "unspecified launch",
        ),
        "has vanished or failed during the job",
        "look at it with nvidia-smi, or take another one",
    ),
)
FULL = {errno.ENOSPC, errno.EDQUOT}
CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class HeatproofError(Exception):
    """Something that the user can mend: one sentence that names the thing and the remedy.

    Command-line entry points print it without a traceback.
    """


class DamagedInput(HeatproofError):
    """An image of the data cannot be read, which is no fault of what asked for it."""


class NotApplicable(Exception):
    """An explainer cannot work on this model; the text is the reason shown as a gap in the tables."""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, to be quoted within a sentence."""
    return " ".join(_said(error).split("\n")[0].split())


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of foreign code can fail to say what it is
        return "it does not say why"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there is no memory left."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # PyTorch's own type is a RuntimeError, and this module knows no torch.
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, RuntimeError) and (named or any(words in _said(error).lower() for words in MEMORY))


def machine_fault(error: BaseException) -> str | None:
    """Return the sentence for an error of the machine and not of the program: disk, rights, memory, GPU; else None."""
    seen: list[BaseException] = []
    here: BaseException | None = error
    # Libraries raise errors of their own from those of the system.
    while here is not None and here not in seen:
        seen.append(here)
        sentence = _sentence(here)
        if sentence:
            return sentence
        here = here.__cause__ or here.__context__
    return None


def _sentence(error: BaseException) -> str | None:
    if is_out_of_memory(error):
        return (
            "Memory ran out: lower batch_size at the top of the config, which recomputes nothing, or run fewer "
            f"jobs at once, and run the same command again; {RESUME_HINT}."
        )
    said = _said(error).lower() if isinstance(error, RuntimeError) else ""
    for words, state, remedy in GPU:
        if any(one in said for one in words):
            return f"The GPU {state}: {remedy}, and run the same command again; {RESUME_HINT}."
    code = error.errno if isinstance(error, OSError) else None
    if code is None or code not in FULL | CLOSED | {errno.EFBIG, errno.EIO, errno.EMFILE}:
        return None
    assert isinstance(error, OSError)
    where = f" at {error.filename}" if error.filename else ""
    if code in FULL:
        return f"The disk is full{where} ({error.strerror}): make room and run the same command again; {RESUME_HINT}."
    if code in CLOSED:
        return (
            f"Permission to write or read{where} is missing ({error.strerror}): make the folder writable, or use "
            f"another one, and run the same command again; {RESUME_HINT}."
        )
    remedy = {
        errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
        errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
        errno.EIO: "check the disk, which may be failing",
    }[code]
    return f"Writing or reading failed{where} ({error.strerror}): {remedy}, and run the same command again."
