"""ONNX's operator tests with operands of other sizes and integers than they were written for, which only the run tells: ark
refuses what ONNX Runtime refuses, computes what it computes, and ends in good order whatever comes."""

import os
import pickle
import random
import re
import shutil
import signal
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from ark_server import BIN, FULL, ROOT
from onnx_nodes import obtain
from oracle import open_session

BINARY = BIN / "ark-run"
SETS, TESTS = (5, 1) if FULL else (1, 2)  # sets of a test, and of how many tests one is taken
SECONDS = 5

# numpy cannot hold their elements; ONNX Runtime has none of them, or draws lots.
NOT_TRIED = re.compile("expanded|training|dropout|bernoulli|random|string|sequence|optional|bfloat16|float8|float4|int4|int2|e8m0"
                       "|(BFLOAT16|FLOAT8|FLOAT4|INT4|INT2)")
INTEGERS = [0, 1, 2, 3, 5, 7, -1, -2, -3, -5, 100, 1000, 2**31, 2**32 + 1, -2**31, 2**40, 2**63 - 1, -2**63, -2**63 + 1]
# Where the two may differ: what the standard leaves open, and where ONNX Runtime leaves the standard.
OTHER_NUMBERS = {
    "test_pow": "powers of integers that overflow",
    "test_loop11": "a negative number of trips",
    "test_wrap_pad": "negative pads of a wrapped tensor",
    "test_averagepool": "a window wider than the input gives nothing; ONNX Runtime rounds -1/2 up",
    "test_maxpool": "the same",
    "test_lppool": "the same",
    "test_range": "integers that overflow",
    "test_group_normalization": "one number for all channels, which ONNX Runtime broadcasts",
    "test_dft": "ONNX Runtime's rounding in f32, of a thousandth",
    "test_gathernd_example_int32_batch_dim1": "batches that differ, of which ONNX Runtime takes the first",
}
LESS_STRICT = {
    "test_scan9": "states that broadcast",
    "test_gemm": "a bias with more rows than the product",
    "test_split": "parts that differ, before opset 18 as after",
    "test_blackmanwindow": "a negative size gives nothing",
    "test_hammingwindow": "the same",
    "test_hannwindow": "the same",
    "test_averagepool": "a window wider than the input gives nothing",
    "test_maxpool": "the same",
    "test_lppool": "the same",
    "test_tensorscatter_circular": "an update longer than the ring leaves its last rows",
    "test_div": "what is divided by zero is nobody's result",
    "test_mod": "the same",
}


def tensors(folder):
    def read(file):
        message = TensorProto()
        message.ParseFromString(file.read_bytes())
        return numpy_helper.to_array(message)

    return [read(file) for file in sorted(folder.glob("input_*.pb"), key=lambda file: int(file.stem.split("_")[1]))]


def without_sizes(model):
    """Every axis of inputs and outputs has a name of its own."""
    for number, info in enumerate([*model.graph.input, *model.graph.output]):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.Clear()
            dim.dim_param = f"d{number}_{axis}"
    del model.graph.value_info[:]
    model.ir_version = min(model.ir_version, 10)


def change(draw, operands):
    """One operand gets another size along an axis, or another integer; what was done."""
    index = draw.randrange(len(operands))
    old = operands[index]
    ways = ["drop", "grow", "none", "one", "double"] if old.ndim else []
    ways += ["value"] * 4 if old.dtype.kind in "iu" and old.size else []
    if not ways:
        return ""
    way = draw.choice(ways)
    if way == "value":
        info = np.iinfo(old.dtype)
        value = draw.choice([n for n in INTEGERS if info.min <= n <= info.max])
        operands[index] = old.copy()
        operands[index].reshape(-1)[draw.randrange(old.size)] = value
        return f"input {index} has {value}"
    axis = draw.randrange(old.ndim)
    size = old.shape[axis]
    places = {"drop": range(max(size - 1, 0)), "grow": [*range(size), 0], "none": [], "one": range(min(size, 1)),
              "double": [*range(size)] * 2}[way]
    if size == 0 and way != "none":
        return ""
    operands[index] = np.take(old, np.array(places, np.int64), axis=axis)
    return f"{way} of axis {axis} of input {index}"


def in_a_process_of_its_own(session, feeds):
    """ONNX Runtime's results, or None where it refuses, takes too long or dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            answer = pickle.dumps(session.run(None, feeds))
        except Exception:
            answer = pickle.dumps(None)
        with os.fdopen(write, "wb") as file:
            file.write(answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def write_set(folder, source, model, operands, results):
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    shutil.copy(source / "data.json", folder)
    for stem, values, infos in (("input", operands, model.graph.input), ("output", results, model.graph.output)):
        for index, (value, info) in enumerate(zip(values, infos)):
            message = numpy_helper.from_array(np.asarray(value, order="C"), info.name)
            (data / f"{stem}_{index}.pb").write_bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Folder and, by name, (what was changed, whether ONNX Runtime has results, whether an operand is empty)."""
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # so that a child may run it
    root, known = tmp_path_factory.mktemp("operands"), {}
    for source in sorted((obtain(ROOT / "build" / "onnx-nodes") / "node").iterdir())[::TESTS]:
        if NOT_TRIED.search(source.name):
            continue
        try:
            model = onnx.load(source / "model.onnx")
            without_sizes(model)
            session = open_session(model.SerializeToString(), options)
            operands = tensors(source / "test_data_set_0")
        except Exception:  # of types or opsets that it does not have
            continue
        if not operands or len(operands) != len(model.graph.input):
            continue
        draw = random.Random(source.name)
        for number in range(SETS):
            changed = list(operands)
            label = change(draw, changed)
            if not label:
                continue
            results = in_a_process_of_its_own(session, dict(zip([info.name for info in model.graph.input], changed)))
            if results and not all(isinstance(result, np.ndarray) and result.nbytes < 1 << 24 for result in results):
                continue
            name = f"{source.name}-{number}"
            nothing = [np.zeros(0, np.float32)] * len(model.graph.output)
            write_set(root / name, source, model, changed, nothing if results is None else results)
            known[name] = (label, results is not None, any(operand.size == 0 for operand in changed))
    return root, known


def is_known(name, differences):
    return any(name.startswith(start) for start in differences)


@pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")
@pytest.mark.parametrize("driver", ["dynamic", "static"])
def test_operands_that_only_the_run_tells(sets, driver):
    root, known = sets
    run = subprocess.run([BINARY, "--suite", root, "--driver", driver], capture_output=True, text=True, timeout=600)
    assert run.returncode in (0, 1), run.stderr
    verdicts = {}
    for line in run.stdout.splitlines()[:-1]:
        verdict, path, reason = (line.split(" ", 2) + [""])[:3]
        verdicts[path.split("/")[-2]] = (verdict, reason)
    assert set(verdicts) == set(known)
    wrong = []
    for name, (verdict, reason) in verdicts.items():
        label, has_results, is_empty = known[name]
        ran = verdict == "PASS" or reason.startswith("output '")
        if "internal" in reason:
            wrong.append((name, label, reason))
        elif is_empty or verdict == "UNSUPPORTED":
            continue  # what is no axis or no number of nothing, ONNX Runtime often does not ask
        elif has_results and verdict != "PASS" and not is_known(name, OTHER_NUMBERS):
            wrong.append((name, label, reason))
        elif not has_results and ran and not is_known(name, LESS_STRICT):
            wrong.append((name, label, f"ONNX Runtime refuses it; {reason}"))
    print(f"{len(verdicts)} sets, of which ONNX Runtime runs {sum(has for _, has, _ in known.values())}")
    assert not wrong, "\n".join(map(str, wrong))
    assert len(verdicts) > 700 // TESTS
