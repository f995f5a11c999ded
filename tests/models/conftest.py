"""Makes models/ importable, and says where fixtures and SmolLM2 lie."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models"))


@pytest.fixture(scope="session")
def fixtures():
    folder = Path(os.environ.get("ARK_FIXTURES", ROOT.parent / "shared" / "fixtures"))
    if not folder.is_dir():
        pytest.skip(f"no fixtures at {folder} (set ARK_FIXTURES)")
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the converted model."""
    from smollm2 import cache_dir, obtain

    return obtain(cache_dir()).parent
