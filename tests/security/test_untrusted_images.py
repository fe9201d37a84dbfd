"""An untrusted image file starts no program, takes no gigabytes, and is never a pipe or a device."""

import os
import socket
import struct
import subprocess
import sys
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from heatproof.datasets.fashion_mnist import read_idx
from heatproof.datasets.image_files import read_image
from heatproof.errors import HeatproofError

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n%%EOF\n"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, content: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(content, 9)) + chunk(b"IEND", b"")


def refused(path) -> str:
    with pytest.raises(HeatproofError) as caught:
        read_image(path, 224, 256)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_postscript_with_the_name_of_an_image_starts_no_program(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **settings: started.append(arguments))
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments, **settings: started.append(arguments))
    (tmp_path / "a.png").write_bytes(POSTSCRIPT)
    assert "it is none of JPEG, PNG" in refused(tmp_path / "a.png")
    assert not started


@pytest.mark.parametrize("kind", ["ICO", "TGA", "PCX", "SGI", "PDF", "JPEG2000"])
def test_other_formats_are_refused_by_content_and_not_by_name(tmp_path, kind):
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png", kind)
    assert "it is none of JPEG, PNG" in refused(tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_common_formats_are_read_with_any_name(tmp_path, kind):
    Image.new("RGB", (40, 40), (200, 100, 50)).save(tmp_path / "a.png", kind)
    read = read_image(tmp_path / "a.png", 8, 8)
    np.testing.assert_allclose(read.mean((1, 2)) * 255, (200, 100, 50), atol=4)


@pytest.mark.parametrize(
    ("width", "height"), [(2_000_000, 1), (1, 2_000_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)]
)
def test_an_image_of_gigabytes_is_refused_by_its_header(tmp_path, width, height):
    content = b"\0" * (2_000_001 if 1 in (width, height) else 10)
    (tmp_path / "bomb.png").write_bytes(png(width, height, content))
    program = (
        "import resource, sys\nfrom PIL import Image\nfrom heatproof.datasets.image_files import read_image\n"
        "from heatproof.errors import HeatproofError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_image(sys.argv[1], 224, 256)\nexcept HeatproofError as error:\n    print(error)\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000\n"
    )
    limited = f'ulimit -v 2000000; exec {sys.executable} -c "$0" "$1"'
    done = subprocess.run(["bash", "-c", limited, program, tmp_path / "bomb.png"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"The image {tmp_path / 'bomb.png'} cannot be read (")
    assert done.stdout.endswith("repair or remove it.\n")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("position", [20, 60, 200, 700])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_truncated_or_overwritten_images_are_read_or_refused_in_one_sentence(tmp_path, kind, position):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole", kind)
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:position])
    assert "cannot be read" in refused(tmp_path / "cut.png")
    for seed in range(10):
        other = bytearray(content)
        for at in np.random.default_rng(seed).integers(0, min(position, len(other)), 4):
            other[at] ^= 0xFF
        (tmp_path / "other.png").write_bytes(other)
        with suppress(HeatproofError):
            read_image(tmp_path / "other.png", 8, 8)


def test_pipes_devices_and_sockets_are_not_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.png")
    assert "is a named pipe, not a regular file" in refused(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    assert "is a device, not a regular file" in refused(tmp_path / "b.png")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
        listening.bind("c.png")
        assert "is a socket, not a regular file" in refused(tmp_path / "c.png")
    (tmp_path / "d.png").mkdir()
    assert "is a folder, not a regular file" in refused(tmp_path / "d.png")


def test_a_gzip_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("heatproof.datasets.fashion_mnist.MOST_BYTES", 1000)
    import gzip

    content = bytes((0, 0, 8, 1)) + struct.pack(">I", 100_000) + bytes(100_000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with pytest.raises(HeatproofError, match="is not a complete IDX file"):
        read_idx(tmp_path / "a.gz", 1)
    (tmp_path / "b.gz").write_bytes(gzip.compress(content[:50])[:-12] + b"\xff" * 12)
    with pytest.raises(HeatproofError, match="download it again"):
        read_idx(tmp_path / "b.gz", 1)
