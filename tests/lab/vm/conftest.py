"""The programs of this directory, for its tests: they are no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
