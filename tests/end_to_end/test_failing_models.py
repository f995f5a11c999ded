"""What a model computes wrongly is the error of the requests that meet it; the others go on, and so does the server."""

import json
import shutil
import subprocess
import threading

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import plain_model
from ark_server import BIN, FIXTURES, TINY, Server, run_to_end
from oracle import open_session

COMPLETE = "/v1/completions"
MODELS = {"batched": lambda: TINY, "plain": plain_model.folder}
BAD = 7  # a token
GOOD = {"prompt": [1, 2, 3], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module", params=MODELS)
def fixture(request):
    if not TINY.exists():
        pytest.skip(f"no {TINY}")
    return MODELS[request.param]() / "model.onnx"


def changed(source, path, name, change):
    """The model with one initializer changed."""
    model = onnx.load(source)
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    onnx.save(model, path)
    return path


def untied(source, path, change):
    """The model with a head of its own, [features, vocabulary], changed."""
    model = onnx.load(source)
    (table,) = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "model.embed_tokens.weight"]
    logits = model.graph.output[0].name
    (head,) = [n for n in model.graph.node if logits in n.output]
    assert head.op_type == "MatMul", head.op_type
    head.input[1] = "own.head"
    model.graph.initializer.append(numpy_helper.from_array(change(np.ascontiguousarray(table.T)), "own.head"))
    onnx.save(model, path)
    return path


def error_of(answer, status, code):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code and error["message"].isprintable()
    return error["message"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_end_their_request_only(fixture, tmp_path, value):
    def change(rows):
        rows[BAD, 0] = value
        return rows

    path = changed(fixture, tmp_path / "model.onnx", "model.embed_tokens.weight", change)
    with Server("--model", path) as server:
        wanted = server.post(COMPLETE, GOOD).json()["choices"][0]["token_ids"]
        assert BAD not in wanted and len(wanted) == GOOD["max_tokens"]
        beside = {}
        other = threading.Thread(target=lambda: beside.update(server.post(COMPLETE, GOOD).json()))
        other.start()
        for sampling in ({"temperature": 0}, {"temperature": 1, "top_p": 0.9}, {"temperature": 1, "logprobs": 2}):
            message = error_of(server.post(COMPLETE, {"prompt": [1, BAD], "max_tokens": 4, **sampling}), 500, "model_error")
            assert "not finite" in message
        stream = server.post(COMPLETE, {"prompt": [BAD], "max_tokens": 4, "stream": True})
        events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
        assert json.loads(events[-2])["error"]["code"] == "model_error" and events[-1] == "[DONE]"
        other.join()
        assert beside["choices"][0]["token_ids"] == wanted
        assert server.metric("ark_nonfinite_logits_total") == 4
        assert server.metric("ark_sequences_total", reason="failed") == 4


def nan_at(*columns):
    def change(head):
        head[0, list(columns)] = np.nan
        return head
    return change


HEADS = {"one": nan_at(BAD), "half": nan_at(*range(0, 512, 2)), "all but one": nan_at(*range(1, 512))}


@pytest.mark.parametrize("which", HEADS)
def test_one_logit_that_is_nan_is_enough(fixture, which, tmp_path):
    """Also beside larger ones that are finite."""
    with Server("--model", untied(fixture, tmp_path / "model.onnx", HEADS[which])) as server:
        for sampling in ({"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_k": 5, "top_p": 0.9},
                         {"temperature": 0, "logprobs": 2}, {"echo": True, "logprobs": 1}):
            message = error_of(server.post(COMPLETE, {"prompt": [1, 2], "max_tokens": 4, **sampling}), 500, "model_error")
            assert "not finite" in message
        assert server.metric("ark_nonfinite_logits_total") == 5


def test_logits_that_are_masked_are_no_error(fixture, tmp_path):
    """Minus infinity for some tokens: a bias behind the head."""
    model = onnx.load(untied(fixture, tmp_path / "model.onnx", lambda head: head))
    mask = np.zeros(512, np.float32)
    mask[::2] = -np.inf
    logits = model.graph.output[0].name
    (head,) = [n for n in model.graph.node if logits in n.output]
    head.output[0] = "own.logits"
    model.graph.node.append(onnx.helper.make_node("Add", ["own.logits", "own.mask"], [logits]))
    model.graph.initializer.append(numpy_helper.from_array(mask, "own.mask"))
    onnx.save(model, tmp_path / "model.onnx")
    with Server("--model", tmp_path / "model.onnx") as server:
        for sampling in ({"temperature": 0, "logprobs": 2}, {"temperature": 1, "top_p": 0.9}):
            answer = server.post(COMPLETE, {**GOOD, **sampling})
            assert answer.status_code == 200, answer.text
            assert all(token % 2 for token in answer.json()["choices"][0]["token_ids"])


def test_ids_beyond_the_embedding_are_refused_as_by_onnx_runtime(fixture, tmp_path):
    """The head knows 512 tokens, the table has rows for 500."""
    path = changed(fixture, tmp_path / "model.onnx", "model.embed_tokens.weight", lambda rows: rows[:500])
    session = open_session(path)
    shapes = {i.name: [1 if isinstance(d, str) else d for d in i.shape] for i in session.get_inputs()}
    feed = {name: np.zeros([0 if "past" in name and axis == 2 else d for axis, d in enumerate(shape)],
                           np.float32 if "past" in name else np.int64) for name, shape in shapes.items()}
    feed["input_ids"][:] = 505
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, feed)
    with Server("--model", path) as server:
        for _ in range(2):
            error_of(server.post(COMPLETE, {"prompt": [1, 505], "max_tokens": 4}), 400, None)
            assert server.post(COMPLETE, {"prompt": [1, 499], "max_tokens": 1}).status_code == 200
        # Sampled, it is no token that can be gone on with.
        bias = {"logit_bias": {"505": 100}, "temperature": 0, "ignore_eos": True}
        assert server.post(COMPLETE, {"prompt": [1], "max_tokens": 1, **bias}).status_code == 200
        assert server.post(COMPLETE, {"prompt": [1], "max_tokens": 4, **bias}).status_code in (400, 500)
        assert server.get("/health").status_code == 200


def test_a_plain_model_that_cannot_run_a_prompt_is_refused_at_once(tmp_path):
    """Not every product that types and ranks allow has sizes that fit: ONNX's inference does not see it, either."""
    source = FIXTURES / "llama-genai-fp32"
    if not source.exists():
        pytest.skip(f"no {source}")
    shutil.copytree(source, tmp_path / "model")
    path = next((tmp_path / "model").glob("*.onnx"))
    model = onnx.load(path)
    norms = [n for n in model.graph.node if "LayerNormalization" in n.op_type]
    weight = norms[-1].input[2 if norms[-1].op_type.startswith("Skip") else 1]
    (tensor,) = [t for t in model.graph.initializer if t.name == weight]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).reshape(-1, 1), weight))
    onnx.save(model, path)
    serving = run_to_end("--model", path.parent, "--check")
    looking = subprocess.run([BIN / "ark-inspect", "--check", path.parent], capture_output=True, text=True)
    for run in (serving, looking):
        assert run.returncode == 65, (run.stdout, run.stderr)
        assert "cannot run a prompt" in run.stderr and norms[-1].name in run.stderr and run.stderr.count("\n") == 1
