"""--processes: ranks exchange over any transport, and load the same model by rank 0's terms, or say that they do not."""

import os
import shutil

import onnx
import onnx.numpy_helper
import pytest

from ark_server import START_SECONDS, TINY, Server, children_of, run_to_end, until

USAGE, UNAVAILABLE = 64, 69
BODY = {"prompt": list(range(3, 20)), "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def tokens_of(server):
    answer = server.post("/v1/completions", BODY)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


@pytest.mark.parametrize("transport, ranks", [("", 2), ("shm", 2), ("socket", 2), ("socket", 3)])
def test_every_transport_gives_the_tokens_of_threads(tiny, tiny_model, transport, ranks):
    with Server("--model", tiny_model, "--tp", ranks, "--processes", environment={"ARK_TRANSPORT": transport}) as server:
        [rank_0] = server.children()  # --supervise is the default
        assert len(children_of(rank_0)) == ranks - 1
        for _ in range(3):
            assert tokens_of(server) == tokens_of(tiny)
        assert server.stop() == 0


@pytest.mark.parametrize("transport, why", [("pigeon", "local, shm, shm+verbs, verbs, shm+verbs-ud, verbs-ud, shm+ucx, ucx, shm+socket, socket"), ("local", "threads of one process")])
def test_a_transport_that_cannot_be_is_refused(tiny_model, transport, why):
    run = run_to_end("--model", tiny_model, "--tp", 2, "--processes", "--check", environment={"ARK_TRANSPORT": transport})
    assert run.returncode in (USAGE, UNAVAILABLE), run.stderr
    assert transport in run.stderr.splitlines()[-1] and why in run.stderr.splitlines()[-1], run.stderr


def test_ranks_take_their_terms_from_rank_0(tiny_model, tmp_path):
    """The context is what the configuration says, which only rank 0 reads; no tokenizer is needed by the others."""
    with Server("--model", tiny_model, "--tp", 2, "--processes", "--kv-memory", "48k") as server:
        [rank_0] = server.children()
        [child] = children_of(rank_0)
        variables = open(f"/proc/{child}/environ").read()
        assert "ARK_KV_BYTES" not in variables and "ARK_RANK_DEVICE" not in variables
        opened = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
        assert not any("tokenizer" in name for name in opened)
        assert len(tokens_of(server)) == BODY["max_tokens"]


def other_weights(path):
    """The same graph and sizes, as a newer training run would give them."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor) * 1.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), tensor.name))
    return model


def test_a_model_that_is_replaced_while_ranks_load_is_noticed(tmp_path):
    for _ in range(5):  # the other rank may have been quicker
        shutil.copy(TINY / "model.onnx", tmp_path / "model.onnx")
        onnx.save(other_weights(TINY / "model.onnx"), tmp_path / "new.onnx")
        server = Server("--model", tmp_path / "model.onnx", "--tp", 2, "--processes", "--no-supervise", wait=False)
        try:
            while not server.children() and server.process.poll() is None:
                pass
            os.replace(tmp_path / "new.onnx", tmp_path / "model.onnx")
            until(lambda: server.process.poll() is not None or any(line.startswith("ready ") for line in server.lines),
                  "ready, or an end", START_SECONDS)
            if server.process.poll() is None:
                continue
            assert server.join() == UNAVAILABLE, server.errors()
            last = server.log[-1]
            assert last.startswith("ark-serve: error: ") and "rank 1 has loaded weights other than rank 0" in last
            return
        finally:
            server.kill()
    pytest.fail("the other rank was quicker each time")
