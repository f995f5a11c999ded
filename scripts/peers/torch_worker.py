"""Times PyTorch on the weights of a decoder's ONNX file: a step is one replay of a CUDA graph (torch_decoder.py). All
steps stand at the same place and a graph sees just the keys before it, the best that a graph can do."""

import sys

from gpu_common import options, report, times

args = options()
try:
    import torch
except ImportError:
    sys.exit("torch is not installed")
if args.device == "cuda" and not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no GPU")
from torch_decoder import Decoder  # noqa: E402


def capture(step):
    """A replay of step() as a CUDA graph; it has run a few times before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.inference_mode()
def measure(batch):
    seen = args.context + 1
    decoder = Decoder(args.model, batch, seen, args.device)
    for cache in decoder.caches:
        for part in cache:
            part.normal_()
    decoder.ids.fill_(7)
    decoder.at.fill_(args.context)
    step = lambda: decoder.step(seen)
    run = capture(step) if args.device == "cuda" else step
    return times(run, lambda: decoder.ids.tolist())  # the tokens at the host: the step has ended


report(args.batch, torch.__version__, measure)
