"""FLOAT.gguf TARGET.gguf bf16|q8_0|q4_0: llama.cpp's own quantizer."""

import sys

import llama_cpp as ll

source, target, kind = sys.argv[1:]
settings = ll.llama_model_quantize_default_params()
settings.ftype = {"bf16": ll.LLAMA_FTYPE_MOSTLY_BF16, "q8_0": ll.LLAMA_FTYPE_MOSTLY_Q8_0,
                  "q4_0": ll.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
if ll.llama_model_quantize(source.encode(), target.encode(), settings):
    raise SystemExit(f"llama.cpp cannot make {kind} of {source}")
