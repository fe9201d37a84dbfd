"""Draw docs/figures/parts.png: creatures of the dataset `parts`, where their parts are, and each part removed.

python docs/parts.py [FIGURE]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from heatproof.datasets.parts import parts

ROWS, SIZE = 3, 64
# Apart for all readers (Okabe and Ito).
HUES = np.array([(0.84, 0.37, 0.0), (0.0, 0.45, 0.7), (0.0, 0.62, 0.45), (0.8, 0.47, 0.65), (0.94, 0.89, 0.26)])


def draw(path: Path) -> None:
    """Draw one creature a row: as the model sees it by default, larger, the masks, and without each part."""
    large, default = (parts(seed=3, size=size) for size in (SIZE, 32))
    images, small = large.images("evaluation", 0, ROWS), default.images("evaluation", 0, ROWS)
    masks, removed = large.part_masks("evaluation", 0, ROWS), large.without_part("evaluation", 0, ROWS)
    titles = ["32 pixels", "64 pixels", "masks", *(f"no {name}" for name in large.part_names)]
    figure, axes = plt.subplots(ROWS, len(titles), figsize=(1.15 * len(titles), 1.15 * ROWS + 0.2), dpi=100)
    for row, line in enumerate(axes):
        grey = 0.35 + 0.4 * images[row].mean(0, keepdims=True).repeat(3, 0)
        painted = np.where(masks[row].any(0), np.tensordot(HUES.T, masks[row].astype(float), axes=1), grey)
        for axis, image, title in zip(line, [small[row], images[row], painted, *removed[row]], titles, strict=True):
            axis.imshow(np.clip(image, 0, 1).transpose(1, 2, 0), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            for spine in axis.spines.values():
                spine.set_visible(False)
            if row == 0:
                axis.set_title(title, fontsize=9, pad=4)
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=0.94, wspace=0.04, hspace=0.04)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "figures" / "parts.png")
