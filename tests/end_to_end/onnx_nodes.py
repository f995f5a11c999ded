"""Writes the operator tests that ONNX publishes as a tree for `ark-run --suite`.

The onnx package carries them as code: `python onnx_nodes.py DIR` makes NAME/model.onnx,
NAME/test_data_set_0/{input,output}_N.pb and NAME/data.json (tolerances), and copies the stored ones
(simple, pytorch-converted, pytorch-operator)."""

import json
import shutil
import sys
import warnings
import zlib
from pathlib import Path

import numpy
import onnx
from onnx import numpy_helper

STORED = Path(onnx.__file__).parent / "backend" / "test" / "data"
STORED_KINDS = ("simple", "pytorch-converted", "pytorch-operator")


def message(value, info):
    """The protobuf message of one input or output, as the backend tests store it."""
    kind = info.type.WhichOneof("value")
    if isinstance(value, onnx.TensorProto):
        return value
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(numpy.asarray(value), info.name)


def relative_tolerance(case):
    """The case's own, but two units in the last place of 16-bit results, as onnx's own runner allows bfloat16."""
    types = {info.type.tensor_type.elem_type for info in case.model.graph.output}
    if onnx.TensorProto.BFLOAT16 in types:
        return max(case.rtol, 2.0**-6)
    return max(case.rtol, 2.0**-9) if onnx.TensorProto.FLOAT16 in types else case.rtol


def absolute_tolerance(case):
    """The case's own; Fourier transforms of f32, which numpy computes in f32, are wrong by units of their largest element."""
    if case.model.graph.node[0].op_type not in ("DFT", "STFT"):
        return case.atol
    return max(case.atol, 2.0**-22 * max(abs(numpy.asarray(y)).max() for _, results in case.data_sets for y in results))


def write_case(case, folder):
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    (folder / "data.json").write_text(json.dumps({"rtol": relative_tolerance(case), "atol": float(absolute_tolerance(case))}))
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data_set = folder / f"test_data_set_{number}"
        data_set.mkdir()
        for stem, values, infos in (("input", inputs, case.model.graph.input),
                                    ("output", outputs, case.model.graph.output)):
            for index, (value, info) in enumerate(zip(values, infos)):
                (data_set / f"{stem}_{index}.pb").write_bytes(message(value, info).SerializeToString())


def write_all(root):
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        for case in collect_testcases(None):
            write_case(case, root / "node" / case.name)
    for kind in STORED_KINDS:
        shutil.copytree(STORED / kind, root / kind)


def obtain(root):
    """The tree of the installed onnx version and this script below `root`, made on first use."""
    folder = root / f"onnx-{onnx.__version__}-{zlib.crc32(Path(__file__).read_bytes()):08x}"
    if not folder.is_dir():
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_all(unfinished)
        unfinished.rename(folder)
    return folder


if __name__ == "__main__":
    print(obtain(Path(sys.argv[1])))
