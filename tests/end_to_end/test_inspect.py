"""ark-inspect against the onnx package, and its exit codes, limits and messages."""

import json
import os
import resource
import subprocess
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("ARK_BIN", ROOT / "build" / "bin")) / "ark-inspect"
FIXTURES = Path(os.environ.get("ARK_FIXTURES", ROOT.parent / "shared" / "fixtures"))
MODELS = sorted(p for p in FIXTURES.glob("*/*.onnx"))

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")


def inspect(*arguments, **options):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


def refused(path, code, *arguments):
    """The one line of an error, after checking exit code and silence on standard output."""
    run = inspect(path, "--check", *arguments)
    assert run.returncode == code, (run.returncode, run.stdout, run.stderr)
    assert run.stdout == ""
    assert run.stderr.startswith("ark-inspect: error: ") and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


def dims_of(value):
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in value.type.tensor_type.shape.dim]


def check_graph(ours, graph):
    assert ours["name"] == graph.name
    assert [v["name"] for v in ours["inputs"]] == [v.name for v in graph.input]
    assert [v["dims"] for v in ours["inputs"]] == [dims_of(v) for v in graph.input]
    assert [v["element_type"] for v in ours["outputs"]] == [v.type.tensor_type.elem_type for v in graph.output]
    assert ours["value_infos"] == len(graph.value_info)
    assert len(ours["initializers"]) == len(graph.initializer)
    for mine, tensor in zip(ours["initializers"], graph.initializer):
        assert (mine["name"], mine["dims"]) == (tensor.name, list(tensor.dims))
        count = int(numpy.prod(tensor.dims)) if tensor.dims else 1
        kinds = {TensorProto.FLOAT: ("f32", 4), TensorProto.INT64: ("i64", 8), TensorProto.FLOAT16: ("f16", 2)}
        if tensor.data_type in kinds:
            name, size = kinds[tensor.data_type]
            assert (mine["dtype"], mine["bytes"]) == (name, count * size)
    assert len(ours["nodes"]) == len(graph.node)
    for mine, node in zip(ours["nodes"], graph.node):
        assert (mine["name"], mine["op_type"]) == (node.name, node.op_type)
        assert (mine["inputs"], mine["outputs"]) == (list(node.input), list(node.output))
        assert [a["name"] for a in mine["attributes"]] == [a.name for a in node.attribute]
        for a, attribute in zip(mine["attributes"], node.attribute):
            if attribute.type == onnx.AttributeProto.GRAPH:
                check_graph(a["graph"], attribute.g)


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.parent.name)
def test_parse_equals_the_onnx_package(path):
    run = inspect(path, "--stage", "parse", "--json")
    assert run.returncode == 0, run.stderr
    ours, model = json.loads(run.stdout), onnx.load(path, load_external_data=False)
    assert ours["ir_version"] == model.ir_version
    assert ours["opsets"] == {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    assert [f["name"] for f in ours["functions"]] == [f.name for f in model.functions]
    check_graph(ours["graph"], model.graph)


@pytest.mark.parametrize("stage", ["parse", "graph", "passes", "recognise"])
def test_every_stage_prints_text_json_and_pictures(stage):
    path = FIXTURES / "gpt2-optimum"
    text = inspect(path, "--stage", stage)
    assert text.returncode == 0 and len(text.stdout) > 200, text.stderr
    json.loads(inspect(path, "--stage", stage, "--json").stdout)
    if stage != "parse":
        assert inspect(path, "--stage", stage, "--dot").stdout.startswith("digraph")


def test_exit_codes(tmp_path):
    model = FIXTURES / "gpt2-optimum" / "model.onnx"
    assert inspect("--help").returncode == 0
    assert inspect(model, "--check").stdout.startswith("ok: ")
    assert inspect().returncode == 64
    assert inspect(model, "--no-such-option").returncode == 64
    assert inspect(model, "--stage", "nonsense").returncode == 64
    assert inspect(tmp_path / "missing.onnx").returncode == 66
    assert inspect(tmp_path).returncode == 66
    (tmp_path / "broken.onnx").write_bytes(model.read_bytes()[:1000])
    assert "byte" in refused(tmp_path / "broken.onnx", 65)
    with open("/dev/full", "w") as full:
        run = subprocess.run([BINARY, model], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert run.returncode == 71 and "standard output" in run.stderr
    closed = subprocess.run(["sh", "-c", '"$0" "$1" >&-', BINARY, model], capture_output=True, text=True, timeout=300)
    assert closed.returncode == 71
    head = subprocess.run(["bash", "-c", 'set -o pipefail; "$0" "$1" | head -1', BINARY, model], capture_output=True, text=True)
    assert head.returncode == 0 and head.stderr == ""
    environment = dict(os.environ, ARK_INSPECT_STAGE="parse")
    assert inspect(model, env=environment).stdout.startswith("model ")


def save(path, nodes, initializers=(), inputs=(), outputs=("y",), functions=(), **options):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(numpy.asarray(v), n) for n, v in initializers])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, **options), path)
    return path


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (3, 3))


X = ("x", TensorProto.FLOAT, ["n", 4])
BOMBS = {
    "constant_of_shape": ([helper.make_node("ConstantOfShape", ["s"], ["y"])], [("s", [10**6, 10**5])]),
    "expand": ([helper.make_node("Expand", ["w", "s"], ["y"])], [("s", [10**6, 10**5]), ("w", [1.0])]),
    "tile": ([helper.make_node("Tile", ["w", "s"], ["y"])], [("s", [10**11]), ("w", [1.0])]),
    "range": ([helper.make_node("Range", ["a", "b", "c"], ["y"])], [("a", 0), ("b", 10**15), ("c", 1)]),
    "pad": ([helper.make_node("Pad", ["w", "s"], ["y"])], [("s", [0, 10**12]), ("w", [1.0])]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_by_limit(tmp_path, name):
    nodes, initializers = BOMBS[name]
    path = save(tmp_path / "bomb.onnx", nodes, initializers)
    run = inspect(path, "--check", preexec_fn=limited)
    assert run.returncode == 65 and "max_" in run.stderr and run.stderr.count("\n") == 1, run.stderr


def test_names_are_printed_escaped(tmp_path):
    path = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["evil\n\x1b[2J"], ["y"], name="a\r\nb")], inputs=[X])
    assert "\x1b" not in refused(path, 65)
    path = save(tmp_path / "n.onnx", [helper.make_node("Neg", ["x"], ["y"], name="a\n\x1bb")], inputs=[X])
    for stage in ("parse", "graph", "passes"):
        assert "\x1b" not in inspect(path, "--stage", stage).stdout


def test_external_data_may_not_leave_the_directory(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"x" * 16)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    graph = helper.make_graph([helper.make_node("Neg", ["w"], ["y"])], "g", [], [helper.make_empty_tensor_value_info("y")], [tensor])
    path = inside / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert "leaves the directory" in refused(path, 65)


def test_large_files_are_parsed_without_reading_weights(tmp_path):
    weights = numpy.zeros((256, 1 << 18), numpy.float32)  # 256 MiB
    path = save(tmp_path / "large.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], [("w", weights)],
                [("x", TensorProto.FLOAT, ["n", 256])])
    run = inspect(path, "--check", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20)))
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("option, value", [("--max-num-seqs", 0), ("--max-num-seqs", 2**31 - 1),
                                           ("--max-num-seqs", 4097), ("--max-num-batched-tokens", -1),
                                           ("--max-num-batched-tokens", 2**20 + 1)])
def test_sizes_are_bounded_as_those_of_ark_serve(option, value):
    assert option in refused(MODELS[0], 64, f"{option}={value}")
