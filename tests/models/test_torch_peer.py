"""The PyTorch twin that ark is compared with on a GPU (scripts/peers/torch_decoder.py) computes what ONNX Runtime does."""

import sys
from pathlib import Path

import numpy as np
import pytest

from llama_random import write
from oracle import Oracle
from presets import preset

torch = pytest.importorskip("torch", reason="PyTorch is not installed: it is for the comparison on a GPU alone")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "peers"))
from torch_decoder import Decoder  # noqa: E402

BATCH, TOKENS = 3, 7
SIZES = dict(layers=2, hidden=64, heads=4, intermediate=96, vocab=90)


@pytest.mark.parametrize("changes", [dict(), dict(tied=True)], ids=["as it is", "tied"])
@pytest.mark.parametrize("dtype, bound", [("f32", 1e-5), ("f16", 1e-2)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_logits_are_onnx_runtimes(tmp_path, name, dtype, bound, changes):
    config = preset(name, dtype=dtype, **SIZES, **changes)
    path = tmp_path / "model.onnx"
    write(config, path)
    ids = np.random.default_rng(1).integers(0, config.vocab, (BATCH, TOKENS))
    oracle = Oracle(str(path), config)
    wanted, _ = oracle.step(ids, oracle.empty_past(BATCH))
    decoder = Decoder(path, BATCH, TOKENS + 5, "cpu")
    with torch.inference_mode():
        for at in range(TOKENS):
            decoder.ids.copy_(torch.from_numpy(ids[:, at:at + 1]))
            decoder.at.fill_(at)
            logits = decoder.step(at + 1).float().numpy()
            expected = wanted[:, at].astype(np.float32)
            assert np.abs(logits - expected).max() <= bound * np.abs(expected).max()
            assert (decoder.ids[:, 0].numpy() == logits.argmax(axis=1)).all()
