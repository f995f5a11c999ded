"""Whatever the policies are, and whatever the machine does meanwhile, equal requests get equal answers: options drawn at random
against a server that computes one request at a time, whole and without guesses. `ARK_FULL=1` draws 200 times."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ark_server import FULL, Server
from test_load import is_idle, stream, until

DRAWS = 200 if FULL else 12
CLIENTS = 12
TINY_KV = "100k"  # two whole sequences: the others wait, or are preempted
PLAIN = ["--tp", 1, "--threads", 1, "--max-num-seqs", 1, "--no-prefix-cache", "--speculate", "off", "--prompt-order", "arrival"]


def body(number):
    """Many begin alike; some ask for what one row, several choices or all rows of a prompt tell."""
    dice = random.Random(number)
    shared = [7 * i % 500 + 3 for i in range(dice.choice([0, 0, 16, 40]))]
    request = {"prompt": shared + [dice.randrange(3, 500) for _ in range(dice.randrange(1, 40))], "max_tokens": dice.randrange(0, 40),
               "seed": number, "ignore_eos": dice.random() < 0.7, "return_token_ids": True}
    request |= dice.choice([{"temperature": 0}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 1.1, "top_k": 40, "min_p": 0.02}])
    extras = [{"logprobs": 3}, {"n": 2, "temperature": 0.8}, {"echo": True, "logprobs": 1}, {"stop": ["e", "th"]},
              {"repetition_penalty": 1.3, "frequency_penalty": 0.4}, {"logit_bias": {"17": 4, "30": -100}}, {"cache_salt": "s"}]
    for extra in dice.sample(extras, dice.choice([0, 0, 1, 2])):
        request |= extra
    return request


def answer(server, number):
    response = server.post("/v1/completions", body(number))
    assert response.status_code == 200, response.text
    keys = ("index", "text", "token_ids", "finish_reason", "logprobs")
    return [{key: choice.get(key) for key in keys} for choice in response.json()["choices"]]


def draw(dice, model):
    ranks = dice.choice([1, 1, 2])
    options = ["--tp", ranks, "--threads", ranks * dice.choice([1, 2]), "--max-num-seqs", dice.choice([1, 3, 16]),
               "--max-num-batched-tokens", dice.choice([0, 3, 17, 64]), "--slo-itl", dice.choice([-1, 0, 0.01, 5]),
               "--slo-ttft", dice.choice([0, 0.01, 50]), "--prompt-order", dice.choice(["shortest", "arrival"]),
               "--speculate", dice.choice(["ngram", "off"]), "--yield-cores", dice.choice(["on", "off"]),
               "--kv-memory", dice.choice([TINY_KV, TINY_KV, "4M"])]
    options += dice.choice([[], ["--no-prefix-cache"]])
    if ranks == 2:
        options += dice.choice([[], ["--processes"]])
    elif dice.random() < 0.4:
        options += ["--supervise"]
    if "off" != options[options.index("--speculate") + 1] and dice.random() < 0.4:
        options += ["--draft-model", model, "--draft-weights", dice.choice(["exact", "int4"])]
    return options


@pytest.fixture(scope="module")
def alone(tiny_model):
    with Server("--model", tiny_model, *PLAIN) as server:
        return [answer(server, number) for number in range(24)]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_no_option_changes_an_answer(tiny_model, alone, seed):
    dice = random.Random(seed)
    options = draw(dice, tiny_model)
    thief = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if dice.random() < 0.3 else None
    try:
        with Server("--model", tiny_model, *options) as server, ThreadPoolExecutor(CLIENTS) as clients, server.client() as client:
            numbers = [number for number in range(len(alone)) for _ in range(2)]
            dice.shuffle(numbers)
            left = [clients.submit(stream, client, server.model, index, index % 7) for index in range(4)]
            got = list(clients.map(lambda number: answer(server, number), numbers))
            for one in left:
                one.result()
            wrong = [(number, found, alone[number]) for number, found in zip(numbers, got) if found != alone[number]]
            assert not wrong, f"{options}: {wrong[:2]}"
            until(lambda: is_idle(server), "no sequence and no page is held")
    finally:
        if thief:
            thief.kill()
            thief.wait()
