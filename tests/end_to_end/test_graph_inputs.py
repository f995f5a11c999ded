"""Decoder files whose inputs differ from the usual ones: what exporters add, leave over or name badly. Each file is a
zoo decoder with its inputs changed; ONNX Runtime runs the same file and says what comes out."""

import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ark_server import BIN, FIXTURES, ark
from llama_random import write
from oracle import open_session
from presets import preset
from zoo import write_model

pytestmark = pytest.mark.skipif(not (BIN / "ark-run").exists(), reason=f"no {BIN}/ark-run (scripts/build.sh makes it)")

PROMPT, NEW = [5, 17, 3, 42, 9], 12
INT64, INT32, BOOL, FLOAT = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT


# -- what a step feeds, by input name; everything else is a cache

def ones(past, new):
    return np.ones((1, past + new))


def counted(past, new):
    return np.arange(past, past + new)


def causal(past, new):
    return (np.arange(past + new)[None] <= counted(past, new)[:, None])[None, None]


FEEDS = {
    "attention_mask": ones,
    "position_ids": lambda past, new: counted(past, new)[None],
    "cache_position": counted,
    "grid_positions": lambda past, new: np.broadcast_to(counted(past, new), (3, 1, new)),
    "token_type_ids": lambda past, new: np.zeros((1, new)),
    "leftover": lambda past, new: np.zeros((1, new, 2)),
    "total_sequence_length": lambda past, new: np.array(past + new),
    "seqlens_k": lambda past, new: np.array([past + new - 1]),
    "chosen": causal,
    "added": lambda past, new: np.where(causal(past, new), 0, -1e30),
    "chosen_rows": lambda past, new: causal(past, new)[0],
    "added_rows": lambda past, new: np.where(causal(past, new)[0], 0, -1e30),
    "num_logits_to_keep": lambda past, new: np.array(0),
    "logits_to_keep": lambda past, new: np.array([0]),
    "rows_kept": lambda past, new: np.array(2**31 - 1),
    "use_cache_branch": lambda past, new: np.array([True]),
}
NUMPY = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


class Session:
    def __init__(self, path):
        self.session = open_session(str(path))
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]

    def empty_past(self):
        return {name: np.zeros([d if isinstance(d, int) else int("batch" in d) for d in i.shape], NUMPY[i.type])
                for name, i in self.inputs.items() if name.startswith("past_key_values")}

    def feeds(self, ids, past, **given):
        before = next(iter(past.values())).shape[2]
        feeds = {"input_ids": np.array([ids]), **past}
        feeds |= {n: FEEDS[n](before, len(ids)) for n in self.inputs if n not in feeds}
        return {n: np.asarray((feeds | given)[n]).astype(NUMPY[i.type]) for n, i in self.inputs.items()}

    def run(self, feeds):
        outputs = dict(zip(self.outputs, self.session.run(None, feeds)))
        past = {n: outputs[n.replace("past_key_values", "present")] for n in feeds if n.startswith("past_key_values")}
        return outputs, past

    def greedy(self):
        ids, past, feed = [], self.empty_past(), PROMPT
        for _ in range(NEW):
            outputs, past = self.run(self.feeds(feed, past))
            logits = outputs["logits"].reshape(-1, outputs["logits"].shape[-1])
            ids.append(int(logits[-1].argmax()))
            feed = ids[-1:]
        return ids


# -- changes to the model

def value(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def replace_uses(graph, old, new):
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def drop_input(graph, name):
    graph.input.remove(next(i for i in graph.input if i.name == name))


def producer(graph, name):
    return next(n for n in graph.node if name in n.output)


def prune(model):
    """Without nodes that no output needs."""
    graph, alive = model.graph, {o.name for o in model.graph.output}
    kept = []
    for node in reversed(graph.node):
        if alive & set(node.output):
            alive |= set(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))


def unused(model):
    model.graph.input.extend([value("token_type_ids", INT64, "batch_size", "sequence_length"),
                              value("total_sequence_length", INT32),
                              value("leftover", FLOAT, "batch_size", "rest", 2)])


def keep(name, *shape):
    """The hidden states cut to the last `name` rows before the head, as transformers' logits_to_keep does."""

    def change(model):
        graph = model.graph
        head = producer(graph, producer(graph, "logits").input[0])
        at = list(graph.node).index(head)
        nodes = [helper.make_node("Neg", [name], ["keep_from"]),
                 helper.make_node("Reshape", ["keep_from", "keep_one"], ["keep_start"]),
                 helper.make_node("Slice", [head.input[0], "keep_start", "keep_end", "keep_axis"], ["kept"])]
        head.input[0] = "kept"
        for i, node in enumerate(nodes):
            graph.node.insert(at + i, node)
        for constant, number in (("keep_one", 1), ("keep_end", 2**63 - 1), ("keep_axis", 1)):
            graph.initializer.append(numpy_helper.from_array(np.array([number]), constant))
        graph.input.append(value(name, INT64, *shape))
        graph.output[0].CopyFrom(value("logits", FLOAT, "batch_size", "kept_rows", 64))

    return change


def keep_by_difference(model):
    """The first row kept is the length less the number: none is kept of 0, all of more than there are."""
    keep("rows_kept")(model)
    graph = model.graph
    negated = next(n for n in graph.node if "rows_kept" in n.input)
    at = list(graph.node).index(negated)
    graph.node.remove(negated)
    nodes = [helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
             helper.make_node("Gather", ["ids_shape", "keep_one"], ["ids_length"], axis=0),
             helper.make_node("Sub", ["ids_length", "rows_kept"], ["keep_from"])]
    for i, node in enumerate(nodes):
        graph.node.insert(at + i, node)


def branches(model):
    """An If around all: then as it was, else with other logits, as a merged file's branch without a cache has."""
    graph = model.graph
    names = [o.name for o in graph.output]
    for name in names:
        made = producer(graph, name)
        replace_uses(graph, name, f"{name}_then")
        made.output[:] = [f"{o}_then" if o == name else o for o in made.output]
    caches = [i.name for i in graph.input if i.name.startswith("past_key_values")]
    other = [helper.make_node("ConstantOfShape", ["else_shape"], ["logits_else"])]
    other += [helper.make_node("Identity", [c], [f"{c}_else"]) for c in caches]
    outs = [[value(n, FLOAT) for n in group] for group in
            ([f"{n}_then" for n in names], ["logits_else"] + [f"{c}_else" for c in caches])]
    for out in outs[0] + outs[1]:
        out.type.tensor_type.ClearField("shape")
    graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 64]), "else_shape"))
    chooses = helper.make_node("If", ["use_cache_branch"], names,
                               then_branch=helper.make_graph(list(graph.node), "then", [], outs[0]),
                               else_branch=helper.make_graph(other, "else", [], outs[1]))
    del graph.node[:]
    graph.node.append(chooses)
    graph.input.append(value("use_cache_branch", BOOL, 1))


def rows_given(name="cache_position"):
    """Range(past, past + S) becomes an input."""

    def change(model):
        graph = model.graph
        rows = next(n for n in graph.node if n.op_type == "Range")
        replace_uses(graph, rows.output[0], name)
        graph.input.insert(1, value(name, INT64, "sequence_length"))
        prune(model)

    return change


def three_grids(model):
    graph = model.graph
    replace_uses(graph, "position_ids", "text_positions")
    graph.node.insert(0, helper.make_node("Gather", ["grid_positions", "text_grid"], ["text_positions"], axis=0))
    graph.initializer.append(numpy_helper.from_array(np.array(1), "text_grid"))
    drop_input(graph, "position_ids")
    graph.input.append(value("grid_positions", INT64, 3, "batch_size", "sequence_length"))


def one_name(model):
    """dynamic_axes = {"input_ids": {1: "seq"}, "attention_mask": {1: "seq"}, ...}"""
    for i in model.graph.input:
        if len(i.type.tensor_type.shape.dim) == 2:
            i.type.tensor_type.shape.dim[1].dim_param = "seq"


def own_name(model):
    """The mask's length has a name that says nothing."""
    mask = next(i for i in model.graph.input if i.name == "attention_mask")
    mask.type.tensor_type.shape.dim[1].dim_param = "total"


def fix_head_size(graph):
    for cache in graph.input:
        if cache.name.startswith("past_key_values"):
            cache.type.tensor_type.shape.dim[3].dim_value = 16


def lengths(model):
    """GroupQueryAttention's two lengths as inputs, not made from a mask."""
    graph = model.graph
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input[5], node.input[6] = "seqlens_k", "total_sequence_length"
    drop_input(graph, "attention_mask")
    fix_head_size(graph)
    graph.input.extend([value("seqlens_k", INT32, "batch_size"), value("total_sequence_length", INT32)])
    prune(model)


def lengths_by_positions(op, keeps_mask):
    """They are made of the last position, for which positions alone are read."""

    def change(model):
        graph = model.graph
        for node in graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[5], node.input[6] = "last_position", "all_positions"
        picked = helper.make_node(op, ["position_ids"], ["last_of_row"], keepdims=0, axes=[1])
        if op == "Gather":
            graph.initializer.append(numpy_helper.from_array(np.array(-1), "last_place"))
            picked = helper.make_node(op, ["position_ids", "last_place"], ["last_of_row"], axis=1)
        elif max(o.version for o in model.opset_import if not o.domain) >= 18:
            graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis_of_tokens"))
            picked = helper.make_node(op, ["position_ids", "axis_of_tokens"], ["last_of_row"], keepdims=0)
        graph.initializer.append(numpy_helper.from_array(np.array(1), "one_more"))
        made = [picked, helper.make_node("Cast", ["last_of_row"], ["last_position"], to=INT32),
                helper.make_node("ReduceMax", ["last_of_row"], ["last_of_all"], keepdims=0),
                helper.make_node("Add", ["last_of_all", "one_more"], ["number_of_all"]),
                helper.make_node("Cast", ["number_of_all"], ["all_positions"], to=INT32)]
        for node in reversed(made):
            graph.node.insert(0, node)
        if keeps_mask:
            graph.output.append(value("seen_keys", INT64))
            graph.node.append(helper.make_node("ReduceSum", ["attention_mask"], ["seen_keys"], keepdims=0))
        else:
            drop_input(graph, "attention_mask")
        graph.input.append(value("position_ids", INT64, "batch_size", "sequence_length"))
        fix_head_size(graph)
        prune(model)

    return change


def guesses_first(model):
    """A head that guesses the token after the next one stands before the logits."""
    graph = model.graph
    graph.node.append(helper.make_node("Neg", ["logits"], ["medusa_logits"]))
    graph.output.insert(0, onnx.ValueInfoProto.FromString(next(o for o in graph.output if o.name == "logits").SerializeToString()))
    graph.output[0].name = "medusa_logits"


def mask_given(dtype, name):
    """The mask that the graph made is an input instead, added to the scores or choosing among them."""

    def change(model):
        graph = model.graph
        makers = {out: node.op_type for node in graph.node for out in node.output}
        biases = [n for n in graph.node if n.op_type == "Where" and makers[n.input[0]] == "Expand"]
        heads = [] if name.endswith("_rows") else [1]
        for bias in biases:
            replace_uses(graph, bias.input[0] if dtype == BOOL else bias.output[0], name if heads else "all_heads")
        graph.input.insert(1, value(name, dtype, "batch_size", *heads, "sequence_length", "total"))
        if not heads:
            graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis_of_heads"))
            graph.node.insert(0, helper.make_node("Unsqueeze", [name, "axis_of_heads"], ["all_heads"]))
        if any(i.name == "attention_mask" for i in graph.input):
            drop_input(graph, "attention_mask")
        prune(model)

    return change


FUSED = "llama-genai-fp32"
CASES = {
    "unused": ("llama", {}, unused),
    "keep-scalar": ("llama", {}, keep("num_logits_to_keep")),
    "keep-vector": ("gpt2", {}, keep("logits_to_keep", 1)),
    "keep-without-positions": ("no-position-ids", {}, keep("logits_to_keep", 1)),
    "keep-by-difference": ("llama", {}, keep_by_difference),
    "branches": ("llama", {}, branches),
    "two-positions": ("llama", {}, rows_given()),
    "flat-positions": ("no-position-ids", {}, rows_given()),
    "three-grids": ("llama", {}, three_grids),
    "one-name-sdpa": ("llama", {}, one_name),
    "one-name-eager": ("llama", {"mask": "eager"}, one_name),
    "one-name-buffer": ("gpt2", {"mask": "buffer"}, one_name),
    "one-name-trilu": ("llama", {"mask": "trilu"}, one_name),
    "one-name-cumsum": ("opt", {}, one_name),
    "own-name": ("llama", {}, own_name),
    "own-name-cumsum": ("opt", {}, own_name),
    "lengths": (FUSED, {}, lengths),
    "lengths-of-the-greatest-position": (FUSED, {}, lengths_by_positions("ReduceMax", False)),
    "lengths-of-the-last-position": (FUSED, {}, lengths_by_positions("Gather", False)),
    "lengths-beside-a-mask": (FUSED, {}, lengths_by_positions("ReduceMax", True)),
    "guesses-first": ("llama", {}, guesses_first),
    "mask-chosen": ("llama", {}, mask_given(BOOL, "chosen")),
    "mask-added": ("llama", {}, mask_given(FLOAT, "added")),
    "mask-chosen-rows": ("llama", {}, mask_given(BOOL, "chosen_rows")),
    "mask-added-rows": ("llama", {}, mask_given(FLOAT, "added_rows")),
}


def load(name, changes, folder):
    if (FIXTURES / name / "model.onnx").exists():
        return onnx.load(FIXTURES / name / "model.onnx")
    write(preset(name, **changes), folder / "zoo.onnx", seed=3)
    return onnx.load(folder / "zoo.onnx")


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """The file, and the tokens that ONNX Runtime makes of the prompt."""
    name, changes, change = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    if name == FUSED and not (FIXTURES / name).exists():
        pytest.skip(f"no {FIXTURES / name}")
    model = load(name, changes, folder)
    change(model)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path, Session(path).greedy()


def test_the_file_is_recognised(case):
    assert ark("ark-inspect", case[0], "--stage", "recognise").stdout.startswith("decoder: ")


@pytest.mark.parametrize("driver", ["decoder", "dynamic"])
def test_tokens_are_those_of_onnx_runtime(case, driver):
    path, tokens = case
    out = ark("ark-run", path, "--prompt-ids", ",".join(map(str, PROMPT)), "--max-tokens", NEW, "--ignore-eos",
              "--json", "--driver", driver).stdout
    assert json.loads(out)["token_ids"] == tokens


def write_set(folder, session, feeds):
    folder.mkdir()
    outputs, _ = session.run(feeds)
    for kind, tensors in (("input", feeds), ("output", outputs)):
        for i, (name, array) in enumerate(tensors.items()):
            tensor = numpy_helper.from_array(np.array(array, order="C"), name)
            (folder / f"{kind}_{i}.pb").write_bytes(tensor.SerializeToString())
    return folder


def verdicts(path, driver, *sets):
    done = subprocess.run([BIN / "ark-run", path, "--driver", driver, "--test-data", *sets], capture_output=True,
                          text=True, timeout=600)
    return [line.split()[0] for line in done.stdout.splitlines()], done.stdout


def test_data_sets_with_all_inputs_pass(case, tmp_path):
    path, _ = case
    session = Session(path)
    prefill = session.feeds(PROMPT, session.empty_past())
    sets = [write_set(tmp_path / "prefill", session, prefill),
            write_set(tmp_path / "chunk", session, session.feeds([7, 8, 30], session.run(prefill)[1]))]
    # Given masks of three or four axes are data; the decoder driver makes its own.
    given = any(name.startswith(("chosen", "added")) for name in prefill)
    decoder = ["UNSUPPORTED"] * 2 if given else ["PASS"] * 2
    for driver, expected in (("dynamic", ["PASS"] * 2), ("decoder", decoder)):
        got, out = verdicts(path, driver, *sets)
        assert got == expected, f"{driver}: {out}"


@pytest.mark.parametrize("name, shape", [("num_logits_to_keep", []), ("logits_to_keep", [1])])
def test_a_given_number_of_rows_is_honoured_or_refused(tmp_path, name, shape):
    model = load("llama", {}, tmp_path)
    keep(name, *shape)(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path)
    two = write_set(tmp_path / "two", session,
                    session.feeds(PROMPT, session.empty_past(), **{name: np.full(shape, 2)}))
    assert verdicts(path, "dynamic", two)[0] == ["PASS"]
    got, out = verdicts(path, "decoder", two)
    assert got == ["UNSUPPORTED"] and f"input {name} is 2" in out


def test_a_branch_that_is_not_served_runs_plain(tmp_path):
    model = load("llama", {}, tmp_path)
    branches(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path)
    feeds = session.feeds(PROMPT, session.empty_past(), use_cache_branch=np.array([False]))
    other = write_set(tmp_path / "other", session, feeds)
    assert verdicts(path, "dynamic", other)[0] == ["PASS"]
    assert verdicts(path, "decoder", other)[0] == ["UNSUPPORTED"]


@pytest.mark.parametrize("name, changes", [
    ("past-joined", {}), ("past-joined", {"scale_style": "both"}), ("past-stacked", {"scale_style": "both"}),
    ("past-key-transposed", {"scale_style": "query"}), ("past-bshd", {"gqa": "grouped"}), ("scale-both", {}),
])
def test_given_pasts_of_any_layout_reach_their_pages(tmp_path, name, changes):
    """Sets with a past: prefill, one token after six, and two padded rows; caches are compared too."""
    write_model(tmp_path / "m", preset(name, **changes), 5)
    sets = sorted((tmp_path / "m").glob("test_data_set_*"))
    for driver in ("dynamic", "decoder"):
        got, out = verdicts(tmp_path / "m" / "model.onnx", driver, *sets)
        assert got == ["PASS"] * len(sets), out


def test_what_cannot_be_fed_is_refused_at_load(tmp_path):
    """One number beside the tokens that is neither a length nor a number of rows."""
    model = load("llama", {}, tmp_path)
    graph = model.graph
    graph.node.append(helper.make_node("Cast", ["temperature"], ["warmth"], to=FLOAT))
    graph.node.append(helper.make_node("Mul", ["cold_logits", "warmth"], ["logits"]))
    producer(graph, "logits").output[0] = "cold_logits"
    graph.input.append(value("temperature", INT64, 1))
    onnx.save(model, tmp_path / "model.onnx")
    done = subprocess.run([BIN / "ark-run", tmp_path / "model.onnx", "--prompt-ids", "1,2"], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 65 and "temperature" in done.stderr and len(done.stderr.splitlines()) == 1
