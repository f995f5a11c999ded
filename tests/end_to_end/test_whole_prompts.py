"""Decoders of which a token's numbers depend on how many are read with it: served plain, each prompt whole, with the tokens of
ONNX Runtime, which reads it so."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ark_server import BIN, Server, Stream
from test_mask_forms import VOCAB, by_ark, by_onnx_runtime, write

PROMPTS = [[(7 * i * i + 3 * n) % VOCAB for i in range(n)] for n in (2, 5, 11, 23, 40, 61)]


def insert(model, before, *nodes):
    place = list(model.graph.node).index(before)
    rest = list(model.graph.node)[place:]
    del model.graph.node[place:]
    model.graph.node.extend([*nodes, *rest])


def constant(model, name, value):
    model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return name


def grows_with_the_sequence(model):
    """As rotations by dynamic NTK and longrope: by all tokens that there are in a step."""
    turn = next(n for n in model.graph.node if n.op_type == "Cos")
    angles = turn.input[0]
    insert(model, turn, helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
           helper.make_node("Gather", ["mask_shape", constant(model, "second", np.int64(1))], ["all_tokens"]),
           helper.make_node("Cast", ["all_tokens"], ["all_of_them"], to=onnx.TensorProto.FLOAT),
           helper.make_node("Mul", ["all_of_them", constant(model, "some", np.float32(0.02))], ["stretch"]),
           helper.make_node("Mul", [angles, "stretch"], ["stretched"]))
    for node in model.graph.node:
        if node.op_type in ("Cos", "Sin"):
            node.input[0] = "stretched"


def sees_all_of_its_step(model):
    """As prompts of PaliGemma: no token is later than another one."""
    later = next(n for n in model.graph.node if n.op_type == "Greater")
    keys, later.input[0] = later.input[0], "earlier"
    insert(model, later, helper.make_node("Sub", [keys, constant(model, "far", np.int64(10**6))], ["earlier"]))


def adds_up_its_step(model):
    head = next(n for n in model.graph.node if "logits" in n.output)
    rows, head.input[0] = head.input[0], "with_mean"
    insert(model, head, helper.make_node("ReduceMean", [rows], ["mean"], axes=[1]),
           helper.make_node("Add", [rows, "mean"], ["with_mean"]))


@pytest.fixture(scope="module", params=[grows_with_the_sequence, sees_all_of_its_step, adds_up_its_step], ids=lambda f: f.__name__)
def decoder(request, tmp_path_factory):
    """The model, and each prompt's tokens."""
    path = tmp_path_factory.mktemp("whole") / "model.onnx"
    write(path, "kept", "int64", "own")
    model = onnx.load(path)
    request.param(model)
    onnx.save(model, path)
    card = subprocess.run([BIN / "ark-inspect", path], capture_output=True, text=True, timeout=60).stdout
    assert "one sequence at a time" in card, card
    return path, [by_onnx_runtime(path, "kept", "int64", prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("count", [700, 3000])
def test_a_long_prompt(decoder, count):
    """Of more tokens than a step takes else; and of so many that it takes more memory than a run without weights may."""
    path, _ = decoder
    prompt = [(5 * i * i + i) % VOCAB for i in range(count)]
    assert by_ark(path, prompt, "--max-model-len", "4000") == by_onnx_runtime(path, "kept", "int64", prompt)


@pytest.mark.parametrize("options", [(), ("--max-num-batched-tokens", 16), ("--slo-itl", 0), ("--supervise",)], ids=lambda o: " ".join(map(str, o)) or "none")
def test_many_at_once(decoder, options):
    path, expected = decoder
    bodies = [{"prompt": prompt, "max_tokens": len(tokens), "temperature": 0, "ignore_eos": True, "stream": True, "n": 1,
               "return_token_ids": True} for prompt, tokens in zip(PROMPTS, expected)] * 2
    with Server("--model", path, *options) as server:
        streams = [Stream(server, body) for body in bodies]
        assert [stream.result()[0][0] for stream in streams] == expected * 2
        echoed = server.post("/v1/completions", {**bodies[-1], "stream": False, "echo": True, "logprobs": 1}).json()["choices"][0]
        assert len(echoed["logprobs"]["token_logprobs"]) == len(PROMPTS[-1]) + len(expected[-1])
