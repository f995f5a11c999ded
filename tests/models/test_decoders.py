"""Every generated decoder, under ONNX Runtime: its cache, its mask and its positions mean what they should."""

import numpy as np
import onnx
import pytest
from config import Config
from decoder import build
from llama_random import random_weights, write
from oracle import Oracle
from presets import BROKEN, FAMILIES, STYLES, preset
from zoo import mixed

TOLERANCE = {"f32": 2e-5, "f16": 1e-2}
CONFIGS = {name: preset(name) for name in FAMILIES | STYLES if preset(name).cache}
CONFIGS |= {f"random-{i}": mixed(i) for i in range(60)}


def make(tmp_path, config):
    path = tmp_path / "model.onnx"
    write(config, path, seed=1)
    return path, Oracle(str(path), config, threads=1)


def logits_of(oracle, ids, chunks):
    """Logits of a sequence fed in chunks; of each chunk's last token where the graph gives no others."""
    past, rows, at = oracle.empty_past(len(ids)), [], 0
    for count in chunks:
        logits, past = oracle.step(ids[:, at:at + count], past)
        rows.append(logits[:, -1:])
        at += count
    return np.concatenate(rows, axis=1).astype(np.float64), past


def apart(a, b):
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_cached_decode_equals_prefill(tmp_path, name):
    config = CONFIGS[name]
    _, oracle = make(tmp_path, config)
    ids = np.random.default_rng(2).integers(3, config.vocab, (2, 9))
    bound = TOLERANCE[config.dtype]
    whole, past = logits_of(oracle, ids, [9])
    assert np.isfinite(whole).all() and whole.std() > 1e-3
    for chunks in ([1] * 9, [4, 2, 3]):
        steps, stepped = logits_of(oracle, ids, chunks)
        assert apart(whole[:, -1], steps[:, -1]) <= bound
        for cache, array in past.items():
            assert apart(array, stepped[cache]) <= bound, cache


def sees_padding(config):
    """Whether the graph is told of padding; learned positions by Range count it nevertheless."""
    return config.mask_input and (config.positions, config.position_source) != ("learned", "range")


@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if sees_padding(c)])
def test_padding_on_the_left_changes_nothing(tmp_path, name):
    config = CONFIGS[name]
    _, oracle = make(tmp_path, config)
    ids = np.random.default_rng(3).integers(3, config.vocab, (1, 6))
    alone, past = oracle.step(ids, oracle.empty_past(1))
    padded = np.concatenate([[[5, 7]], ids], axis=1)
    mask = np.array([[0, 0, 1, 1, 1, 1, 1, 1]])
    logits, past_padded = oracle.step(padded, oracle.empty_past(1), mask)
    bound = TOLERANCE[config.dtype]
    assert apart(alone[:, -1], logits[:, -1]) <= bound
    step, _ = oracle.step([[9]], past)
    step_padded, _ = oracle.step([[9]], past_padded, np.append(mask, [[1]], axis=1))
    assert apart(step[:, -1], step_padded[:, -1]) <= bound


@pytest.mark.parametrize("name", [n for n in BROKEN if n != "broken-batch"])
def test_broken_graphs_are_not_causal(tmp_path, name):
    """The oracle of the tests above can fail: these graphs do."""
    config = preset(name)
    _, oracle = make(tmp_path, config)
    ids = np.random.default_rng(2).integers(3, config.vocab, (2, 9))
    whole, _ = logits_of(oracle, ids, [9])
    steps, _ = logits_of(oracle, ids, [1] * 9)
    assert apart(whole[:, -1], steps[:, -1]) > 1e-2


def test_broken_batch_mixes_sequences(tmp_path):
    config = preset("broken-batch")
    _, oracle = make(tmp_path, config)
    ids = np.random.default_rng(2).integers(3, config.vocab, (2, 9))
    both, _ = logits_of(oracle, ids, [9])
    alone, _ = logits_of(oracle, ids[:1], [9])
    assert apart(both[:1], alone) > 1e-2


@pytest.mark.parametrize("name", [*FAMILIES, *STYLES, *BROKEN])
def test_graphs_pass_the_checker(tmp_path, name):
    path, _ = make(tmp_path, preset(name))
    onnx.checker.check_model(str(path), full_check=True)


def test_equal_seeds_give_equal_files(tmp_path):
    config = Config()
    files = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write(config, tmp_path / name / "model.onnx", seed)
        files.append((tmp_path / name / "model.onnx").read_bytes())
    assert files[0] == files[1] != files[2]


def test_external_data_holds_the_same_weights(tmp_path):
    config = preset("llama")
    graph = build(config, random_weights(4))
    graph.save(tmp_path / "inside.onnx")
    graph.save(tmp_path / "outside.onnx", external_above=1000)
    assert (tmp_path / "outside.onnx").stat().st_size < (tmp_path / "inside.onnx").stat().st_size
    ids = np.arange(8).reshape(1, 8) + 3
    results = []
    for name in ("inside", "outside"):
        oracle = Oracle(str(tmp_path / f"{name}.onnx"), config, threads=1)
        results.append(oracle.step(ids, oracle.empty_past(1))[0])
    assert np.array_equal(*results)


def test_bf16_graphs_are_typed_throughout(tmp_path):
    """ONNX Runtime's CPU kernels have no bf16, so only types and stored weights are checked."""
    config = preset("llama", dtype="bf16")
    path = tmp_path / "model.onnx"
    write(config, path)
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    assert {t.data_type for t in model.graph.initializer} == {onnx.TensorProto.BFLOAT16}
    stored = next(t for t in model.graph.initializer if t.name == "model.embed_tokens.weight")
    exact = random_weights(0)(stored.name, tuple(stored.dims))
    assert np.abs(onnx.numpy_helper.to_array(stored).astype(np.float32) - exact).max() <= np.abs(exact).max() / 256


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="norm is 'batch'"):
        Config(norm="batch")
    with pytest.raises(ValueError, match="no preset 'lama'"):
        preset("lama")
