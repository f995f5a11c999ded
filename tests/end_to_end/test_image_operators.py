"""What exporters write of image models beyond ONNX's own tests, against ONNX Runtime: tf2onnx's crops in loops, PyTorch's layers
that standardize their weights, operators with sizes that only the run tells."""

import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper

from operator_cases import BINARY, agrees, node, random, write_case

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

BOXES = np.array([[0, 0, 1, 1], [.1, .2, .7, .9], [-.2, .3, 1.4, .6], [.8, .5, .1, .5], [2, 2, 3, 3]], np.float32)


def regions(box, rank=4):
    """One box as the roi of a Resize over [N, C, H, W], or over its last two axes."""
    begin, end = box[:2], box[2:]
    return np.concatenate([[0, 0], begin, [1, 1], end] if rank == 4 else [begin, end]).astype(np.float32)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size", [(5, 4), (1, 1), (12, 5)])
def test_crop_and_resize(tmp_path, mode, size):
    for i, box in enumerate(BOXES):
        for rank in (4, 2):
            axes = {} if rank == 4 else {"axes": [2, 3]}
            nodes = [node("Resize", "x roi _ size", mode=mode, coordinate_transformation_mode="tf_crop_and_resize",
                          extrapolation_value=3.5, **axes)]
            feeds = {"x": random(2, 3, 9, 7), "roi": regions(box, rank)}
            sizes = np.array([2, 3, *size] if rank == 4 else size)
            write_case(tmp_path / f"{i} {rank}", nodes, feeds, {"size": sizes}, opset=18, sizes={"x": ["n", 3, "h", "w"]})
    agrees(tmp_path, 2 * len(BOXES))


def test_crop_and_resize_by_scales(tmp_path):
    """The size is the whole image's times the scale, whatever the standard says of the region's."""
    nodes = [node("Resize", "x roi by", mode="linear", coordinate_transformation_mode="tf_crop_and_resize")]
    feeds = {"x": random(1, 2, 8, 6), "roi": regions(np.array([.25, 0, .75, .5]))}
    write_case(tmp_path / "case", nodes, feeds, {"by": np.array([1, 1, 1.5, 2], np.float32)})
    agrees(tmp_path)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scale", [0.37, 0.5, 1.7])
def test_corners_that_fractional_scales_align(tmp_path, mode, scale):
    """`F.interpolate(x, scale_factor=1.7, align_corners=True)`: by the output's own length."""
    nodes = [node("Resize", "x _ by", mode=mode, coordinate_transformation_mode="align_corners")]
    write_case(tmp_path / "case", nodes, {"x": random(1, 2, 7, 9)}, {"by": np.array([1, 1, scale, scale], np.float32)})
    agrees(tmp_path)


@pytest.mark.parametrize("declared", [[], [1]])
def test_loops_whose_counter_is_a_row(tmp_path, declared):
    """tf2onnx's crop_and_resize slices by the number of the trip, which its body declares to have one axis."""
    going = [helper.make_tensor_value_info("i", TensorProto.INT64, declared), helper.make_tensor_value_info("c", TensorProto.BOOL, declared)]
    cut = [] if declared else [node("Reshape", "i row", "at")]
    at = "i" if declared else "at"
    body = [node("Identity", "c", "again"), *cut, node("Add", f"{at} row", "end"), node("Slice", f"x {at} end zero", "part"),
            node("Squeeze", "part zero", "piece")]
    results = [helper.make_tensor_value_info("again", TensorProto.BOOL, declared),
               helper.make_tensor_value_info("piece", TensorProto.FLOAT, None)]
    around = helper.make_node("Loop", ["trips", ""], ["y"], body=helper.make_graph(body, "body", going, results))
    weights = {"trips": np.array(3), "row": np.array([1]), "zero": np.array([0])}
    write_case(tmp_path / "case", [around], {"x": random(4, 2, 5)}, weights)
    agrees(tmp_path, drivers=["dynamic"])


@pytest.mark.parametrize("shape", [(1, 4, 18), (3, 4), (2, 4, 5, 3), (2, 4, 1, 2, 3)])
def test_batch_norms_by_their_own_statistics(tmp_path, shape):
    """Layers that standardize their weights (BiT, NFNet), and their running statistics."""
    nodes = [node("BatchNormalization", "x s b m v", "y mean var", training_mode=1, momentum=0.7, epsilon=1e-3)]
    feeds = {"x": random(*shape) + 2}
    weights = {name: np.abs(random(4) + i).astype(np.float32) for i, name in enumerate("sbmv")}
    write_case(tmp_path / "case", nodes, feeds, weights, ("y", "mean", "var"), sizes={"x": ["n", 4, *shape[2:]]})
    agrees(tmp_path)


def test_dropouts_of_nothing(tmp_path):
    """`F.dropout(x, p=0.0)` is exported in training mode."""
    nodes = [node("Dropout", "x ratio training", "y mask")]
    weights = {"ratio": np.float32(0), "training": np.array(True)}
    write_case(tmp_path / "case", nodes, {"x": random(2, 3)}, weights, ("y", "mask"))
    agrees(tmp_path)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_transposed_convolutions(tmp_path, spatial):
    size, count = (7, 4, 3)[:spatial], 0
    for stride in (1, 2, 3):
        for dilation in (1, 2):
            for group in (1, 2):
                pads = [1, 0, 2][:spatial] + [0, 1, 1][:spatial]
                words = {"strides": [stride] * spatial, "dilations": [dilation] * spatial, "group": group, "pads": pads,
                         "output_padding": [int(stride > 1)] * spatial}
                nodes = [node("ConvTranspose", "x w b", **words)]
                weights = {"w": random(4, 3, *(3, 2, 4)[:spatial]), "b": random(3 * group)}
                write_case(tmp_path / str(count), nodes, {"x": random(2, 4, *size)}, weights, sizes={"x": ["n", 4, *"hwd"[:spatial]]})
                count += 1
    agrees(tmp_path, count)


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolutions_to_a_given_size(tmp_path, mode):
    """Of inputs whose sizes only the run tells."""
    for i, size in enumerate([(6, 9), (5, 8), (7, 10)]):
        words = {"strides": [2, 3], "output_shape": list(size)} | ({"auto_pad": mode} if mode != "NOTSET" else {})
        write_case(tmp_path / str(i), [node("ConvTranspose", "x w", **words)], {"x": random(1, 2, 3, 3)}, {"w": random(2, 3, 3, 4)},
                   sizes={"x": [1, 2, "h", "w"]})
    agrees(tmp_path, 3)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("mode", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
def test_kernels_whose_sizes_only_the_run_tells(tmp_path, op, mode):
    feeds = {"x": random(1, 2, 6, 5), "w": random(2, 2, 3, 2)}
    for i, sizes in enumerate([{"w": [2, 2, "h", "w"]}, {"x": ["n", 2, "a", "b"], "w": ["o", "i", "h", "w"]}]):
        write_case(tmp_path / str(i), [node(op, "x w", auto_pad=mode, strides=[2, 1])], feeds, sizes=sizes)
    agrees(tmp_path, 2)


@pytest.mark.parametrize("size", [(7,), (6, 5), (4, 3, 5)])
def test_indices_of_maxima_by_columns(tmp_path, size):
    nodes = [node("MaxPool", "x", "y at", kernel_shape=[2] * len(size), strides=[2] * len(size), storage_order=1)]
    write_case(tmp_path / "case", nodes, {"x": random(2, 3, *size)}, outputs=("y", "at"), sizes={"x": ["n", 3, *"hwd"[:len(size)]]})
    agrees(tmp_path)


def test_centred_crops_to_sizes_that_only_the_run_tells(tmp_path):
    """By input, and by the size of another image, against plain indices."""
    x = random(2, 5, 8)
    padded = np.zeros((2, 7, 5), np.float32)
    padded[:, 1:6] = x[:, :, 1:6]
    by_input = [node("CenterCropPad", "x size", axes=[1, -1])]
    write_case(tmp_path / "input", by_input, {"x": x, "size": np.array([7, 5])}, opset=18, sizes={"x": [2, "h", "w"]}, results=[padded])
    by_other = [node("Shape", "other", "all"), node("Slice", "all one three", "size"), *by_input]
    write_case(tmp_path / "other", by_other, {"x": x, "other": random(1, 7, 5)}, {"one": np.array([1]), "three": np.array([3])}, opset=18,
               sizes={"x": [2, "h", "w"], "other": [1, "oh", "ow"]}, results=[padded])
    agrees(tmp_path, 2, ["dynamic"])
    agrees(tmp_path / "other", 1, ["static"])


@pytest.mark.parametrize("words", [{"strides": [2**62, 1], "output_shape": [4, 4]}, {"dilations": [2**62, 2**62], "auto_pad": "SAME_UPPER"}])
def test_windows_that_no_number_holds_are_refused(tmp_path, words):
    """Where the size of the output is given, or the kernel's is known to the run alone, no rule multiplies these."""
    feeds = {"x": random(1, 2, 3, 3), "w": random(2, 3, 3, 3)}
    write_case(tmp_path / "case", [node("ConvTranspose", "x w", **words)], feeds, sizes={"x": [1, 2, "h", "w"], "w": [2, 3, "a", "b"]},
               results=[random(1, 3, 4, 4)])
    for driver in ("dynamic", "static"):
        run = subprocess.run([BINARY, "--suite", tmp_path, "--driver", driver], capture_output=True, text=True, timeout=300)
        assert "node #0 (ConvTranspose): a size that the model computes from its dimensions exceeds 2^63 - 1" in run.stdout, run.stdout
