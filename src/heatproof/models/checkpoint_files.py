"""Files of checkpoints: of the user, of a package, or downloaded with limits on size and time."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from heatproof.errors import HeatproofError, machine_fault
from heatproof.models.packaged import find_packaged, is_file, is_packaged
from heatproof.store.publishing import without_secrets
from heatproof.store.reading import require_regular

SCHEMES = ("https", "http", "file")
# Seconds without data, and smallest rate in bytes per second, after which a download is aborted.
PATIENCE, SLOWEST = 60, 2**13


def display_name(checkpoint: str) -> str:
    """Return the name of a checkpoint in messages: the path of a file, or an address without its secrets."""
    return checkpoint if is_file(checkpoint) else without_secrets(checkpoint, checkpoint)


def find_checkpoint(checkpoint: str, folder: Path, max_bytes: int) -> Path:
    """Return the path of the file of a checkpoint; one with an address is downloaded into a folder.

    Parameters
    ----------
    checkpoint
        Path, address, or name of a checkpoint in a package.
    folder
        Folder for a download.
    max_bytes
        Limit on the bytes of a download.

    Raises
    ------
    HeatproofError
        If there is no such file, or the download fails, is too slow or too large.
    """
    if is_packaged(checkpoint):
        return find_packaged(checkpoint)
    if is_file(checkpoint):
        if not os.path.isfile(checkpoint):
            raise HeatproofError(f"The checkpoint {checkpoint} does not exist: check the path in the model's settings.")
        return Path(checkpoint)
    path = folder / "checkpoint"
    try:
        if checkpoint.startswith("file:"):
            local = urllib.request.url2pathname(urllib.parse.urlsplit(checkpoint).path)
            require_regular(local, os.stat(local).st_mode)
        # The plan accepts only https, http and file, and the content must have the SHA-256 in the config.
        with urllib.request.urlopen(checkpoint, timeout=PATIENCE) as response, open(path, "xb") as file:  # noqa: S310
            # urllib also follows redirects to ftp.
            if urllib.parse.urlsplit(getattr(response, "url", checkpoint)).scheme not in SCHEMES:
                raise urllib.error.URLError("it redirects to an address that is neither https nor http")
            began, fetched = time.monotonic(), 0
            # read1 returns the available bytes; read would wait for a full block of a slow download.
            while block := response.read1(2**20):
                file.write(block)
                fetched += len(block)
                # A response can be endless.
                if fetched > max_bytes:
                    raise HeatproofError(
                        f"The checkpoint {display_name(checkpoint)} has more than {max_bytes:,} bytes, the limit "
                        "for this architecture: check the address and the architecture."
                    )
                if time.monotonic() - began > PATIENCE + fetched / SLOWEST:
                    raise TimeoutError(f"fewer than {SLOWEST:,} bytes per second arrived")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        fault, reason = machine_fault(error), without_secrets(str(error), checkpoint)
        raise HeatproofError(
            fault
            or f"The checkpoint {display_name(checkpoint)} cannot be fetched ({reason}): check the address in the "
            "config and the network connection of this machine, and run again."
        ) from None
    return path
