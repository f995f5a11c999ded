"""What a start keeps on disk for the next one (--cache-dir): the same answers, whatever happened to it meanwhile."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import onnx
import pytest

from ark_server import BIN, BINARY, TINY, Server, until

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no {BINARY} (scripts/build.sh makes it)")

SETTLED = 2.2  # seconds from which on a file's stamp tells all that is written to it later
BODY = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 24, "temperature": 0, "logprobs": 5, "ignore_eos": True}


def answer_of(server):
    """Tokens and log-probabilities with all of their digits."""
    choice = server.post("/v1/completions", BODY).json()["choices"][0]
    return json.dumps([choice["text"], choice["logprobs"]])


def entries(folder, kind=""):
    return sorted(p.name for p in folder.glob(f"[0-9a-f]*.{kind}*")) if folder.exists() else []


def parts(folder):
    return [p.name for p in folder.glob(".part-*")]


def is_kept(server):
    """Whether the model came from the folder: programs and weights."""
    lines = [line.split()[0] for line in server.lines]
    whole = any("kept by an earlier start" in line for line in server.lines)
    assert whole == ("kept" in lines and "recognise" not in lines) or "recognise" in lines, server.lines
    return whole


def start(folder, model=TINY, *options, until_kept=True, **more):
    """The answer, and whether the model was kept already; ends once the entries are there."""
    with Server("--model", model, "--cache-dir", folder, *options, **more) as server:
        answer = answer_of(server)
        if until_kept:
            ranks = int(options[options.index("--tp") + 1]) if "--tp" in options else 1
            until(lambda: len(entries(folder, "model")) == 1 and len(entries(folder, "rank")) == ranks, "entries")
    return answer, is_kept(server)


@pytest.fixture(scope="module")
def expected():
    with Server("--model", TINY, "--no-cache") as server:
        assert not is_kept(server)
        return answer_of(server)


@pytest.mark.parametrize("options", [[], ["--tp", "2"], ["--tp", "2", "--processes"], ["--tp", "2", "--processes", "--no-supervise"],
                                     ["--weights", "f32", "--max-model-len", "64"]], ids=" ".join)
def test_a_second_start_answers_with_the_same_bytes(tmp_path, expected, options):
    folder = tmp_path / "made/by/it"
    first, was_kept = start(folder, TINY, *options)
    assert not was_kept
    before = {name: (folder / name).read_bytes() for name in entries(folder)}
    assert (folder.stat().st_mode & 0o777) == 0o700 and not parts(folder)
    second, was_kept = start(folder, TINY, *options)
    assert was_kept
    assert first == second == expected
    assert before == {name: (folder / name).read_bytes() for name in entries(folder)}
    start(other := tmp_path / "other", TINY, *options)  # what is kept follows from the key alone
    assert before == {name: (other / name).read_bytes() for name in entries(other)}


def test_what_the_entry_follows_from_is_in_its_key(tmp_path, expected):
    variants = [[], ["--tp", "2"], ["--weights", "int8"], ["--weights", "bf16"], ["--kv-dtype", "f16"], ["--activations", "int8"],
                ["--max-num-batched-tokens", "64"], ["--max-num-seqs", "100"]]
    for n, options in enumerate(variants, 1):
        with Server("--model", TINY, "--cache-dir", tmp_path, *options) as server:
            assert not is_kept(server), options
            until(lambda n=n: len(entries(tmp_path, "model")) == n, "an entry of its own")
    _, was_kept = start(tmp_path, until_kept=False)
    assert was_kept
    less = ["avx2"] * ("avx512vl" in Path("/proc/cpuinfo").read_text()) + ["scalar"]  # than this machine has
    for isa in less:
        answer, was_kept = start(tmp_path, environment={"ARK_ISA": isa}, until_kept=False)
        assert not was_kept and answer == expected


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit of weights": ("rank0", lambda path: flip(path, -5000)),
    "a flipped bit of the head": ("rank0", lambda path: flip(path, 20)),
    "a flipped bit of the programs": ("model", lambda path: flip(path, 5000)),
    "cut short": ("rank0", lambda path: os.truncate(path, path.stat().st_size - 1)),
    "empty": ("model", lambda path: path.write_bytes(b"")),
    "something else": ("model", lambda path: path.write_text("no entry\n" * 1000)),
    "gone": ("rank0", lambda path: path.unlink()),
    "gone too": ("model", lambda path: path.unlink()),
    "a link": ("rank0", lambda path: (path.unlink(), path.symlink_to("/etc/passwd"))),
    "a FIFO": ("model", lambda path: (path.unlink(), os.mkfifo(path))),
    "others may write it": ("rank0", lambda path: path.chmod(0o666)),
}


def test_damaged_entries_are_made_anew(tmp_path, expected):
    whole, _ = start(tmp_path)
    names = entries(tmp_path)
    for what, (kind, damage) in DAMAGES.items():
        [name] = entries(tmp_path, kind)
        good = (tmp_path / name).read_bytes()
        damage(tmp_path / name)
        answer, was_kept = start(tmp_path)
        assert answer == whole == expected and not was_kept, what
        until(lambda: (tmp_path / name).is_file() and (tmp_path / name).read_bytes() == good, f"a new one: {what}")
        answer, was_kept = start(tmp_path)
        assert answer == expected and was_kept and entries(tmp_path) == names, what


def external_copy(folder):
    """The tiny model with its weights in a file of their own; the place of the head's bytes in it."""
    model = onnx.load(TINY / "model.onnx")
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=1024)
    for name in ("tokenizer.json", "config.json"):
        if (TINY / name).exists():
            shutil.copy(TINY / name, folder)
    return folder / "model.onnx", folder / "weights.bin"


def zero_in_place(path):
    """Other numbers, the same size and, as far as one can, the same times."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(status.st_size // 4)
        file.write(bytes(status.st_size // 2))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def replace(path):
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    zero_in_place(copy)
    os.replace(copy, path)


@pytest.mark.parametrize("change", [zero_in_place, replace])
def test_other_weights_are_never_answered_with_those_that_were_kept(tmp_path, change):
    model, weights = external_copy(tmp_path / "model")
    folder = tmp_path / "cache"
    time.sleep(SETTLED)
    first, _ = start(folder, model)
    assert start(folder, model) == (first, True)
    change(weights)
    time.sleep(SETTLED)
    other, was_kept = start(folder, model, until_kept=False)
    assert not was_kept and other != first
    with Server("--model", model, "--no-cache") as server:
        assert answer_of(server) == other


def test_a_file_that_was_just_written_is_not_kept(tmp_path):
    """It may be written to once more within a tick of the file system's clock."""
    model, _ = external_copy(tmp_path / "model")
    folder = tmp_path / "cache"
    os.utime(model)
    subprocess.run([BIN / "ark-run", model, "--prompt-ids", "1,2", "--max-tokens", "1", "--cache-dir", folder], check=True,
                   capture_output=True)
    if time.time() - model.stat().st_ctime < 1.9:
        assert entries(folder) == []


def test_two_servers_that_start_at_once(tmp_path, expected):
    servers = [Server("--model", TINY, "--cache-dir", tmp_path, wait=False, port=0) for _ in range(3)]
    try:
        for server in servers:
            server.wait_ready()
            assert answer_of(server) == expected
        until(lambda: len(entries(tmp_path)) == 2 and not parts(tmp_path), "one pair of entries")
    finally:
        for server in servers:
            server.kill()
    assert start(tmp_path) == (expected, True)


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


@pytest.mark.parametrize("where", ["limited", "a file", "others may write it", "another user's", "too small"])
def test_what_cannot_be_kept_costs_one_warning(tmp_path, expected, where):
    folder, options, more = tmp_path / "cache", [], {}
    if where == "limited":
        more["prepare"] = limit_files
    elif where == "a file":
        folder.write_text("")
    elif where == "too small":
        options = ["--cache-size", "4k"]
    else:
        folder.mkdir()
        folder.chmod(0o777)
        if where == "another user's":
            if os.geteuid() != 0:
                pytest.skip("only root can give folders away")
            folder.chmod(0o700)
            os.chown(folder, 12345, 12345)
    with Server("--model", TINY, "--cache-dir", folder, *options, **more) as server:
        assert answer_of(server) == expected
        until(lambda: any("cache folder" in line for line in server.log), "a warning")
    warnings = [line for line in server.log if "cache folder" in line]
    assert len(warnings) == 1 and str(folder) in warnings[0] and " warning " in warnings[0], server.log
    if folder.is_dir():
        assert not parts(folder) and not entries(folder, "rank")


@pytest.mark.parametrize("options", [["--no-cache"], ["--cache-size", "0"]])
def test_it_can_be_turned_off(tmp_path, expected, options):
    start(tmp_path)
    for path in tmp_path.glob("*.*"):
        path.chmod(0o400)
    before = {p.name: p.stat() for p in tmp_path.iterdir()}
    answer, was_kept = start(tmp_path, TINY, *options, until_kept=False)
    assert answer == expected and not was_kept
    assert before == {p.name: p.stat() for p in tmp_path.iterdir()}


def test_a_server_killed_while_it_writes(tmp_path, smollm2_model):
    options = ["--max-model-len", "256", "--kv-memory", "64M"]
    server = Server("--model", smollm2_model, "--cache-dir", tmp_path, *options)
    try:
        until(lambda: parts(tmp_path) or entries(tmp_path, "model"), "a part")
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.kill()
    first, was_kept = start(tmp_path, smollm2_model, *options)
    assert not parts(tmp_path)
    assert start(tmp_path, smollm2_model, *options) == (first, True)
    with Server("--model", smollm2_model, "--no-cache", *options) as plain:
        assert answer_of(plain) == first


def test_tools_keep_models_too(tmp_path):
    command = [BIN / "ark-run", TINY / "model.onnx", "--prompt-ids", "1,2,3", "--max-tokens", "8", "--json", "--cache-dir", tmp_path]
    first = subprocess.run(command, check=True, capture_output=True, text=True)
    assert len(entries(tmp_path)) == 2  # before it ends
    second = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(first.stdout)["token_ids"] == json.loads(second.stdout)["token_ids"]
    bench = [BIN / "ark-bench", "model", TINY / "model.onnx", "--context", "8", "--prefill", "8", "--repeat", "1", "--json"]
    other = tmp_path / "bench"
    for kept in (False, True):
        run = subprocess.run([*bench, "--cache-dir", other, "--cache-size", "1G"], check=True, capture_output=True, text=True)
        assert ("kept by an earlier start" in run.stderr) == kept
    subprocess.run(bench, check=True, capture_output=True, env=os.environ | {"ARK_CACHE_DIR": str(tmp_path / "none")})
    assert not (tmp_path / "none").exists()  # it measures, and writes nothing meanwhile, unless it is told to
