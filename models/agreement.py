#!/usr/bin/env python3
"""How often the decoder that ark makes of a file chooses the token that the file itself does, as ONNX Runtime runs it.

  agreement.py ARK_RUN MODEL [--of FLOAT_MODEL] [--quantize int8|uint8|int8-columns|uint8-columns] [--tokens 48] [--text FILE]

With --quantize MODEL is made of FLOAT_MODEL by ONNX Runtime's quantize_dynamic. The file generates greedily after each of
twenty prompts; then ark and FLOAT_MODEL are asked for the next token at every place of those texts. Perplexities are
those of the texts that FLOAT_MODEL generates. With --text the places are the first 1,024 of that file instead, all fed at
once: ark beside FLOAT_MODEL."""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from oracle import open_session

PROMPTS = ["The capital of France is", "Once upon a time there was a", "Water boils at", "def fibonacci(n):", "The three laws of",
           "In 1969, the first", "A recipe for bread needs", "The mitochondria is", "Dear Sir or Madam,", "My favourite colour is",
           "Two plus two equals", "The opposite of hot is", "import numpy as", "To install the program,", "She opened the door and",
           "The largest planet of the solar system", "Once the rain had stopped,", "List three animals:",
           "HTTP status 404 means", "The theory of evolution says"]


def quantize(source, target, how):
    from onnxruntime.quantization import QuantType, quantize_dynamic
    kind, _, columns = how.partition("-")
    quantize_dynamic(source, target, per_channel=bool(columns),
                     weight_type=QuantType.QUInt8 if kind == "uint8" else QuantType.QInt8)


class File:
    """A model under ONNX Runtime: the logits of all of a text's places."""

    def __init__(self, path):
        self.session = open_session(str(path))
        self.caches = [i for i in self.session.get_inputs() if len(i.shape) == 4]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def feeds(self, ids, past=None):
        empty = lambda i: np.zeros([d if isinstance(d, int) else int("batch" in d) for d in i.shape], np.float32)
        past = past or {i.name: empty(i) for i in self.caches}
        start = next(iter(past.values())).shape[2]
        every = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, start + len(ids)), np.int64),
                 "position_ids": np.arange(start, start + len(ids))[None], **past}
        return {i.name: every[i.name] for i in self.session.get_inputs()}

    def step(self, ids, past=None):
        results = dict(zip(self.outputs, self.session.run(None, self.feeds(ids, past))))
        return results["logits"][0], {i.name: results[i.name.replace("past_key_values", "present")] for i in self.caches}

    def by_token(self, ids):
        """The logits of all places, fed one by one: then a scale of the call is one of the token."""
        rows, past = [], None
        for token in ids:
            logits, past = self.step([token], past)
            rows.append(logits[-1])
        return np.array(rows)

    def greedy(self, prompt, count):
        """The tokens that are generated, and the logits that each was chosen by."""
        logits, past = self.step(prompt)
        rows = [logits[-1]]
        while len(rows) < count:
            logits, past = self.step([int(rows[-1].argmax())], past)
            rows.append(logits[-1])
        return [int(row.argmax()) for row in rows], np.array(rows)


def by_ark(ark_run, model, feeds, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [ark_run, model, "--driver", "decoder", "--threads", "2", "--output-dir", folder, *options]
        for name, array in feeds.items():
            np.save(Path(folder) / f"in_{name}.npy", array)
            command += ["--input", f"{name}={folder}/in_{name}.npy"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return np.load(Path(folder) / "logits.npy")[0]


def log_likelihood(logits, tokens):
    rows = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return rows[np.arange(len(tokens)), tokens] - np.log(np.exp(rows).sum(-1))


def compare_on_text(ark_run, model, floats, ids, options):
    file = floats.step(ids[:-1])[0]
    ark = by_ark(ark_run, model, floats.feeds(ids[:-1]), options)
    same, ranked = ark.argmax(-1) == file.argmax(-1), np.sort(file, -1)
    is_wide = ranked[:, -1] - ranked[:, -2] > 1e-2
    print(f"same token, ark : float: {100 * same.mean():.1f} % of {len(same)}, {100 * same[is_wide].mean():.1f} % where margins > 0.01")
    for name, logits in (("float", file), ("ark", ark)):
        print(f"perplexity, {name}: {np.exp(-log_likelihood(logits, ids[1:]).mean()):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ark_run")
    parser.add_argument("model", type=Path)
    parser.add_argument("--of", type=Path, required=True, metavar="FLOAT_MODEL")
    parser.add_argument("--quantize", choices=["int8", "uint8", "int8-columns", "uint8-columns"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--option", action="append", default=[], help="of ark-run")
    args = parser.parse_args()
    if args.quantize and not args.model.exists():
        quantize(args.of, args.model, args.quantize)
    tokenizer = Tokenizer.from_file(str(args.of.parent / "tokenizer.json"))
    floats = File(args.of)
    if args.text:
        return compare_on_text(args.ark_run, args.model, floats, tokenizer.encode(args.text.read_text()).ids[:1025], args.option)
    file = File(args.model)
    same = {pair: [] for pair in ("ark : file", "ark : file by token", "ark : float", "file by token : file",
                                  "file at once : file", "float : file")}
    likelihood = {"float": [], "file": [], "ark": []}
    for text in PROMPTS:
        prompt = tokenizer.encode(text).ids
        for source in file, floats:
            tokens, chosen_by = source.greedy(prompt, args.tokens)
            whole = prompt + tokens[:-1]
            places = slice(len(prompt) - 1, None)
            ark = by_ark(args.ark_run, args.model, file.feeds(whole), args.option)[places]
            if source is file:
                best = {"ark": ark.argmax(-1), "float": floats.step(whole)[0][places].argmax(-1), "file": np.array(tokens),
                        "file by token": file.by_token(whole)[places].argmax(-1),
                        "file at once": file.step(whole)[0][places].argmax(-1)}
                for pair, found in same.items():
                    a, b = pair.split(" : ")
                    found.extend(best[a] == best[b])
            else:
                steps, past = [], None
                for ids in [prompt, *([t] for t in tokens[:-1])]:
                    logits, past = file.step(ids, past)
                    steps.append(logits[-1])
                for name, logits in (("float", chosen_by), ("file", np.array(steps)), ("ark", ark)):
                    likelihood[name].extend(log_likelihood(logits, tokens))
    for pair, found in same.items():
        print(f"same token, {pair}: {100 * np.mean(found):.1f} % of {len(found)}")
    for name, found in likelihood.items():
        print(f"perplexity, {name}: {np.exp(-np.mean(found)):.4f}")


if __name__ == "__main__":
    main()
