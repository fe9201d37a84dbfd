"""Exceptions of heatproof, and error messages for faults of the machine."""

from __future__ import annotations

import errno

RESUME_HINT = "finished work is kept"
# Messages of PyTorch on CPUs and Apple GPUs, where it has no error type for this. The last one is from oneDNN.
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "bad_alloc",
    "start new thread",
    "could not create a primitive",
)
# Messages of CUDA and PyTorch about a GPU that cannot be used; then the state of the GPU, and the remedy.
GPU_FAULTS = (
    (
        ("busy or unavailable",),
        "is used exclusively by another program",
        "end that program, or select another GPU with CUDA_VISIBLE_DEVICES",
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
        "disappeared or failed during the job",
        "check it with nvidia-smi, or use another one",
    ),
)
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
PERMISSION_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}


class HeatproofError(Exception):
    """An error that the user can fix: one sentence that names the cause and the remedy.

    Command-line entry points print it without a traceback.
    """


class DamagedInput(HeatproofError):
    """An image of the dataset cannot be read. The code that read it is not at fault."""


class CallRefused(HeatproofError):
    """A fault that an explainer reveals, but that refuses the whole call or job, and not only the explainer."""


class NotApplicable(Exception):
    """An explainer does not work on this model; tables show the message as the reason."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, to be quoted within a sentence."""
    return " ".join(_text(error).split("\n")[0].split())


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the __str__ of foreign errors can fail
        return "the error has no message"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error reports that memory ran out."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # The type is compared by name, because this module does not import torch. It is a subclass of RuntimeError.
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, RuntimeError) and (
        named or any(words in _text(error).lower() for words in OUT_OF_MEMORY_MESSAGES)
    )


def machine_fault(error: BaseException) -> str | None:
    """Return the sentence for a fault of the machine (disk, permissions, memory or GPU); None for other errors."""
    visited: list[BaseException] = []
    current: BaseException | None = error
    # Libraries often wrap an error of the system in their own error.
    while current is not None and current not in visited:
        visited.append(current)
        sentence = _sentence(current)
        if sentence:
            return sentence
        current = current.__cause__ or current.__context__
    return None


def _sentence(error: BaseException) -> str | None:
    if is_out_of_memory(error):
        return (
            "Memory ran out: lower batch_size at the top of the config, which recomputes nothing, or run fewer "
            f"jobs at once, and run the same command again; {RESUME_HINT}."
        )
    text = _text(error).lower() if isinstance(error, RuntimeError) else ""
    for words, state, remedy in GPU_FAULTS:
        if any(word in text for word in words):
            return f"The GPU {state}: {remedy}, and run the same command again; {RESUME_HINT}."
    code = error.errno if isinstance(error, OSError) else None
    if code is None or code not in DISK_FULL | PERMISSION_DENIED | {errno.EFBIG, errno.EIO, errno.EMFILE}:
        return None
    assert isinstance(error, OSError)
    location = f" at {error.filename}" if error.filename else ""
    if code in DISK_FULL:
        return (
            f"The disk is full{location} ({error.strerror}): make room and run the same command again; {RESUME_HINT}."
        )
    if code in PERMISSION_DENIED:
        return (
            f"Permission to write or read{location} is missing ({error.strerror}): make the folder writable, or use "
            f"another one, and run the same command again; {RESUME_HINT}."
        )
    remedy = {
        errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
        errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
        errno.EIO: "check the disk, which may be failing",
    }[code]
    return f"Writing or reading failed{location} ({error.strerror}): {remedy}, and run the same command again."
