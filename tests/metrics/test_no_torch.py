import subprocess
import sys

import pytest

MODULES = (
    "heatproof.metrics.registry",
    "heatproof.metrics.bootstrap",
    "heatproof.stats.ranks",
    "heatproof.stats.ranks",
    "heatproof.stats.meta_rank",
    "heatproof.core.grids",
    "heatproof.core.perturb.baselines",
)


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_import_no_torch(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
