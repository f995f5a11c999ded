"""No wait yields: beside another program each sched_yield gives away a time slice of milliseconds."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAITING = ["dma", "engine/run", "engine/cpu"]
YIELDS = re.compile(r"\bsched_yield\s*\(|\bthis_thread::yield\b")


def test_no_wait_yields():
    files = [file for folder in WAITING for file in (ROOT / folder).rglob("*") if file.suffix in (".h", ".cc")]
    assert len(files) > 50
    assert [str(file.relative_to(ROOT)) for file in files if YIELDS.search(file.read_text())] == []
