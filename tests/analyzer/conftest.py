"""What analyzer tests share: the helpers beside this file, and the real traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def traces() -> Path:
    """Folder of real traces; skips the test where there is none."""
    folder = Path(os.environ.get("FREESCALE_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"no real traces: {folder} does not exist (set FREESCALE_TRACES)")
    return folder
