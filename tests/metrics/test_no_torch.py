import subprocess
import sys

import pytest

MODULES = (
    "heatproof.metrics.catalogue",
    "heatproof.metrics.bootstrap",
    "heatproof.ranking.ranks",
    "heatproof.ranking.bradley_terry",
    "heatproof.ranking.meta_rank",
    "heatproof.perturbation.patches",
    "heatproof.perturbation.baselines",
)


@pytest.mark.parametrize("module", MODULES)
def test_importable_without_torch(module):
    program = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
