"""What operator schemas and ONNX's rules of graphs forbid is refused, with the node's name. The cases are generated
from the schemas of the onnx and onnxruntime packages, whose checkers are the oracle; `ARK_FULL=1` takes all operators."""

import importlib.util
import os
import random
import subprocess

import numpy
import onnx
import pytest
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper
from ark_server import ROOT
from oracle import open_session
from test_hostile_files import BIN, assert_refused, error_line, field, graph, ints, node, run, save, scalar, value

OPSET = 21
IS_FULL = bool(os.environ.get("ARK_FULL"))
# What needs more than numbers, or has bodies: tested by hand below.
SPECIAL = {"If", "Loop", "Scan", "SequenceMap", "Constant", "Optional"}
SCHEMAS = [s for s in (defs.get_schema(name, OPSET) for name in sorted(
    {s.name for s in defs.get_all_schemas() if s.domain == ""}) if defs.has(name, OPSET, ""))
    if not s.deprecated and s.name not in SPECIAL]

pytestmark = pytest.mark.skipif(not (BIN / "ark-inspect").exists(), reason=f"no programs in {BIN}")


def test_the_table_is_the_onnx_package_s():
    spec = importlib.util.spec_from_file_location("onnx_schemas", ROOT / "scripts" / "onnx_schemas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "importer" / "schemas.inc").read_text() == module.table(), "run scripts/onnx_schemas.py again"


EXAMPLES = {AttributeProto.FLOAT: 1.0, AttributeProto.INT: 1, AttributeProto.STRING: "x", AttributeProto.FLOATS: [1.0],
            AttributeProto.INTS: [1], AttributeProto.STRINGS: ["x"],
            AttributeProto.TENSOR: numpy_helper.from_array(numpy.array([1.0], numpy.float32))}


def numbers_of(parameter):
    """The tensor types that a parameter takes, by number."""
    return sorted(getattr(TensorProto, t[7:-1].upper()) for t in parameter.types if t.startswith("tensor("))


def chosen_types(schema):
    """A type for each needed input, one for each type variable; None where an input is no tensor."""
    variables, types = {}, []
    for i in range(max(schema.min_input, min(schema.max_input, 1))):
        parameter = schema.inputs[min(i, len(schema.inputs) - 1)]
        numbers = numbers_of(parameter)
        if not numbers:
            return None
        wanted = TensorProto.FLOAT if TensorProto.FLOAT in numbers else numbers[0]
        types.append(variables.setdefault(parameter.type_str, wanted))
    return types


def built(made, types, opset=OPSET, domain=""):
    inputs = [value(f"i{i}", ("A", "B"), kind) for i, kind in enumerate(types)]
    body = helper.make_graph([made, helper.make_node("Identity", [made.output[0]], ["z"])], "g", inputs,
                             [helper.make_empty_tensor_value_info("z")])
    return helper.make_model(body, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=10)


def plain_node(schema, types):
    made = helper.make_node(schema.name, [f"i{i}" for i in range(len(types))],
                            [f"o{i}" for i in range(max(schema.min_output, 1))], name="TheNode")
    for name, attribute in schema.attributes.items():
        if attribute.required:
            kind = AttributeProto.AttributeType.Value(str(attribute.type).rpartition(".")[2])
            made.attribute.append(helper.make_attribute(name, EXAMPLES[kind]))
    return made


def repeated_attribute(schema, made):
    made.attribute.extend([helper.make_attribute("again", 1), helper.make_attribute("again", 1)])


def wrong_attribute(schema, made):
    name, attribute = sorted(schema.attributes.items())[0]
    wrong = "x" if "STRING" not in str(attribute.type) else 1
    kept = [a for a in made.attribute if a.name != name]
    del made.attribute[:]
    made.attribute.extend([*kept, helper.make_attribute(name, wrong)])


def lost_attribute(schema, made):
    kept = [a for a in made.attribute if not schema.attributes[a.name].required]
    del made.attribute[:]
    made.attribute.extend(kept)


CLASSES = {  # name: (what the message says, whether the schema allows the case, what is done)
    "unknown attribute": ("attribute 'nonsense' does not exist", lambda s: True,
                          lambda s, n: n.attribute.append(helper.make_attribute("nonsense", 1))),
    "repeated attribute": ("attribute 'again' twice", lambda s: True, repeated_attribute),
    "unnamed attribute": ("an attribute without a name", lambda s: True,
                          lambda s, n: n.attribute.append(AttributeProto(type=AttributeProto.INT, i=1))),
    "wrong attribute": (" is not ", lambda s: s.attributes, wrong_attribute),
    "missing attribute": (" is missing", lambda s: any(a.required for a in s.attributes.values()), lost_attribute),
    "too many inputs": (" inputs; at most ", lambda s: s.max_input < 100, lambda s, n: n.input.extend([n.input[0]] * 100)),
    "too few inputs": (" inputs; at least ", lambda s: s.min_input > 0, lambda s, n: n.input.__delitem__(slice(0, None))),
    "too many outputs": (" outputs; at most ", lambda s: s.max_output < 100,
                         lambda s, n: n.output.extend(f"more{i}" for i in range(100))),
    "unnamed output": ("output 0 is needed and has no name", lambda s: s.max_output == 1,
                       lambda s, n: n.output.__setitem__(0, "")),
}


def cases(seed, count):
    dice = random.Random(seed)
    return SCHEMAS if IS_FULL else dice.sample(SCHEMAS, count)


# A node of each other domain that has a table, with its opset, the attribute that it needs and types of its inputs.
OTHERS = {"ai.onnx.ml": ("LabelEncoder", 4, {"keys_int64s": [1], "values_int64s": [2]}, [TensorProto.INT64]),
          "com.microsoft": ("RotaryEmbedding", 1, {}, [TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT])}


def rejected_elsewhere(path):
    with pytest.raises(Exception) as failure:
        open_session(path.read_bytes())
    return str(failure.value)


@pytest.mark.parametrize("domain", OTHERS)
def test_other_domains_have_schemas_too(domain, tmp_path):
    """What nobody looks at may not change what a file means: a newer runtime's attribute, one more operand."""
    op, opset, attributes, types = OTHERS[domain]
    path = tmp_path / "model.onnx"

    def refused(words, inputs=len(types), outputs=1, opset=opset, **changes):
        made = helper.make_node(op, [f"i{k}" for k in range(inputs)], [f"o{k}" for k in range(outputs)], name="TheNode",
                                domain=domain, **{k: v for k, v in {**attributes, **changes}.items() if v is not None})
        model = built(made, types + [TensorProto.FLOAT] * 10)
        model.opset_import.append(helper.make_opsetid(domain, opset))
        path.write_bytes(model.SerializeToString())
        status, line = inspect(path)
        if words is None:
            return "see ONNX" not in line
        assert rejected_elsewhere(path)
        return status == 65 and "TheNode" in line and words in line

    assert refused(None)
    assert refused("attribute 'nonsense' does not exist", nonsense=1)
    assert refused("at most", inputs=9)
    assert refused("at least", inputs=0)
    assert refused("at most", outputs=3)
    if domain == "ai.onnx.ml":
        assert refused("came with opset", opset=0)
        assert refused("is not of its type", keys_int64s=1)
        types = [TensorProto.BOOL]
        assert refused("which it does not take")
    else:
        assert refused("is not an integer", scale=None, interleaved="x")


def inspect(path):
    done = subprocess.run([BIN / "ark-inspect", "--check", path], capture_output=True)
    return done.returncode, error_line(done.stderr)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_a_schema_forbids_is_refused(kind, tmp_path):
    words, fits, change = CLASSES[kind]
    tried = 0
    for schema in cases(kind, 30):
        types = chosen_types(schema)
        if types is None or not types or not fits(schema):
            continue
        made = plain_node(schema, types)
        path = tmp_path / "model.onnx"
        path.write_bytes(built(made, types).SerializeToString())
        assert words not in inspect(path)[1], schema.name
        change(schema, made)
        path.write_bytes(built(made, types).SerializeToString())
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = 10, {"": OPSET}
        if kind != "repeated attribute":  # which the checker overlooks
            with pytest.raises(onnx.checker.ValidationError):
                onnx.checker.check_node(made, context)
        status, line = inspect(path)
        assert status == 65 and "TheNode" in line and words in line, (schema.name, status, line)
        tried += 1
    assert tried >= (1 if kind == "missing attribute" else 5)


def test_what_a_schema_allows_is_not_refused_for_it(tmp_path):
    accepted = []
    for schema in cases("allowed", 40):
        types = chosen_types(schema)
        if types is None:
            continue
        path = tmp_path / "model.onnx"
        path.write_bytes(built(plain_node(schema, types), types).SerializeToString())
        status, line = inspect(path)
        assert status in (0, 65) and "see ONNX's" not in line, (schema.name, line)
        accepted.append(status == 0)  # others need what numbers alone do not show
    assert sum(accepted) > len(accepted) / 2


def test_types_that_a_schema_does_not_take_are_refused(tmp_path):
    tried = 0
    for schema in cases("types", 60):
        types = chosen_types(schema)
        wrong = types and [n for n in (TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT16)
                           if n not in numbers_of(schema.inputs[0])]
        if not wrong:
            continue
        path = tmp_path / "model.onnx"
        path.write_bytes(built(plain_node(schema, types), [wrong[0], *types[1:]]).SerializeToString())
        status, line = inspect(path)
        assert status == 65 and "TheNode" in line, (schema.name, line)
        tried += 1
    assert tried > 5


def test_operators_belong_to_their_opsets(tmp_path):
    """Newer than the import, retired before it, of a domain that is not imported."""
    path = tmp_path / "model.onnx"
    newest = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name not in SPECIAL:
            newest.setdefault(schema.name, []).append(schema)
    tried = 0
    for name in sorted(newest):
        first = min(newest[name], key=lambda s: s.since_version)
        retired = [s for s in newest[name] if s.deprecated]
        if name in ("LayerNormalization", "GroupNormalization"):  # which ONNX Runtime reads all the same
            continue
        for opset, word in [(first.since_version - 1, "came with opset")] + [(s.since_version, "was retired") for s in retired]:
            types = chosen_types(first)
            if opset < 1 or types is None:
                continue
            path.write_bytes(built(plain_node(first, types), types, opset).SerializeToString())
            status, line = inspect(path)
            assert status == 65 and word in line and name in line, (name, opset, line)
            tried += 1
    assert tried > 60
    made = helper.make_node("Neg", ["i0"], ["o0"], name="TheNode", domain="com.example")
    path.write_bytes(built(made, [TensorProto.FLOAT]).SerializeToString())
    status, line = inspect(path)
    assert status == 65 and "TheNode" in line and "not imported" in line


def fresh(model, **changes):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for name, items in changes.items():
        del getattr(copy, name)[:]
        getattr(copy, name).extend(items)
    return copy


def branch(name, count=1, kind=TensorProto.FLOAT):
    body = [helper.make_node("Cast", ["x"], [f"{name}{i}"], to=kind) for i in range(count)]
    return helper.make_graph(body, name, [], [value(f"{name}{i}", None, kind) for i in range(count)])


def choice(then_branch, else_branch, outputs=("y",), kind=TensorProto.BOOL):
    made = node("If", ["c"], outputs, then_branch=then_branch, else_branch=else_branch, name="TheNode")
    return graph([made], inputs=[value("x"), value("c", (), kind)])


def loop(outputs=("y",), going=TensorProto.BOOL, states=1, start=TensorProto.FLOAT):
    body = helper.make_graph(
        [node("Cast", ["c"], ["d"], to=going), node("Identity", ["v"], ["w"])], "body",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("v", None, start)],
        [value("d", None, going), value("w", None)])
    return graph([node("Loop", ["m", "", *["x"] * states], outputs, body=body, name="TheNode")], [scalar("m", 3)])


def function(**parts):
    given = {"inputs": ["a"], "outputs": ["b"], "nodes": [node("Neg", ["a"], ["b"])], **parts}
    made = helper.make_function("f", "F", given["inputs"], given["outputs"], given["nodes"],
                                [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)])
    calls = [node("F", ["x"], domain="f")] if given.get("used", True) else [node("Neg", ["x"])]
    return graph(calls, functions=[made])


def nested_type(kind, depth):
    inner = field(1, b"\x08\x01")
    for _ in range(depth):
        inner = field(kind, field(1, inner))
    model = graph([node("Neg", ["x"])]).SerializeToString()
    return model + field(7, field(11, field(1, b"deep") + field(2, inner)))


def window(op, x=(1, 4, 8, 8), w=(4, 4, 3, 3), more=(), **attributes):
    stored = [numpy_helper.from_array(numpy.ones(w, numpy.float32), "w")] if w else []
    stored += [numpy_helper.from_array(numpy.ones(n, numpy.float32), f"m{i}") for i, n in enumerate(more)]
    names = ["x", *[s.name for s in stored]]
    return graph([node(op, names, name="TheNode", **attributes)], stored, inputs=[value("x", x)])


def ranged(start, limit, delta, kind=numpy.float32):
    return graph([node("Range", ["a", "b", "c"], name="TheNode")],
                 [scalar("a", start, kind), scalar("b", limit, kind), scalar("c", delta, kind)])


def divided(op, by, **attributes):
    return graph([node(op, ["x", "d"], name="TheNode", **attributes)], [ints("d", *by)],
                 inputs=[value("x", ("N", len(by)), TensorProto.INT64)], outputs=[value("y", None, TensorProto.INT64)])


def table_by_tokens(length, *more):
    """As many of 64 stored positions as there are tokens, beside a mask of `length`."""
    nodes = [node("Shape", ["x"], ["n"], start=1), *more, node("Add", ["x", "p"], ["e"]),
             node("Concat", ["e", "mask"], axis=0)]
    stored = [numpy_helper.from_array(numpy.arange(64).reshape(1, 64), "t"), ints("zero", 0), ints("one", 1), ints("most", 64)]
    return graph(nodes, stored, inputs=[value("x", ("B", "S"), TensorProto.INT64), value("mask", ("C", length), TensorProto.INT64)],
                 outputs=[value("y", None, TensorProto.INT64)])


def resized(**words):
    stored = [numpy_helper.from_array(numpy.ones(4, numpy.float32), "s")]
    return graph([node("Resize", ["x", "", "s"], name="TheNode", **words)], stored, inputs=[value("x", (1, 1, 4, 4))])


def padded(mode):
    return graph([node("Pad", ["x", "p"], mode=mode, name="TheNode")], [ints("p", 1, 1)])


WORDS = {  # operators whose attribute is such a word: refused if it is none that the operator knows
    **{f"Pad {mode}": padded(mode) for mode in ("constant", "reflect", "edge", "wrap", "foo")},
    **{f"{name} {word}": resized(**{name: word}) for name, known in (
        ("mode", "nearest linear cubic"), ("nearest_mode", "round_prefer_floor round_prefer_ceil floor ceil"),
        ("coordinate_transformation_mode", "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
         "tf_half_pixel_for_nn"), ("keep_aspect_ratio_policy", "stretch not_larger not_smaller"))
       for word in (known + " foo").split()},
    **{f"auto_pad {op} {word}": window(op, auto_pad=word) for op in ("Conv", "ConvTranspose")
       for word in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "foo")},
    **{f"pool {word}": window("AveragePool", w=None, auto_pad=word, kernel_shape=[2, 2]) for word in ("VALID", "foo")},
    **{f"reduction {word}": graph([node("ScatterND", ["x", "i", "x"], reduction=word, name="TheNode")],
                                  [numpy_helper.from_array(numpy.zeros((3, 1), numpy.int64), "i")], inputs=[value("x", (3,))])
       for word in ("none", "add", "mul", "max", "min", "foo")},
    **{f"blocks {word}": graph([node("DepthToSpace", ["x"], blocksize=2, mode=word, name="TheNode")],
                               inputs=[value("x", (1, 4, 2, 2))]) for word in ("DCR", "CRD", "foo")},
}
FIRST = node("Slice", ["t", "zero", "n", "one"], ["p"])
PARTED = [node("Sub", ["most", "n"], ["m"]), node("Concat", ["n", "m"], ["parts"], axis=0),
          node("Split", ["t", "parts"], ["p", "rest"], axis=1, name="TheNode")]
PLAIN = graph([node("Neg", ["x"])])


MODELS = {
    **{f"{n} tokens of 64 positions": table_by_tokens(n, FIRST) for n in (65, 600, 2**31)},
    "parts of more than there is": table_by_tokens(600, *PARTED),
    "a part of less than nothing": graph([node("Split", ["t", "s"], ["y", "z"], name="TheNode")],
                                         [ints("t", 1, 2), ints("s", -1, 3)], outputs=[value("y", None, TensorProto.INT64)]),
    **{name: made for name, made in WORDS.items() if name.endswith("foo")},
    "no opset": fresh(PLAIN, opset_import=[]),
    "branches of two numbers": choice(branch("a"), branch("b", 2)),
    "branches of more than the node": choice(branch("a", 2), branch("b", 2)),
    "branches of two types": choice(branch("a"), branch("b", kind=TensorProto.INT64)),
    "a condition that is a float": choice(branch("a"), branch("b"), kind=TensorProto.FLOAT),
    "loop with too few outputs": loop(("y",), states=2),
    "loop with too many outputs": loop(("y", "z", "t")),
    "loop whose condition is an integer": loop(going=TensorProto.INT64),
    "loop whose state is declared otherwise": loop(start=TensorProto.INT64),
    "unused function that calls itself": function(used=False, nodes=[node("F", ["a"], ["b"], domain="f")]),
    "unused function that reads nothing": function(used=False, nodes=[node("Neg", ["q"], ["b"])]),
    "unused function with a name twice": function(used=False, nodes=[node("Neg", ["a"], ["b"]), node("Abs", ["a"], ["b"])]),
    "function with too many operands": function(inputs=[]),
    "function without its output": function(nodes=[node("Neg", ["a"], ["q"])]),
    "function with an input twice": function(inputs=["a", "a"]),
    "initializer twice": graph([node("Add", ["x", "w"])], [scalar("w", 1, numpy.float32)] * 2),
    "sequence types nested deep": nested_type(4, 5000),
    "optional types nested deep": nested_type(9, 5000),
    "kernel of rank 3": window("Conv", w=(4, 4, 3)),
    "kernel of another shape": window("Conv", kernel_shape=[5, 5]),
    "bias of another size": window("Conv", more=[5]),
    "groups that do not divide": window("Conv", group=3),
    "negative pads": window("Conv", pads=[-1, 0, 0, 0]),
    "negative pads of a pool": window("MaxPool", w=None, kernel_shape=[2, 2], pads=[0, -1, 0, 0]),
    "three pads": window("Conv", pads=[1, 1, 1]),
    "three strides": window("Conv", strides=[1, 1, 1]),
    "one dilation": window("Conv", dilations=[1]),
    "statistics of another size": window("BatchNormalization", w=(4,), more=[4, 4, 3]),
    "scale of another size": window("LayerNormalization", w=(7,)),
    "range by nothing": ranged(0, 1, 0),
    "range by NaN": ranged(0, 1, numpy.nan),
    "range to infinity": ranged(0, numpy.inf, 1),
    "range by little": ranged(0, 1, 1e-30),
    "integers by zero": divided("Div", [2, 0]),
    "remainder of zero": divided("Mod", [0]),
    "remainder of zero as in C": divided("Mod", [0], fmod=1),
    "more than there are": graph([node("TopK", ["x", "k"], ["y", "z"], name="TheNode")], [ints("k", 99)],
                                 inputs=[value("x", (2, 4))]),
    "a range of no numbers": graph([node("Shape", ["x"], ["s"], start=2**40), node("Range", ["s", "s", "s"])],
                                   inputs=[value("x", (2, 4))]),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_onnx_forbids_is_refused(name, tmp_path):
    words = ["TheNode"] if b"TheNode" in bytes(save_bytes(MODELS[name])) else []
    words += ["twice"] * name.endswith("twice")
    assert_refused("inspect", save(tmp_path, MODELS[name]), words=words)


ALLOWED = {**{name: made for name, made in WORDS.items() if not name.endswith("foo")}, "plain": PLAIN, "64 tokens": table_by_tokens(64, FIRST), "parts": table_by_tokens(64, *PARTED),
           "If": choice(branch("a"), branch("b")), "Loop": loop(), "function": function(),
           "unused function": function(used=False), "sequence type": nested_type(4, 1), "optional type": nested_type(9, 1),
           "initializer": graph([node("Add", ["x", "w"])], [scalar("w", 1, numpy.float32)]),
           "Conv": window("Conv", pads=[1, 0, 0, 1], more=[4]),
           "MaxPool": window("MaxPool", w=None, kernel_shape=[2, 2], pads=[0, 1, 0, 0]),
           "BatchNormalization": window("BatchNormalization", w=(4,), more=[4, 4, 4]),
           "LayerNormalization": window("LayerNormalization", w=(8,)), "Range": ranged(0, 1, 0.25),
           "Div": divided("Div", [2, 1]), "Mod": divided("Mod", [3]), "fmod": divided("Mod", [3], fmod=1),
           "TopK": graph([node("TopK", ["x", "k"], ["y", "z"])], [ints("k", 2)], inputs=[value("x", (2, 4))])}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_onnx_allows_is_accepted(name, tmp_path):
    status, line = inspect(save(tmp_path, ALLOWED[name]))
    assert status == 0, line


def save_bytes(model):
    return model if isinstance(model, bytes) else model.SerializeToString()


@pytest.mark.parametrize("mark", ["\u202e", "\u2028", "\u200b", "\ufeff"])
def test_characters_that_mislead_are_escaped(mark, tmp_path):
    path = save(tmp_path, graph([node("NoSuchOperator", ["x"], name=f"a{mark}b")]))
    status, message, _, _ = run("inspect", path)
    assert status == 65 and mark not in message.decode() and "\\x" in message.decode()


def test_many_numbers_in_an_attribute_take_little(tmp_path):
    made = node("Constant", [], ["c"])
    made.attribute.append(helper.make_attribute("value_ints", list(range(10_000_000))))
    path = save(tmp_path, graph([made, node("Neg", ["x"])]))
    status, _, seconds, megabytes = run("inspect", path)
    assert status in (0, 65) and seconds < 4 and megabytes < 300
