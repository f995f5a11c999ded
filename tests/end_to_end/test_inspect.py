"""ark-inspect against the onnx package, and its exit codes, limits and messages."""

import json
import os
import re
import resource
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN, FIXTURES

BINARY = BIN / "ark-inspect"
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


CARDS = {  # of fixtures' config.json: layers, heads, kv heads, head dim, hidden size, vocabulary
    name: json.loads((FIXTURES / name / "config.json").read_text())
    for name in ("gpt2-optimum", "gpt2-no-past", "llama-optimum", "llama-ort-fused", "llama-eager")
    if (FIXTURES / name / "config.json").exists() and list((FIXTURES / name).glob("*.onnx"))
}


def card(path, *arguments):
    """The card as JSON, after checking that the text tells the same in about ten lines."""
    text, run = inspect(path, *arguments), inspect(path, *arguments, "--json")
    assert text.returncode == run.returncode == 0, text.stderr + run.stderr
    assert 6 <= text.stdout.count("\n") <= 12 and all(len(line) > 12 for line in text.stdout.splitlines())
    facts = json.loads(run.stdout)
    for name in ("layers", "heads", "kv_heads", "hidden_size", "vocabulary", "kind"):
        assert str(facts.get(name, "")) in text.stdout
    return facts


@pytest.mark.parametrize("name", CARDS)
def test_the_card_tells_what_the_configuration_says(name):
    config, facts = CARDS[name], card(FIXTURES / name)
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    assert facts["kind"] == "decoder" and facts["serving"].startswith("batched: ")
    assert facts["layers"] == config.get("num_hidden_layers", config.get("n_layer"))
    assert (facts["heads"], facts["hidden_size"], facts["head_dim"]) == (heads, hidden, hidden // heads)
    assert facts["kv_heads"] == config.get("num_key_value_heads", heads)
    assert facts["vocabulary"] == config["vocab_size"]
    assert facts["kv_bytes_per_token"] == 2 * facts["layers"] * facts["kv_heads"] * facts["head_dim"] * 4
    assert facts["context"]["tokens"] == config.get("max_position_embeddings", config.get("n_positions"))


@pytest.mark.parametrize("path", [p for p in MODELS if p.parent.name in ("gpt2-optimum", "bert-classifier", "vit-tiny")],
                         ids=lambda p: p.parent.name)
def test_parameters_and_bytes_are_those_of_the_file(path):
    facts, model = card(path), onnx.load(path)
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    floats += [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.t.data_type == TensorProto.FLOAT]
    count = sum(int(numpy.prod(t.dims)) for t in floats)
    assert 0.99 * count <= facts["parameters"] <= count  # folding may drop scalars
    assert facts["bytes"]["f32"] == 4 * facts["parameters"]


def test_ranks_of_the_card_share_the_weights():
    one, three = (card(FIXTURES / "gpt2-optimum", "--tp", n) for n in (1, 3))
    assert [len(one["ranks"]), len(three["ranks"])] == [1, 3]
    whole = one["ranks"][0]
    assert sum(r["kv_of_a_full_sequence"] for r in three["ranks"]) == whole["kv_of_a_full_sequence"]
    assert all(r["weights"] < 0.8 * whole["weights"] for r in three["ranks"])


KINDS = {"resnet-tiny": "other", "mobilenet-tiny": "other"}
KINDS |= dict.fromkeys(["bert-classifier", "bert-int8-dynamic", "bert-ort-fused", "minilm-encoder", "t5-encoder", "whisper-encoder",
                        "vit-tiny", "vit-ort-extended"], "encoder")
KINDS |= dict.fromkeys(["t5-decoder", "t5-decoder-with-past", "whisper-decoder", "whisper-decoder-with-past"],
                       "decoder with an encoder's states")


def test_cards_of_other_models_name_their_inputs():
    for path in MODELS:
        if path.parent.name in KINDS:
            facts, model = card(path), onnx.load(path)
            assert [v["name"] for v in facts["inputs"]] == [v.name for v in model.graph.input]
            assert [v["name"] for v in facts["outputs"]] == [v.name for v in model.graph.output]
            assert facts["kind"] == KINDS[path.parent.name], path
            assert facts["serving"].startswith("plain, not for ark-serve: it is " if facts["kind"] != "other" else "plain, not")
            assert facts["serving"].count("embedding table") <= 1


def folded(picture):
    return {int(n) for n in re.findall(r'label="x (\d+)"', picture)}


def test_layers_are_drawn_once():
    graph = FIXTURES / "gpt2-optimum"
    layers = card(graph)["layers"]
    for stage in ("passes", "recognise", "plan", "program"):
        picture = inspect(graph, "--stage", stage, "--dot").stdout
        assert folded(picture) & {layers, layers - 1}, stage  # the last layer computes only the rows that are wanted
        assert picture.count("Attention</b>") <= 2, stage
        fills = {}
        for fill, title in re.findall(r'fillcolor="(#\w+)", label=<<b>([A-Z]\w+)</b>', picture):
            fills.setdefault(title, set()).add(fill)
        assert all(len(colours) == 1 for colours in fills.values()) and len(set.union(*fills.values())) >= 3, stage
        if stage in ("passes", "recognise"):  # without the prefix that all names of the layers have
            layer = re.search(r'label="x \d+".*?\n  }', picture, re.S)[0]
            assert "/attn/c_proj/Gemm" in layer and "transformer" not in layer, stage
    plan, program = (inspect(graph, "--stage", s, "--dot", "--tp", 2).stdout for s in ("plan", "program"))
    assert "Norm</b>" in program and "Norm</b>" not in plan and "dashed, constraint=false" in program


def weights_in(legend):
    return float(re.search(r"weights</td><td[^>]*>([\d.]+) MiB", legend).group(1))


SMOLLM2 = Path.home() / ".cache/ark/smollm2-135m-instruct/smollm2.onnx"


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"no {SMOLLM2} (scripts/serve.sh makes it)")
@pytest.mark.skipif(not shutil.which("dot"), reason="no dot (apt-get install graphviz)")
@pytest.mark.parametrize("stage", ["graph", "passes", "recognise", "plan", "program"])
def test_graphviz_draws_smollm2_within_seconds(stage):
    picture = inspect(SMOLLM2, "--stage", stage, "--dot").stdout
    kept = 513 if stage in ("graph", "passes", "recognise") else 96  # its numbers are those of codes
    assert folded(picture) & {29, 30} and weights_in(picture) == pytest.approx(kept, abs=5)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(["dot", "-Tpng", "-o", "/dev/null"], input=picture, text=True, check=True, timeout=300)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used < 5


EVIL = "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found, self.values = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)
        self.values += [(tag, name, value) for name, value in attributes]


def test_the_page_holds_everything_and_fetches_nothing(tmp_path):
    page = tmp_path / "page.html"
    assert inspect(FIXTURES / "gpt2-optimum", "--tp", 2, "--html", page).stdout == ""
    text = page.read_text()
    tags = Tags(text)
    assert tags.found.count("details") >= 13 and tags.found.count("script") == 1 and tags.found.count("h1") == 1
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(tags.found)
    assert not [v for v in tags.values if v[1] in ("src", "href")] and "default-src 'none'" in text
    assert "rank 1" in text and ">x 3<" in text and "wte" in text


def test_names_of_hostile_files_are_text_on_the_page(tmp_path):
    nodes = [helper.make_node("Neg", ["x"], [EVIL], name=EVIL), helper.make_node("MatMul", [EVIL, EVIL + "w"], ["y"], name=EVIL + "m")]
    path = save(tmp_path / "m.onnx", nodes, [(EVIL + "w", numpy.ones((4, 4), numpy.float32))],
                [("x", TensorProto.FLOAT, [EVIL, 4])], producer_name=EVIL)
    page = tmp_path / "page.html"
    run = inspect(path, "--html", page)
    assert run.returncode == 0, run.stderr
    tags = Tags(page.read_text())
    assert tags.found.count("script") == 1 and "img" not in tags.found
    assert not [v for v in tags.values if v[1].startswith("on")]
    assert "alert(1)" in page.read_text()  # it is there, as text
    dot = inspect(path, "--stage", "graph", "--dot").stdout
    markup = re.sub(r'"(\\.|[^"\\])*"', "", dot)  # what stands in quotes is no markup for Graphviz
    assert "<img" not in markup and "&lt;img" in markup


def test_exit_codes(tmp_path):
    model = FIXTURES / "gpt2-optimum" / "model.onnx"
    assert inspect("--help").returncode == 0
    assert inspect(model, "--check").stdout.startswith("ok: ")
    assert inspect().returncode == 64
    assert inspect(model, "--no-such-option").returncode == 64
    assert inspect(model, "--stage", "nonsense").returncode == 64
    assert inspect(model, "--dot", "--html", tmp_path / "page.html").returncode == 64
    assert inspect(model, "--stage", "weights", "--dot").returncode == 64
    assert inspect(model, "--html", tmp_path / "no" / "page.html").returncode == 71
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


def test_what_a_step_costs_on_a_gpu(tmp_path):
    path = FIXTURES / "gpt2-optimum" / "model.onnx"
    trace = tmp_path / "trace.json"
    text = inspect(path, "--stage", "cost", "--batch", 4, "--context", 16, "--trace", trace)
    assert text.returncode == 0 and text.stderr == "", text.stderr
    assert {"X", "M"} == {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]}
    costs = {}
    for name, options in {"one": [], "four": ["--batch", 4], "prompt": ["--prompt", 24], "ranks": ["--tp", 2],
                          "old": ["--arch", "sm_80"]}.items():
        run = inspect(path, "--stage", "cost", "--context", 16, "--json", *options)
        assert run.returncode == 0, run.stderr
        costs[name] = json.loads(run.stdout)
    for cost in costs.values():
        assert cost["us"] > sum(p["us"] for p in cost["phases"]) > 0 and cost["us"] > cost["floor_us"] > 0
        assert cost["counts"]["loads"] == sum(p["times"] * p["counts"]["loads"] for p in cost["phases"])
        assert {rate["source"] for rate in cost["rates"]} <= {"measured", "fitted", "data sheet", "paper", "derived"}
    assert costs["one"]["us"] <= costs["four"]["us"] < costs["prompt"]["us"] and costs["one"]["us"] < costs["ranks"]["us"]
    assert costs["old"]["arch"] == "sm_80" and costs["old"]["us"] > costs["one"]["us"]
    step = next(line for line in text.stdout.splitlines() if line.startswith("step "))
    assert f"{json.loads(inspect(path, '--stage', 'cost', '--context', 16, '--batch', 4, '--json').stdout)['us']:.2f} us" in step


@pytest.mark.parametrize("options, says", [
    (["--arch", "sm_70"], "sm_80, sm_89, sm_90a, sm_100, sm_120"),
    (["--context", "100000"], "tokens of a sequence; the model takes"),
    (["--batch", "4096", "--prompt", "100"], "409600 tokens"),
    (["--trace", "/nowhere/trace.json"], "cannot write"),
])
def test_a_step_that_cannot_be_replayed_is_refused(options, says):
    run = inspect(FIXTURES / "gpt2-optimum" / "model.onnx", "--stage", "cost", *options)
    assert run.returncode in (64, 71) and says in run.stderr and run.stderr.count("\n") == 1, run.stderr
