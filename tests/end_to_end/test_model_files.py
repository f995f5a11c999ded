"""Models as people have them on disk: repositories of the hub, variants, other formats, what is missing."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from ark_server import BINARY, FIXTURES, TINY, Server, run_to_end

USAGE, DATA, NO_INPUT = 64, 65, 66

pytestmark = pytest.mark.skipif(not TINY.exists(), reason=f"no {TINY}")


def refused(code, *options):
    run = run_to_end(*options)
    assert run.returncode == code, (run.returncode, run.stdout, run.stderr)
    assert run.stderr.startswith("ark-serve: error: ") and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


@pytest.fixture
def repository(tmp_path):
    """repo/onnx/model.onnx with all else one folder up, as on the hub."""
    folder = tmp_path / "some-llama"
    (folder / "onnx").mkdir(parents=True)
    for file in filter(Path.is_file, TINY.iterdir()):
        shutil.copy(file, folder / "onnx" if file.suffix == ".onnx" else folder)
    return folder


@pytest.mark.parametrize("given", [".", "onnx", "onnx/model.onnx"])
def test_a_repository_of_the_hub(tiny, repository, given):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    with Server("--model", repository / given) as server:
        assert server.model == "some-llama"
        answer = server.post("/v1/chat/completions", body).json()
        assert answer["choices"] == tiny.post("/v1/chat/completions", body).json()["choices"]
        [model] = server.get("/v1/models").json()["data"]
        assert model["max_model_len"] == 128  # config.json was found, too


def test_variants(repository):
    file = repository / "onnx" / "model.onnx"
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        shutil.copy(file, file.with_name(name))
    assert "checked      some-llama can" in run_to_end("--model", repository, "--check").stdout
    q4 = run_to_end("--model", repository, "--variant", "q4", "--check").stdout
    assert "checked      some-llama can" in q4 and "model_q4.onnx" in q4
    by_environment = run_to_end("--model", repository, "--check", environment={"ARK_SERVE_VARIANT": "fp16"})
    assert "model_fp16.onnx" in by_environment.stdout
    line = refused(USAGE, "--model", repository, "--variant", "int8")
    assert "q4 (model_q4.onnx, " in line and "fp16 (" in line and "model (" in line
    (file.parent / "model_q4.onnx_data").write_bytes(bytes(3 << 20))
    file.unlink()
    line = refused(USAGE, "--model", repository)
    assert "2 .onnx files" in line and "--variant" in line and "MiB" in line
    size = (file.parent / "model_q4.onnx").stat().st_size / (1 << 20) + 3
    assert f"q4 (model_q4.onnx, {size:.1f} MiB)" in line
    assert "is a file" in refused(USAGE, "--model", file.with_name("model_q4.onnx"), "--variant", "q4")


def test_tools_choose_the_file_as_the_server_does(repository):
    folder = repository / "onnx"
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        (folder / "model.onnx").with_name(name).write_bytes((folder / "model.onnx").read_bytes())
    (folder / "model.onnx").unlink()
    tools = {"ark-run": ["--prompt-ids", "1,2", "--max-tokens", 1], "ark-inspect": [],
             "ark-bench": ["--context", 8, "--prefill", 8, "--repeat", 1]}
    for tool, options in tools.items():
        command = [BINARY.with_name(tool), *(["model"] if tool == "ark-bench" else []), repository, *options]
        run = subprocess.run([*map(str, command)], capture_output=True, text=True)
        assert run.returncode == USAGE and "choose by --variant" in run.stderr and "q4 (model_q4.onnx, 0.8 MiB)" in run.stderr
        run = subprocess.run([*map(str, command), "--variant", "q4"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    card = subprocess.run([BINARY.with_name("ark-inspect"), repository, "--variant", "q4"], capture_output=True, text=True).stdout
    assert "model_q4.onnx" in card
    assert "template beside the file" in card and "512 tokens" in card  # which lie one folder up


def test_a_name_of_the_hub_is_told_from_a_path(tmp_path):
    for given in ("someone/some-3.5", "hf://someone/some-3.5", "https://huggingface.co/someone/some-3.5"):
        line = refused(NO_INPUT, "--model", given)
        assert "hf download someone/some-3.5 --local-dir some-3.5 " in line
        assert "optimum-cli export onnx --model someone/some-3.5 some-3.5; then give some-3.5" in line
    assert "optimum-cli export onnx --model gpt2 gpt2;" in refused(NO_INPUT, "gpt2")
    for path in ("./someone/model", "/someone/model", "someone/", "a/b/c", "someone/model.onnx", "model.gguf", "a b",
                 "https://example.com/model"):
        assert "download" not in refused(NO_INPUT, "--model", path)


def test_what_cannot_be_looked_into_is_not_called_empty_or_missing(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read: Too many levels" in refused(NO_INPUT, "--model", tmp_path / "loop")
    assert "cannot be read: File name too long" in refused(NO_INPUT, "--model", tmp_path / ("x" * 300))


@pytest.mark.parametrize("name, command", [("m.gguf", "models/gguf_to_onnx.py"), ("m.safetensors", "optimum-cli export onnx"),
                                           ("pytorch_model.bin", "optimum-cli export onnx")])
def test_a_folder_of_another_format(tmp_path, name, command):
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    line = refused(NO_INPUT, "--model", tmp_path)
    assert "holds no .onnx file" in line and name in line and command in line


@pytest.mark.parametrize("content, what", [
    (b"GGUF\x03\0\0\0" + bytes(100), "models/gguf_to_onnx.py"),
    ((100).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' + bytes(100), "safetensors"),
    (b"PK\x03\x04" + bytes(100), "PyTorch"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git lfs pull"),
    ("# Modèle\nA page of text.\n".encode(), "is no ONNX model but text"),
], ids=["gguf", "safetensors", "zip", "lfs", "text"])
def test_a_file_of_another_format(tmp_path, content, what):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    line = refused(DATA, "--model", path)
    assert what in line and "no ONNX model" in line


SIDE_FILES = {  # what becomes of the repository, and what is said of it
    "a link to the environment": ("chat_template.jinja", lambda path: path.symlink_to("/proc/self/environ")),
    "a FIFO": ("tokenizer.json", lambda path: os.mkfifo(path)),
    "100 MB of brackets": ("tokenizer.json", lambda path: path.write_bytes(b"[" * 100_000_000)),
    "an end that is no token": ("generation_config.json", lambda path: path.write_text('{"eos_token_id": "x"}')),
    "another model's": ("tokenizer.json", lambda path: path.write_text(json.dumps(
        {"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 70_000}}}))),
}


@pytest.mark.parametrize("what", SIDE_FILES)
def test_a_check_looks_at_all_files_that_serving_reads(repository, what):
    name, change = SIDE_FILES[what]
    tools = {"ark-serve": ["--check", "--model"], "ark-inspect": ["--check"],
             "ark-run": ["--prompt-ids", "1,2", "--max-tokens", "1"]}
    run = lambda tool: subprocess.run([BINARY.with_name(tool), *tools[tool], repository], capture_output=True, text=True)  # noqa: E731
    assert [run(tool).returncode for tool in tools] == [0, 0, 0]
    (repository / name).unlink(missing_ok=True)
    change(repository / name)
    said = set()
    for tool in tools:
        ran = run(tool)
        assert ran.returncode == DATA, (tool, ran.returncode, ran.stderr)
        said.add(ran.stderr.removeprefix(tool))
    assert len(said) == 1 and name in said.pop()


def test_an_encoder_is_named_as_such():
    bert = FIXTURES / "bert-opset11"
    if not bert.exists():
        pytest.skip(f"no {bert}")
    line = refused(DATA, "--model", bert)
    assert "encoder or classifier" in line and "ark-run" in line
    graph = onnx.load(next(bert.glob("*.onnx")), load_external_data=False).graph
    for output in graph.output:
        assert output.name in line


@pytest.mark.parametrize("name, what", [("t5-decoder", "reads an encoder's states: input encoder_hidden_states is"),
                                        ("whisper-decoder-with-past", "past_key_values.0.encoder.value is"),
                                        ("whisper-encoder", "encoder or classifier, which outputs last_hidden_state ["),
                                        ("vit-tiny", "encoder or classifier, which outputs logits ["),
                                        ("resnet-tiny", "no integer input")])
def test_what_else_cannot_be_served_is_named_as_such(name, what):
    if not (FIXTURES / name).exists():
        pytest.skip(f"no {FIXTURES / name}")
    assert what in refused(DATA, "--model", FIXTURES / name)


def in_pieces(folder, name, rows="inputs_embeds"):
    """llama-optimum as models of pictures and text are cut: embed_tokens.onnx looks tokens up, NAME takes its rows."""
    model = onnx.load(FIXTURES / "llama-optimum" / "model.onnx")
    lookup = next(n for n in model.graph.node if n.op_type == "Gather" and "input_ids" in n.input)
    table = next(t for t in model.graph.initializer if t.name == lookup.input[0])
    model.graph.node.remove(lookup)
    ids = next(i for i in model.graph.input if i.name == "input_ids")
    sizes = [d.dim_param for d in ids.type.tensor_type.shape.dim]
    embeddings = onnx.helper.make_tensor_value_info(rows, onnx.TensorProto.FLOAT, [*sizes, table.dims[1]])
    model.graph.input.append(embeddings)
    for node in model.graph.node:
        node.input[:] = [rows if i == lookup.output[0] else i for i in node.input]
    if not any("input_ids" in n.input for n in model.graph.node):
        model.graph.input.remove(ids)
    onnx.save(model, folder / name)
    lookup.output[0] = rows
    opsets = [onnx.helper.make_opsetid("", 11)]  # another one than the decoder's
    graph = onnx.helper.make_graph([lookup], "lookup", [ids], [embeddings], [table])
    for size, other in zip(graph.input[0].type.tensor_type.shape.dim, ("rows", "tokens")):
        size.dim_param = other
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "embed_tokens.onnx")
    return [*sizes, table.dims[1]]


def test_a_decoder_of_embeddings_is_named_as_such(tmp_path):
    sizes = in_pieces(tmp_path, "decoder_model_merged.onnx")
    (tmp_path / "embed_tokens.onnx").unlink()
    line = refused(DATA, "--model", tmp_path)
    assert f"a decoder of embeddings, inputs_embeds [{sizes[0]}, {sizes[1]}, {sizes[2]}]" in line and "embed_tokens.onnx" in line


def test_a_decoder_in_pieces_is_one_model(tmp_path):
    """transformers.js's names; the vision encoder beside them is left alone."""
    def generate(*options):
        command = [BINARY.with_name("ark-run"), *options, "--prompt-ids", "5,9,2,44", "--max-tokens", "16", "--ignore-eos", "--json"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)["token_ids"]

    for name in ("decoder_model_merged.onnx", "decoder_model_merged_q4.onnx"):
        in_pieces(tmp_path, name)
    shutil.copy(tmp_path / "embed_tokens.onnx", tmp_path / "vision_encoder.onnx")
    whole = generate(FIXTURES / "llama-optimum" / "model.onnx")
    assert generate(tmp_path) == generate(tmp_path, "--tp", "2") == whole
    assert generate(tmp_path / "decoder_model_merged_q4.onnx") == whole  # which has no table of its own
    assert "checked      " in run_to_end("--model", tmp_path, "--variant", "q4", "--check").stdout
    card = subprocess.run([BINARY.with_name("ark-inspect"), tmp_path], capture_output=True, text=True, check=True, timeout=60)
    assert "serving     batched" in card.stdout
    in_pieces(tmp_path, "decoder_model_merged.onnx", "rows")  # another name: not its table
    shutil.copy(tmp_path / "vision_encoder.onnx", tmp_path / "embed_tokens.onnx")
    assert "a decoder of embeddings, rows [" in refused(DATA, "--model", tmp_path)
    in_pieces(tmp_path, "decoder_model_merged.onnx")
    table = onnx.load(tmp_path / "embed_tokens.onnx")
    table.graph.output.append(table.graph.output[0])  # twice the same
    onnx.save(table, tmp_path / "embed_tokens.onnx")
    assert generate(tmp_path) == whole
    table.graph.output[0].type.tensor_type.shape.dim[2].dim_value += 1
    onnx.save(table, tmp_path / "embed_tokens.onnx")
    line = refused(DATA, "--model", tmp_path)
    assert "embed_tokens.onnx makes rows of " in line and "decoder_model_merged.onnx takes " in line


def test_an_encoder_of_sound_is_no_decoder_of_embeddings(tmp_path):
    """Rows of features and a mask in, a row of scores for each out, as Wav2Vec2-BERT has it."""
    info = lambda name, kind, *shape: onnx.helper.make_tensor_value_info(name, kind, ["batch", "time", *shape])  # noqa: E731
    inputs = [info("x", onnx.TensorProto.FLOAT, 4), info("mask", onnx.TensorProto.INT64)]
    nodes = [onnx.helper.make_node("Cast", ["mask"], ["m"], to=1), onnx.helper.make_node("Unsqueeze", ["m", "last"], ["column"]),
             onnx.helper.make_node("Mul", ["x", "column"], ["y"])]
    last = onnx.helper.make_tensor("last", onnx.TensorProto.INT64, [1], [-1])
    graph = onnx.helper.make_graph(nodes, "sound", inputs, [info("y", onnx.TensorProto.FLOAT, 4)], [last])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    assert "an encoder or classifier, which outputs y [batch, time, 4]" in refused(DATA, "--model", tmp_path / "model.onnx")


def test_external_data_that_was_not_downloaded(tmp_path):
    model = onnx.load(TINY / "model.onnx")
    onnx.save_model(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx_data",
                    size_threshold=0)
    (tmp_path / "model.onnx_data").unlink()
    line = refused(NO_INPUT, "--model", tmp_path / "model.onnx")
    assert "model.onnx_data" in line and str(tmp_path) in line and "download it beside the model" in line


def test_a_context_beyond_the_model_is_refused(repository):
    line = refused(USAGE, "--model", repository, "--max-model-len", 129)
    assert "129" in line and "128 positions" in line
    config = json.loads((repository / "config.json").read_text())
    (repository / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    assert "32 positions" in refused(USAGE, "--model", repository, "--max-model-len", 33)
    assert run_to_end("--model", repository, "--max-model-len", 32, "--check").returncode == 0


def test_lines_at_the_start_fit_in_a_terminal(repository):
    for ranks in (1, 2, 4):
        run = run_to_end("--model", repository, "--tp", ranks, "--check")
        [partition] = [line for line in run.stdout.splitlines() if line.startswith("partition")]
        assert len(partition) <= 100 and f"tp={ranks}" in partition
        assert "x attention heads" in partition  # the most telling part is kept longest
        [memory] = [line for line in run.stdout.splitlines() if line.startswith("memory")]
        assert "touched on use" in memory
