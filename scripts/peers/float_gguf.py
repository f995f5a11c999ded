"""Writes a GGUF file anew with all tensors dequantized: float_gguf.py SOURCE TARGET."""

import os
import sys

import gguf
import numpy as np

source, target = sys.argv[1:]
reader = gguf.GGUFReader(source)
partial = f"{target}.{os.getpid()}"
writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
for key, entry in reader.fields.items():
    if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
        continue
    kind, *rest = entry.types
    writer.add_key_value(key, entry.contents(), kind, sub_type=rest[-1] if rest else None)
writer.add_file_type(gguf.LlamaFileType.ALL_F32)
for tensor in reader.tensors:
    array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    writer.add_tensor(tensor.name, np.ascontiguousarray(array))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
os.replace(partial, target)
