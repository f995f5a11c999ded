"""What a number in a file or an input asks of a plain run: work and memory are bounded by what weights and inputs pay for,
by options as far as the user says, and end where nobody waits. Before, each of these took minutes or gigabytes."""

import json
import resource
import shutil
import subprocess
import threading
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import plain_model
from ark_server import BIN, TINY, Server, raw_post, until

SECONDS = 20  # of processor time: far more than it needs, far less than what is asked for


def save(path, nodes, inputs, outputs, initializers=()):
    values = [helper.make_tensor_value_info(*value) for value in inputs]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info(*value) for value in outputs],
                              [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def run(path, *options, tool="ark-run", **inputs):
    command = [BIN / tool, path, *options]
    for name, array in inputs.items():
        file = path.with_name(f"{path.stem}-{name}.npy")
        np.save(file, array)
        command += ["--input", f"{name}={file}"]
    done = subprocess.run(command, capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)))
    return done.returncode, done.stdout + done.stderr


def refused(words, path, *options, **inputs):
    status, text = run(path, *options, **inputs)
    assert status == 64, (status, text)
    assert all(word in text.splitlines()[-1] for word in words), text


def counting(trips, result, name, state="x", more=()):
    """A Loop that adds one to `state` in each trip."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes"]), helper.make_node("Add", ["was", "loop.one"], ["is"]), *more], "body",
        [helper.make_tensor_value_info("trip", TensorProto.INT64, []), helper.make_tensor_value_info("going", TensorProto.BOOL, []),
         helper.make_tensor_value_info("was", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("goes", TensorProto.BOOL, []), helper.make_tensor_value_info("is", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(1), "loop.one")])
    return helper.make_node("Loop", [trips, "", state], [result], name, body=body)


def test_trips_that_an_input_asks_for(tmp_path):
    path = save(tmp_path / "m.onnx", [counting("trips", "y", "around")],
                [("trips", TensorProto.INT64, []), ("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, None)])
    x = np.zeros(1, np.float32)
    status, text = run(path, trips=np.int64(10_000), x=x)
    assert status == 0, text
    refused(("node around", "--run-work", "at most 1074"), path, trips=np.int64(2**62), x=x)
    refused(("node around", "--run-work", "at most 2000"), path, "--run-work", "2", trips=np.int64(1_000_000), x=x)
    status, text = run(path, "--run-work", "100", "--output-dir", tmp_path, trips=np.int64(1_000_000), x=x)
    assert status == 0 and np.load(tmp_path / "y.npy") == [1_000_000], text  # the user may raise it


@pytest.mark.parametrize("driver", ["static", "dynamic"])
def test_memory_that_an_input_asks_for(tmp_path, driver):
    path = save(tmp_path / "m.onnx", [helper.make_node("Expand", ["x", "shape"], ["y"], "widen")] if driver == "dynamic" else
                [helper.make_node("Add", ["x", "z"], ["y"], "widen")],
                [("x", TensorProto.FLOAT, ["n", 1]), ("shape", TensorProto.INT64, [2]) if driver == "dynamic" else
                 ("z", TensorProto.FLOAT, [1, "m"])], [("y", TensorProto.FLOAT, None)])
    n = 10_000  # 400 MB of 80 KB
    inputs = {"x": np.zeros((n, 1), np.float32)}
    inputs |= {"shape": np.array([n, n])} if driver == "dynamic" else {"z": np.zeros((1, n), np.float32)}
    refused(("--run-memory",), path, "--driver", driver, **inputs)
    status, text = run(path, "--driver", driver, "--run-memory", "1G", **inputs)
    assert status == 0, text


EMPTY = {
    "EyeLike": ([], {}), "LayerNormalization": ([("scale", np.ones(1, np.float32))], {"axis": 1}),
    "MeanVarianceNormalization": ([], {"axes": [0]}), "Trilu": ([], {}), "Softmax": ([], {})}


@pytest.mark.parametrize("driver", ["auto", "dynamic"])
@pytest.mark.parametrize("op", EMPTY)
def test_a_huge_side_of_no_elements_takes_no_time(tmp_path, op, driver):
    """2^40 rows of nothing fit into a file of 100 bytes."""
    more, attributes = EMPTY[op]
    path = save(tmp_path / "m.onnx", [helper.make_node(op, ["x", *(name for name, _ in more)], ["y"], "rows", **attributes)],
                [("x", TensorProto.FLOAT, ["n", "m"])], [("y", TensorProto.FLOAT, None)], more)
    for shape in ((2**40, 0), (0, 2**40)):
        status, text = run(path, "--driver", driver, x=np.empty(shape, np.float32))
        assert status in (0, 64) and ("--run-" in text or status == 0), (status, text)


def test_what_folding_reads_is_bounded(tmp_path):
    """4,000 sums over 2,000,000 numbers: small results, read from much."""
    initializers = [("x", np.ones(2_000_000, np.float32))] + [(f"a{i}", np.array([0])) for i in range(4000)]
    nodes = [helper.make_node("ReduceSum", ["x", f"a{i}"], [f"y{i}"], f"sum{i}") for i in range(4000)]
    path = save(tmp_path / "m.onnx", nodes, [], [(f"y{i}", TensorProto.FLOAT, [1]) for i in range(4000)], initializers)
    status, text = run(path, "--check", tool="ark-inspect")
    assert status in (0, 65), (status, text[-300:])


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A plain decoder that counts to 2^40 where token 7 is in the prompt."""
    if not TINY.exists():
        pytest.skip(f"no {TINY}")
    path = tmp_path_factory.mktemp("endless")
    shutil.copytree(plain_model.folder(), path, dirs_exist_ok=True)
    model = onnx.load(path / "model.onnx")
    graph = model.graph
    little = next(n for n in graph.node if n.name == "plain/some")
    ids = graph.input[0].name
    constants = [("seven", np.int64(7)), ("many", np.int64(2**40)), ("nothing", np.float32(0))]
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), f"endless.{name}") for name, value in constants)
    nodes = [helper.make_node("Equal", [ids, "endless.seven"], ["endless.are"]),
             helper.make_node("Cast", ["endless.are"], ["endless.numbers"], to=TensorProto.INT64),
             helper.make_node("ReduceMax", ["endless.numbers"], ["endless.any"], keepdims=0),
             helper.make_node("Mul", ["endless.any", "endless.many"], ["endless.trips"]),
             counting("endless.trips", "endless.count", "endless/loop", "endless.nothing"),
             helper.make_node("Mul", ["endless.count", "endless.nothing"], ["endless.none"]),
             helper.make_node("Add", [little.input[1], "endless.none"], ["endless.little"])]
    little.input[1] = "endless.little"
    at = list(graph.node).index(little)
    kept = list(graph.node)
    del graph.node[:]
    graph.node.extend([*kept[:at], *nodes, *kept[at:]])
    onnx.save(model, path / "model.onnx")
    return path


GOOD = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize("options", [(), ("--supervise",)])
def test_a_client_that_leaves_ends_its_plain_run(endless, options):
    with Server("--model", endless / "model.onnx", "--run-work", "9e9", *options) as server:
        assert server.post("/v1/completions", GOOD).status_code == 200
        body = json.dumps(GOOD | {"prompt": [1, 7]}).encode()
        with server.connect() as connection:
            connection.sendall(raw_post(body))
            until(lambda: server.metric("ark_requests_running") == 1, "the request runs")
            answers = {}
            other = threading.Thread(target=lambda: answers.update(other=server.post("/v1/completions", GOOD)))
            other.start()
            other.join(1)
            assert other.is_alive()  # the endless one is at it
        other.join(60)
        assert answers["other"].status_code == 200
        assert server.metric("ark_sequences_total", reason="cancelled") == 1
        with server.connect() as connection:  # and so does the end of the server
            connection.sendall(raw_post(body))
            until(lambda: server.metric("ark_requests_running") == 1, "the request runs")
            start = time.monotonic()
            server.signal()
            connection.close()
            assert server.join() == 0 and time.monotonic() - start < 25


def test_a_request_beyond_the_limit_is_told_so_and_others_go_on(endless):
    with Server("--model", endless / "model.onnx", "--run-work", "1") as server:
        answer = server.post("/v1/completions", GOOD | {"prompt": [1, 7]})
        assert answer.status_code == 400 and "endless/loop" in answer.text and "--run-work" in answer.text, answer.text
        assert server.post("/v1/completions", GOOD).status_code == 200
