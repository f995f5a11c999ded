"""ark-run and the later stages of ark-inspect, against what the fixtures' makers stored."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import numpy_helper

from ark_server import BIN, FIXTURES, FULL, ROOT, ark
from oracle import open_session

ZOO = Path(os.environ.get("ARK_ZOO", ROOT / "build" / "zoo"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
SMOLLM2 = CACHE / "ark" / "smollm2-135m-instruct" / "smollm2.onnx"
# By exporter: separate caches, fused attention, 16 bits, grouped queries with a window, no caches at all.
DECODERS = ["gpt2-optimum", "gpt2-no-past", "gpt2-ort-fused", "llama-optimum", "llama-dynamo", "llama-ort-fused",
            "llama-fp16", "mistral-sliding", "llama-genai-fp32"]
PLAIN = ["bert-classifier", "mobilenet-tiny", "vit-tiny", "t5-encoder"]

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists() or not FIXTURES.exists(),
                                reason=f"no {BIN}/ark-run (scripts/build.sh makes it) or no {FIXTURES}")


def run(*arguments, tool="ark-run", code=0):
    return ark(tool, *arguments, code=code).stdout


def inspect(*arguments, code=0):
    return run(*arguments, tool="ark-inspect", code=code)


def model(name):
    return FIXTURES / name / "model.onnx"


def sets(name):
    return sorted((FIXTURES / name).glob("test_data_set_*"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_give_the_stored_logits_and_caches(name, ranks):
    out = run(model(name), "--driver", "decoder", "--tp", ranks, "--test-data", *sets(name))
    assert [line.split()[0] for line in out.splitlines()] == ["PASS"] * len(sets(name))


@pytest.mark.parametrize("driver", ["static", "dynamic", "auto"])
@pytest.mark.parametrize("name", PLAIN + ["llama-optimum"])
def test_plain_drivers_give_the_stored_outputs(name, driver):
    out = run(model(name), "--driver", driver, "--test-data", *sets(name))
    assert [line.split()[0] for line in out.splitlines()] == ["PASS"] * len(sets(name))


def test_what_a_driver_cannot_run_is_unsupported_with_a_reason():
    line = run(model("mobilenet-tiny"), "--driver", "decoder", "--test-data", sets("mobilenet-tiny")[0], code=1)
    assert re.match(r"UNSUPPORTED \S+ no ragged decoder: .+", line)
    run(model("llama-optimum"), "--driver", "nonsense", "--test-data", sets("llama-optimum")[0], code=64)
    run(model("llama-optimum"), "--driver", "static", "--tp", 2, "--test-data", sets("llama-optimum")[0], code=64)


def test_sizes_for_which_no_static_program_holds_run_dynamically_or_name_the_node(tmp_path):
    """Of a table of 64 rows 100 are asked for: the rule of shapes says 100, and nobody may read beyond the table."""

    table = numpy.arange(64 * 3, dtype=numpy.float32).reshape(64, 3)
    nodes = [onnx.helper.make_node("Shape", ["ids"], ["count"]),
             onnx.helper.make_node("Slice", ["table", "zero", "count"], ["rows"]),
             onnx.helper.make_node("Mul", ["rows", "two"], ["y"])]
    constants = [numpy_helper.from_array(value, name) for name, value in
                 (("table", table), ("zero", numpy.zeros(1, numpy.int64)), ("two", numpy.full(1, 2, numpy.float32)))]
    graph = onnx.helper.make_graph(nodes, "rows", [onnx.helper.make_tensor_value_info("ids", 7, ["n"])],
                                   [onnx.helper.make_tensor_value_info("y", 1, None)], constants)
    file = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    folders, session = [], open_session(file)
    for count in (7, 100, 8, 64):
        folders.append(tmp_path / f"test_data_set_{count}")
        folders[-1].mkdir()
        ids = numpy.zeros(count, numpy.int64)
        for name, array in (("input_0", ids), ("output_0", session.run(None, {"ids": ids})[0])):
            proto = numpy_helper.from_array(array, "ids" if name == "input_0" else "y")
            (folders[-1] / f"{name}.pb").write_bytes(proto.SerializeToString())
    verdicts = {driver: [line.split()[0] for line in
                         run(file, "--driver", driver, "--test-data", *folders, code=code).splitlines()]
                for driver, code in (("auto", 0), ("dynamic", 0), ("static", 1))}
    assert verdicts == {"auto": ["PASS"] * 4, "dynamic": ["PASS"] * 4, "static": ["PASS", "UNSUPPORTED", "PASS", "PASS"]}
    line = run(file, "--driver", "static", "--test-data", folders[1], code=1)
    assert re.search(r"no static program for these sizes \(n 100\): node .*Slice", line), line


def test_a_wrong_output_fails(tmp_path):
    shutil.copytree(FIXTURES / "bert-classifier", tmp_path / "m")
    file = next((tmp_path / "m").glob("test_data_set_0/output_0.pb"))
    tensor = onnx.TensorProto.FromString(file.read_bytes())
    wrong = numpy_helper.to_array(tensor).copy()
    wrong.flat[0] += 0.5
    file.write_bytes(numpy_helper.from_array(wrong, tensor.name).SerializeToString())
    out = run("--suite", tmp_path, code=1).splitlines()
    assert out[0].startswith("FAIL ") and "off by 0.5" in out[0]
    assert out[-1] == "1 passed, 1 failed, 0 skipped"
    assert run("--suite", tmp_path, "--atol", "0.6").splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_inputs_from_numpy_are_run_and_saved(tmp_path):
    image = numpy.random.default_rng(1).random((2, 3, 64, 64), dtype=numpy.float32)
    numpy.save(tmp_path / "image.npy", image)
    run(model("mobilenet-tiny"), "--input", f"image={tmp_path / 'image.npy'}", "--output-dir", tmp_path / "out")
    session = open_session(model("mobilenet-tiny"))
    expected = session.run(None, {"image": image})
    for value, output in zip(expected, session.get_outputs()):
        numpy.testing.assert_allclose(numpy.load(tmp_path / "out" / f"{output.name}.npy"), value, 1e-4, 1e-5)
    run(model("mobilenet-tiny"), "--input", f"nothing={tmp_path / 'image.npy'}", code=64)


@pytest.mark.parametrize("version", [8, 3])
def test_inputs_with_a_default_may_be_given(tmp_path, version):
    """From IR version 4 on; before, an initializer is a weight."""
    value = lambda name, *shape: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    default = numpy_helper.from_array(numpy.array([2], numpy.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Mul", ["x", "w"], ["y"])], "g", [value("x", 2), value("w", 1)],
                                   [value("y", 2)], [default])
    opset = onnx.helper.make_opsetid("", 8)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=version), tmp_path / "model.onnx")
    feeds = {"x": numpy.array([1, 3], numpy.float32), "w": numpy.array([5], numpy.float32)}
    for name, array in feeds.items():
        numpy.save(tmp_path / f"{name}.npy", array)
    session = open_session(str(tmp_path / "model.onnx"))
    for names in (["x"], ["x", "w"]):
        given = [part for name in names for part in ("--input", f"{name}={tmp_path / name}.npy")]
        if version < 4 and "w" in names:
            run(tmp_path / "model.onnx", *given, code=64)
            continue
        run(tmp_path / "model.onnx", *given, "--output-dir", tmp_path)
        expected = session.run(None, {name: feeds[name] for name in names})[0]
        assert (numpy.load(tmp_path / "y.npy") == expected).all()


def test_rank_processes_give_the_published_tokens():
    checker = [sys.executable, ROOT / "scripts" / "check_fixtures.py", BIN / "ark-run", FIXTURES, "--device", "cpu"]
    names = ["gpt2-optimum", "llama-optimum"]
    done = subprocess.run([*checker, "--only", *names, "--options", "--tp 2 --processes"], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 equal" in done.stdout
    # It fails where nothing was compared.
    assert subprocess.run([*checker, "--only", "no-such-model"], capture_output=True, timeout=600).returncode == 1
    run(model("llama-optimum"), "--processes", "--test-data", sets("llama-optimum")[0], code=64)


@pytest.mark.parametrize("options", [[], ["--tp", "2"], ["--driver", "dynamic"]], ids=["tp1", "tp2", "plain"])
def test_prompts_of_token_ids_give_the_published_tokens(options):
    case = json.loads((FIXTURES / "llama-optimum" / "expected.json").read_text())["greedy"][0]
    answer = json.loads(run(model("llama-optimum"), "--prompt-ids", ",".join(map(str, case["prompt_ids"])),
                            "--max-tokens", len(case["greedy_ids"]), "--ignore-eos", "--json", *options))
    assert answer["token_ids"] == case["greedy_ids"]
    assert answer["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": len(case["prompt_ids"]), "completion_tokens": len(case["greedy_ids"]),
                               "total_tokens": len(case["prompt_ids"]) + len(case["greedy_ids"])}


def test_sampling_is_reproducible_by_seed():
    command = [model("llama-optimum"), "--prompt-ids", "17,301,42", "--temperature", "1.5", "--json", "--ignore-eos"]
    tokens = [json.loads(run(*command, "--seed", seed))["token_ids"] for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize("name, ranks", [("llama-optimum", 1), ("llama-optimum", 3), ("gpt2-optimum", 2),
                                         ("mistral-sliding", 4), ("llama-int4", 2), ("bert-classifier", 1)])
def test_a_program_is_read_back_exactly(name, ranks, tmp_path):
    plan = tmp_path / "plan.txt"
    plan.write_text(inspect(model(name), "--stage", "program", "--tp", ranks))
    if name != "bert-classifier":
        assert inspect(model(name), "--stage", "program", "--plan", plan) == plan.read_text()


def test_an_edited_plan_is_run_or_refused(tmp_path):
    command = [model("llama-optimum"), "--prompt-ids", "17,301,42,9,255", "--max-tokens", "4", "--json"]
    plan = tmp_path / "plan.txt"
    text = inspect(model("llama-optimum"), "--stage", "program", "--tp", 2)
    plan.write_text("# the same with a name of our own\n" + text.replace("q_proj/MatMul", "edited"))
    assert json.loads(run(*command, "--plan", plan))["token_ids"] == json.loads(run(*command))["token_ids"]
    for broken in (text.replace("arrived ~", "credit ~", 1), text.replace(" wait ", " ", 1),
                   re.sub(r"trips=\d+", "trips=7", text, count=1), text[:len(text) // 2], "nonsense"):
        plan.write_text(broken)
        done = subprocess.run([BIN / "ark-run", *map(str, command), "--plan", plan], capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == 64 and done.stdout == ""
        assert re.fullmatch(r"ark-run: error: .*plan.*\n", done.stderr.splitlines(keepends=True)[-1]), done.stderr
    plan.write_text(text)
    run(*command, "--plan", plan, "--tp", 3, code=64)


def test_plans_that_do_not_fit_quantized_weights_are_refused(tmp_path):
    command = [model("llama-int4"), "--prompt-ids", "17,301,42", "--max-tokens", "2", "--json"]
    text = inspect(model("llama-int4"), "--stage", "program", "--tp", 2)
    weight = re.search(r"(constant=\d+) (panels=64) (block=\d+) transposed u4 (\[.*\])", text)
    constant, panels, block, ranges = weight.groups()
    plan = tmp_path / "plan.txt"
    for edited in (f"{constant} {panels} block=64 transposed u4 {ranges}", f"{constant} {panels} transposed u4 {ranges}",
                   f"{constant} {panels} {block} transposed u8 {ranges}", f"{constant} {panels} {block} u4 {ranges}",
                   f"{constant} {panels} {block} transposed i32 {ranges}",
                   f"{constant} {panels} {block} transposed u4 [40:72, 0:64]", f"{constant} raw u4 {ranges}"):
        plan.write_text(text.replace(weight.group(), edited))
        done = subprocess.run([BIN / "ark-run", *map(str, command), "--plan", plan], capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == 64 and done.stdout == "", (edited, done)
        assert re.fullmatch(r"ark-run: error: .*plan.*\n", done.stderr.splitlines(keepends=True)[-1]), done.stderr
    run(model("llama-int4"), "--input", "input_ids=x.npy", "--plan", plan, code=64)


@pytest.mark.parametrize("stage", ["plan", "program", "weights", "placement"])
@pytest.mark.parametrize("name", ["gpt2-optimum", "vit-tiny"])
def test_compiled_stages_print_text_and_json(stage, name):
    assert len(inspect(model(name), "--stage", stage, "--tp", 2 if name == "gpt2-optimum" else 1)) > 5
    json.loads(inspect(model(name), "--stage", stage, "--json"))


def test_placement_says_which_machine_and_what_carries_each_pair():
    host = os.uname().nodename
    text = inspect(model("gpt2-optimum"), "--stage", "placement", "--tp", 3).splitlines()
    assert text[0] == "every two of 3 ranks exchange by local" and text[1].startswith(f"rank 0 on {host}, ")
    placed = json.loads(inspect(model("gpt2-optimum"), "--stage", "placement", "--tp", 3, "--json"))
    assert [link["between"] for link in placed["links"]] == [[0, 1], [0, 2], [1, 2]]
    assert {rank["machine"] for rank in placed["ranks"]} == {host}


def test_the_plan_is_drawn_with_ranks_as_columns_and_bytes_on_edges():
    text = inspect(model("gpt2-optimum"), "--stage", "plan", "--dot", "--tp", 3)
    assert [f'label="rank {r}"' in text for r in range(4)] == [True, True, True, False]
    edges = re.findall(r"r(\d)_\d+ -> r(\d)_\d+ \[label=\"([^\"]+)\"", text)
    assert {(a, b) for a, b, _ in edges} == {(str(a), str(b)) for a in range(3) for b in range(3) if a != b}
    assert all(re.fullmatch(r"[\w*+ ]*(tokens|rows) B", size) for _, _, size in edges)
    assert text.count("{") == text.count("}")


@pytest.mark.skipif(not shutil.which("dot"), reason="no dot (apt-get install graphviz)")
@pytest.mark.parametrize("stage", ["graph", "passes", "recognise", "plan"])
def test_graphviz_draws_what_is_printed(stage):
    text = inspect(model("gpt2-optimum"), "--stage", stage, "--dot", "--tp", 2)
    done = subprocess.run(["dot", "-Tsvg"], input=text, text=True, capture_output=True, check=True, timeout=300)
    assert done.stderr == "" and "</svg>" in done.stdout
    assert done.stdout.count('class="node"') >= 10 and done.stdout.count('class="edge"') >= 10


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5] if FULL else [1, 3, 4])
def test_the_validator_accepts_every_program_that_lowering_makes(ranks):
    """--check compiles and validates."""
    files = [model(name) for name in DECODERS] + sorted(ZOO.glob("*/model.onnx"))
    files += [SMOLLM2] if SMOLLM2.exists() and ranks < 4 else []
    for file in files:
        assert inspect(file, "--check", "--tp", ranks).startswith("ok: "), file


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"no {SMOLLM2} (scripts/serve.sh makes it)")
@pytest.mark.parametrize("index, ranks", [(0, 1), (3, 2), (4, 3)])
def test_smollm2_gives_the_published_tokens(index, ranks):
    expected = json.loads((FIXTURES / "smollm2-135m-instruct" / "expected.json").read_text())
    prompts = next(v for v in expected.values() if isinstance(v, list) and v and "prompt_ids" in v[0])
    case = prompts[index]
    answer = json.loads(run(SMOLLM2, "--prompt-ids", ",".join(map(str, case["prompt_ids"])), "--max-tokens", 48,
                            "--tp", ranks, "--threads", 2, "--ignore-eos", "--json"))
    for got, want, margin in zip(answer["token_ids"], case["greedy_ids"], case["margins"], strict=True):
        if got != want:
            assert margin < 1e-3
            break
