#!/usr/bin/env python3
"""What the scheduler's policies are worth: each against the same server without it, in turn, by the same requests.

    scripts/policy_figures.py MODEL [--policy prefix|steady|order|keys|speculate|neighbours|cores|waits|goals|schedule] [-- options of ark-serve]

prefix: time to the first token of prompts that begin alike. steady: time between the tokens of four streams, alone and
beside ten long prompts. order: time to the first token of short prompts among some long ones. Milliseconds; one JSON
line for each side. keys: the part of the work that a key with 4 clients gets beside one with 16; off: all have one key.
speculate: tokens a second with it as parts of those without, of chats whose answers copy and of others; request by request
in turn on one server, and the answers must be equal. neighbours: milliseconds to the first token of prompts of 1,000
tokens, computed and taken from another server that has computed them, in turn; tokens must be equal. cores: the part of
the tokens a second that four streams keep while a program spins on one core. waits: processor seconds and tokens a second of
one stream, in turn, as parts of those without naps (ARK_NAPS=off). goals: the
part of a trace's requests that are in time, with --slo-ttft and --slo-itl, and by fixed settings, in virtual time; MODEL may be a
file of measured steps. schedule: percentiles of a trace on a server, and what `ark-bench schedule` says of it."""

import argparse
import http.client
import json
import math
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BIN = Path(os.environ.get("ARK_BIN", Path(__file__).resolve().parent.parent / "build" / "bin"))
BINARY = BIN / "ark-serve"
OFF = {"prefix": ["--no-prefix-cache"], "steady": ["--slo-itl", "-1"], "order": ["--prompt-order", "arrival"],
       "keys": [], "speculate": None, "neighbours": None, "cores": ["--yield-cores", "off"], "waits": None, "goals": None, "schedule": None}
ROUNDS = 4  # of cores, waits


class Server:
    def __init__(self, model, *options, env={}):
        self.model, self.options = model, options
        self.process = subprocess.Popen([BINARY, "--model", model, "--port", "0", *options], stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, env=os.environ | env)
        for line in self.process.stdout:
            if ready := re.search(r"ready +http://(\S+):(\d+)", line):
                self.address = ready[1], int(ready[2])
                break
        else:
            raise SystemExit(f"{BINARY} did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stdout.close()
        self.process.wait()

    def stream(self, key=None, **body):
        """Milliseconds from the request to each token, and the token."""
        connection = http.client.HTTPConnection(*self.address)
        start = time.monotonic()
        connection.request("POST", "/v1/chat/completions" if "messages" in body else "/v1/completions",
                           json.dumps({"ignore_eos": True, "stream": True, "return_token_ids": True, "seed": 1, **body}),
                           {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}))
        found = []
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                at = (time.monotonic() - start) * 1e3
                found += [(at, token) for token in json.loads(line[6:])["choices"][0].get("token_ids", [])]
        connection.close()
        return found

    def metrics(self):
        connection = http.client.HTTPConnection(*self.address)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return {name: float(value) for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.M)}

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def times(self, prompt, tokens, key=None):
        return [at for at, _ in self.stream(key, prompt=prompt, max_tokens=tokens)]


class Client(threading.Thread):
    def __init__(self, server, prompt, tokens, delay=0.0):
        super().__init__()
        self.server, self.prompt, self.tokens, self.delay = server, prompt, tokens, delay
        self.start()

    def run(self):
        time.sleep(self.delay)
        self.begun = time.monotonic()
        self.times = self.server.times(self.prompt, self.tokens)

    def end(self):
        self.join()
        return self


def ids(dice, count):
    return [dice.randrange(100, 5000) for _ in range(count)]


def share(values, q):
    return round(sorted(values)[int(q * (len(values) - 1))], 2)


def prefix(server, dice):
    system = ids(dice, 2000)
    first, *others = [server.times(system + ids(dice, 20), 2)[0] for _ in range(6)]
    return {"first": round(first), "second": round(others[0]), "others": round(statistics.median(others))}


def steady(server, dice):
    streams = [Client(server, ids(dice, 20), 900) for _ in range(4)]
    time.sleep(4)
    arrived = time.monotonic()
    prompts = [Client(server, ids(dice, 2000), 1, 3.0 * i) for i in range(10)]
    firsts = [prompt.end().times[0] for prompt in prompts]
    ended = time.monotonic()
    alone, beside = [], []
    for stream in (stream.end() for stream in streams):
        for before, after in zip(stream.times, stream.times[1:]):
            at = stream.begun + after / 1e3
            (alone if at < arrived and before > 1000 else beside if arrived < at < ended else []).append(after - before)
    return {"alone_p50": share(alone, 0.5), "beside_p50": share(beside, 0.5), "beside_p99": share(beside, 0.99),
            "beside_max": share(beside, 1), "ratio_p99": round(share(beside, 0.99) / share(alone, 0.5), 2),
            "prompts_first_token": round(statistics.median(firsts))}


def order(server, dice):
    clients, at = [], 0.0
    for i in range(60):  # every tenth is long: nine tenths of all tokens
        clients.append(Client(server, ids(dice, 1800 if i % 10 == 4 else 20), 4, at))
        at += dice.expovariate(5)
    short = [c.times[0] for c in (c.end() for c in clients) if len(c.prompt) < 100]
    long = [c.times[0] for c in clients if len(c.prompt) > 100]
    return {"short_p50": share(short, 0.5), "short_p99": share(short, 0.99), "long_p50": share(long, 0.5), "long_max": share(long, 1)}


CODE = '''def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0.0
    for value in values:
        total += (value - center) ** 2
    return total / (len(values) - 1)


def correlation(first, second):
    a, b = mean(first), mean(second)
    total = 0.0
    for x, y in zip(first, second):
        total += (x - a) * (y - b)
    return total / (len(first) - 1) / (variance(first) * variance(second)) ** 0.5
'''
STORY = ("The lighthouse keeper had not spoken to anyone for nine days when the small blue boat came round the rocks. He put down his cup, "
         "wiped the window with his sleeve, and counted the people on board: two, and a dog that stood in the bow like a captain. "
         "The wind was rising from the west, and the harbour lay an hour behind the cliffs. He took the heavy lamp from its hook, "
         "walked down the ninety steps to the landing, and waited until the rope flew out of the spray and fell at his feet.")
TEXTS = {  # tokens, and what is asked
    "copy": (120, {"messages": [{"role": "user", "content": f"Repeat this text word for word, but write red instead of blue:\n\n{STORY}"}]}),
    "edit": (180, {"messages": [{"role": "user", "content": f"Here is a Python file:\n\n```python\n{CODE}```\n\nWrite the file again with "
                                "the function variance renamed to spread. Write only the code."}],
                   "prediction": {"type": "content", "content": CODE.replace("variance", "spread")}}),
    "story": (150, {"messages": [{"role": "user", "content": "Tell me a story about a lighthouse keeper and a dog."}], "temperature": 1}),
    "facts": (150, {"messages": [{"role": "user", "content": "Explain how a refrigerator works, and what came before it."}], "temperature": 0.7}),
    "noise": (150, {"prompt": ids(random.Random(9), 40), "temperature": 2}),
}


def speculate(server, dice):
    def rate(tokens, body):
        found = server.stream(max_tokens=tokens, **body)
        return (len(found) - 1) / (found[-1][0] - found[0][0]), [token for _, token in found]

    ratios, seeds = {}, [dice.randrange(1 << 30) for _ in range(9)]
    for name, (tokens, body) in TEXTS.items():
        pairs = []
        for i, seed in enumerate(seeds):
            sides = [rate(tokens, {"temperature": 0, **body, "seed": seed, "speculative.n_max": most})
                     for most in ((15, 0) if i % 2 else (0, 15))]
            on, off = sides if i % 2 else reversed(sides)
            if on[1] != off[1]:
                raise SystemExit(f"{name}: other tokens with drafts than without")
            pairs.append(on[0] / off[0])
        ratios[name] = round(statistics.median(pairs), 2)
    return ratios


def neighbours(server, dice):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1:%d" % free.getsockname()[1]
    alone, taken, tokens = [], [], 32
    with Server(server.model, *server.options, "--kv-listen", address) as one, \
            Server(server.model, *server.options, "--kv-peers", address) as two:
        for one_or_two in (one, two):
            one_or_two.times(ids(random.Random(0), 600), 30)  # warm
        before = two.metrics()
        for _ in range(9):
            prompt = ids(dice, 1000)
            sides = [side.stream(prompt=prompt, max_tokens=tokens) for side in (one, two)]
            if [token for _, token in sides[0]] != [token for _, token in sides[1]]:
                raise SystemExit("other tokens with pages of another server than without")
            alone.append(sides[0][0][0]), taken.append(sides[1][0][0])
        after = two.metrics()
    per_prompt = {name: round((after[f"ark_kv_{name}_total"] - before[f"ark_kv_{name}_total"]) / 9, 1)
                  for name in ("peer_questions", "pages_fetched", "fetched_bytes")}
    return {"computed": round(statistics.median(alone)), "taken": round(statistics.median(taken)), **per_prompt}


def keys(server, dice):
    """Each client asks again as soon as it has its answer; work counts as the scheduler counts it."""
    work, end = {"many": 0, "few": 0}, time.monotonic() + 40
    begin, sizes = time.monotonic() + 5, [dice.randrange(20, 300) for _ in range(4000)]

    def client(name):
        while time.monotonic() < end:
            prompt = ids(random.Random(len(sizes)), sizes.pop())
            start = time.monotonic()
            times = [start + at / 1e3 for at in server.times(prompt, 24, server.keys[name])]
            work[name] += len(prompt) * (begin < times[0] < end) + 2 * sum(begin < at < end for at in times)

    clients = [threading.Thread(target=client, args=[name]) for name in ["many"] * 16 + ["few"] * 4]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return {"share_of_few": round(work["few"] / sum(work.values()), 3), "tokens": sum(work.values())}


def cores(model, options, seed):
    """Both servers at once, by turns: each alone, and beside a program that spins; who is not asked sleeps."""
    def rate(server):
        streams = [Client(server, ids(random.Random(seed), 20), 70) for _ in range(4)]
        return sum((len(s.times) - 10) / (s.times[-1] - s.times[9]) * 1e3 for s in (s.end() for s in streams))

    rates = {(name, beside): [] for name in ("on", "off") for beside in (False, True)}
    with Server(model, *options) as on, Server(model, *OFF["cores"], *options) as off:
        for server in (on, off):
            server.times(ids(random.Random(0), 600), 30)
        for i in range(2 * ROUNDS):
            beside = i % 2 == 1
            thief = subprocess.Popen([sys.executable, "-c", f"while {beside}: pass"])
            time.sleep(0.3)
            for name, server in (("on", on), ("off", off))[::1 if i // 2 % 2 else -1]:
                rates[name, beside].append(rate(server))
            thief.kill()
            thief.wait()
    for name in ("on", "off"):
        alone, beside = rates[name, False], rates[name, True]
        kept = [b / a for a, b in zip(alone, beside)]
        print(json.dumps({"policy": "cores", name: {"alone": round(statistics.median(alone)), "beside": round(statistics.median(beside)),
                                                    "kept": share(kept, 0.5), "each": [round(k, 2) for k in kept]}}), flush=True)


def waits(model, options, seed):
    """Ranks whose parts differ: what those that are through before the others take, and how soon all are."""
    def measure(server):
        before = server.cpu_seconds()
        times = server.times(ids(random.Random(seed), 20), 600)
        return server.cpu_seconds() - before, (len(times) - 10) / (times[-1] - times[9]) * 1e3

    options = ["--tp", "2", "--speculate", "off", *options]
    with Server(model, *options) as on, Server(model, *options, env={"ARK_NAPS": "off"}) as off:
        for server in (on, off):
            server.times(ids(random.Random(0), 20), 100)
        pairs = []
        for i in range(2 * ROUNDS):
            sides = [measure(server) for server in ((on, off) if i % 2 else (off, on))]
            own, other = sides if i % 2 else reversed(sides)
            pairs.append([a / b for a, b in zip(own, other)])
        for name, ratios in zip(("cpu_seconds", "tokens_a_second"), zip(*pairs)):
            print(json.dumps({"policy": "waits", "what": name, "on_of_off": round(statistics.median(ratios), 3),
                              "each": [round(ratio, 3) for ratio in ratios]}), flush=True)


GOALS = {"ttft": 500, "itl": 60}  # milliseconds


def goals(model, options, seed):
    """Bursts of requests, below what the machine can do, above it, and above it by long answers."""
    def trace(count, rate, longest, outputs):
        dice, at, lines = random.Random(seed), 0.0, []
        for _ in range(count):
            at += dice.expovariate(rate * (2.2 if at // 20 % 3 == 0 else 0.7))
            prompt = dice.randrange(800, 2000) if longest > 400 and dice.random() < 0.03 else int(dice.lognormvariate(4.6, 0.8)) + 4
            lines.append({"at": round(at, 4), "prompt_tokens": min(prompt, longest), "output_tokens": dice.choice(outputs)})
        return lines

    short = [8, 16, 32, 64, 120, 200]
    traces = {"feasible": trace(2000, 1.2, 400, short), "mixed": trace(2000, 2.0, 2000, short), "long answers": trace(1500, 2.4, 200, range(150, 600))}
    with tempfile.TemporaryDirectory() as folder:
        file, steps = Path(folder) / "trace.jsonl", Path(model)

        def in_time(*how):
            goodput = [part for name, ms in GOALS.items() for part in ("--goodput", f"{name}:{ms}")]
            run = subprocess.run([BIN / "ark-bench", "schedule", file, "--steps", steps, "--max-queue", "65536", *goodput, "--json",
                                  *map(str, how)], check=True, capture_output=True, text=True)
            result = json.loads(run.stdout)
            return round(result["request_goodput"] * result["duration"] / len(lines), 4)

        if steps.suffix != ".json":
            steps = Path(folder) / "steps.json"
            file.write_text(json.dumps(traces["feasible"][0]) + "\n")
            subprocess.run([BIN / "ark-bench", "schedule", file, "--model", model, "--save-steps", steps, *options], check=True, stdout=subprocess.DEVNULL)
        for name, lines in traces.items():
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            fixed = {(n, tokens, order): in_time("--slo-itl", -1, "--max-num-seqs", n, "--max-num-batched-tokens", tokens, "--prompt-order", order)
                     for n in (4, 8, 16, 32) for tokens in (32, 48, 64, 96, 128, 256) for order in ("shortest", "arrival")}
            best = max(fixed, key=fixed.get)
            print(json.dumps({"policy": "goals", "trace": name, "goals": in_time("--slo-itl", GOALS["itl"], "--slo-ttft", GOALS["ttft"]),
                              "slo_itl_alone": in_time("--slo-itl", GOALS["itl"]), "best_fixed": fixed[best], "which": best}), flush=True)


def schedule(model, options, seed):
    """Requests of mixed lengths at random times, 60 % of what the machine can do; real times and virtual ones. Some minutes are saved
    by few sequences and small steps: what is measured is what the trace needs. The steps are measured before and after the server
    runs (a machine that changes meanwhile shows), and requests alone show what is outside of steps: HTTP, tokens on their way."""
    dice = random.Random(seed)
    options = ["--max-num-seqs", "16", "--max-num-batched-tokens", "256", *options]
    trace = [{"at": 0.0, "prompt_tokens": int(dice.lognormvariate(4.8, 0.8)) + 1, "output_tokens": dice.randrange(10, 80)}
             for _ in range(60)]
    alone = [{"at": 3.0 * i, "prompt_tokens": 20 + 40 * i, "output_tokens": 20} for i in range(5)]

    def run(server, lines, first=0):
        clients = [Client(server, ids(random.Random(i), one["prompt_tokens"]), one["output_tokens"], one["at"]) for i, one in enumerate(lines, first)]
        times = [client.end().times for client in clients]
        return {"ttft": [one[0] for one in times], "e2el": [one[-1] for one in times],
                "itl": [after - before for one in times for before, after in zip(one, one[1:])]}

    with tempfile.TemporaryDirectory() as folder:
        def virtual(lines, *source):
            file = Path(folder) / "trace.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            done = subprocess.run([BIN / "ark-bench", "schedule", file, *source, *options, "--json"], check=True, capture_output=True, text=True)
            return json.loads(done.stdout)

        steps, at = [Path(folder) / f"{when}.json" for when in ("before", "after")], 0.0
        gap = virtual(trace, "--model", model, "--save-steps", steps[0])["duration"] / len(trace) / 0.6
        for one in trace:
            at += dice.expovariate(1 / gap)
            one["at"] = round(at, 3)
        with Server(model, "--speculate", "off", *options) as server:
            server.times(ids(random.Random(0), 600), 30)
            lone, real = [], run(server, trace)
            for one in alone:
                lone.append(run(server, [one | {"at": 0.0}], 1000 + len(lone)))
        virtual(trace[:1], "--model", model, "--save-steps", steps[1])
        told = [virtual(trace, "--steps", file) for file in steps]
        told_alone = virtual(alone, "--steps", steps[0])
    first = statistics.median(one["ttft"][0] for one in lone)
    between = statistics.median(gap for one in lone for gap in one["itl"])
    outside = max(0.0, first - told_alone["median_ttft_ms"])
    print(json.dumps({"policy": "schedule", "what": "alone", "ttft": round(first, 1), "told_ttft": round(told_alone["median_ttft_ms"], 1),
                      "itl": round(between, 2), "told_itl": round(told_alone["median_itl_ms"], 2), "outside": round(outside, 1)}), flush=True)
    for name, values in real.items():
        for key, q in {"median": 0.5, "p90": 0.9, "p99": 0.99}.items():
            found = round(sorted(values)[math.ceil(q * len(values)) - 1], 2)  # as the simulation counts: p99 of sixty is the worst
            said, after = [one[f"{key}_{name}_ms"] + outside * (name != "itl") for one in told]
            print(json.dumps({"policy": "schedule", "what": f"{key} {name}", "real": found, "told": round(said, 1),
                              "told_of_real": round(said / found, 2), "by_steps_measured_after": round(after / found, 2)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--policy", choices=OFF, default="prefix")
    parser.add_argument("--seed", type=int, default=1)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # argparse takes options there for its own
    args = parser.parse_args(sys.argv[1:cut])
    args.options = sys.argv[cut + 1:]
    if args.policy in ("cores", "goals", "schedule", "waits"):
        return globals()[args.policy](args.model, args.options, args.seed)
    for name, options in {"on": [], "off": OFF[args.policy]}.items():
        if options is None:
            continue  # it compares by itself
        key_file = tempfile.NamedTemporaryFile("w") if args.policy == "keys" else None
        if key_file:
            key_file.write("few:sk-few\nmany:sk-many\n")
            key_file.flush()
            options = ["--api-key-file", key_file.name, "--max-num-seqs", "8"]
        with Server(args.model, *options, *args.options) as server:
            server.keys = {"few": "sk-few" if name == "on" else "sk-many", "many": "sk-many"}
            server.times(ids(random.Random(0), 600), 30, server.keys["many"] if key_file else None)  # warm
            print(json.dumps({"policy": args.policy, name: globals()[args.policy](server, random.Random(args.seed))}), flush=True)


if __name__ == "__main__":
    main()
