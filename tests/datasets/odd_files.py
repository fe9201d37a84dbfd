"""Unusual image files. Run this to print the table of how each is read in docs/datasets.md."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from heatproof.datasets.image_files import read_image
from heatproof.datasets.survey import KIND_DESCRIPTIONS, survey
from heatproof.errors import HeatproofError

SIDE = 24
NOISE = np.random.default_rng(0).integers(0, 256, (SIDE, 36, 3), dtype=np.uint8)
KINDS = {kind: words for words, kind in KIND_DESCRIPTIONS.items()}


def _make(folder: Path) -> dict[str, str]:
    """Write the files, and return the description of each by its name."""
    colour = Image.fromarray(NOISE)
    grey = Image.fromarray(NOISE[..., 0])
    colour.save(folder / "whole.jpg")
    complete = (folder / "whole.jpg").read_bytes()
    colour.save(folder / "whole.png")
    broken = bytearray((folder / "whole.png").read_bytes())
    broken[len(broken) // 2] ^= 255
    (folder / "whole.jpg").unlink()
    (folder / "whole.png").unlink()
    (folder / "truncated.jpg").write_bytes(complete[: len(complete) // 2])
    (folder / "corrupt.png").write_bytes(broken)
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("<html>not found</html>")
    Image.new("1", (1, 20_000)).save(folder / "strip.png")
    Image.fromarray(NOISE[..., 0].astype(np.float32)).save(folder / "float.tif")
    grey.save(folder / "grey.png")
    colour.quantize(64).save(folder / "palette.gif")
    colour.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(NOISE[..., 0].astype(np.uint16) * 257).save(folder / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    colour.save(folder / "phone.jpg", exif=exif)
    colour.save(folder / "moving.gif", save_all=True, append_images=[Image.new("RGB", colour.size)])
    colour.convert("RGBA").save(folder / "transparent.png")
    colour.save(folder / "really.jpg", format="PNG")
    return {
        "truncated.jpg": "half of a JPEG",
        "corrupt.png": "one byte changed in a PNG",
        "empty.jpg": "zero bytes",
        "text.jpg": "an error page saved as an image",
        "strip.png": "1×20,000 pixels, resized to a shorter side of 224",
        "float.tif": "32-bit float",
        "grey.png": "grey",
        "palette.gif": "colours from a palette",
        "cmyk.jpg": "four channels for print",
        "deep.png": "16-bit grey",
        "phone.jpg": "stored rotated, with an EXIF orientation",
        "moving.gif": "animated",
        "transparent.png": "with an alpha channel",
        "really.jpg": "a PNG with a wrong ending",
    }


def table(folder: Path) -> list[str]:
    """Return one row for each file, with the message of the code."""
    rows = []
    for name, what in _make(folder).items():
        surveyed = survey([folder / name], 224)
        if surveyed.unreadable:
            # Versions of Pillow differ in the text in brackets.
            outcome = f"refused before the run: {surveyed.unreadable[0][1].partition(' (')[0]}"
            try:
                read_image(folder / name, 224, 224)
            except HeatproofError:
                pass
            else:
                raise AssertionError(f"{name} is refused, and can be read")
        else:
            read_image(folder / name, 224, 224)
            outcome = "read" + "".join(f"; {KINDS[kind]}" for kind in sorted(surveyed.kinds))
        rows.append(f"| `{name}` | {what} | {outcome} |")
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print("\n".join(table(Path(temporary))))
