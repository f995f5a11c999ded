"""Builds and runs all test suites, and adds up their counts. Called by test.sh; standard library only.

A suite is a command whose results are read from its log (GoogleTest) or its report (pytest). A crash, a
time-out, a build that fails or a suite that reports nothing counts as one failed test and shows the end of its
log. Logs stay in build/test-logs.

Suites run beside each other, on whatever machine there is, and some tests ask how soon something is noticed or answered. So
a few tests that failed by their own words are run once more, alone, when all else has ended; those that pass then count as
passed and are named as unsteady. What crashed, hung or was stopped by a sanitizer has failed."""

import argparse
import concurrent.futures
import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
ZOO = ROOT / "build" / "zoo"
PYTHON = ROOT / ".venv" / "bin" / "python"
JOBS = os.cpu_count() or 2
TAIL = 40  # lines of a failed suite's log
UNSTEADY = 8  # where more fail, it is not the machine: nothing is run again
# Of the tests' targets.
END_TO_END_NEEDS = ["ark_faults", "fake_libcuda", "fake_old_libcuda", "dma_test", "emulator_test", "engine_test"]
FUZZ_SECONDS, FUZZ_SECONDS_FULL = 2, 60  # of each fuzzer
FUZZ_LENGTH = 4096  # bytes of the largest input, where tests/fuzz/NAME.options says nothing else
# The longest first. In shards, so that no suite is left running alone at the end.
LONGEST = ["emulator_test", "verbs", "models", "threads_test", "cuda_test", "engine_test"]
SHARDS = {"emulator_test": 2}
# Suites of pytest beside the end-to-end tests; of those one takes a virtual machine to itself.
VERBS = "tests/end_to_end/test_verbs.py"
PYTEST = {"verbs": VERBS, "models": "tests/models", "rules": "tests/rules"}
# The thread sanitizer of gcc 12 wants its addresses where they always were.
WRAPPERS = {"threads_test": ("setarch", os.uname().machine, "-R")}
# What strangers feed, and what computes. With --full only: the server, which takes as long to instrument as all else, and
# exchange and scheduler, whose tests with threads the thread sanitizer runs.
ASAN_TESTS = ["base_test", "importer_test", "engine_test", "text_test"]
ASAN_TESTS_FULL = ["dma_test", "scheduler_test", "server_test"]
# These run sanitized alone, where there is such a build, but with --full; end-to-end tests run what they test as it is shipped.
READERS = ["importer_test", "text_test"]
# What a null pointer and one beyond its bounds are used for ends a test without these, which take a third of the build.
ASAN_NOT = "-DARK_SANITIZE_NOT=null,alignment,pointer-overflow"
# With --full only: what searches and counts but touches no memory of a step, and what the thread sanitizer runs, too.
ASAN_FILTER = {"engine_test": "-ValidateModels.*:Validate.*:Search.*:CheapestPlan.*:MegatronsPlan.*:SamplerReference.*:StepCost.*:"
                              "*/Schedules.*:ProgramText.*:ArrivalSums.*:Machines.*:*/RankDeath.*"}
SANITIZER_OPTIONS = {
    "ARK_SANITIZED": "1",  # fewer random schedules
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
# UCX takes any interface, also one that test_links.py, beside these, is about to take away.
LOOPBACK = {"UCX_NET_DEVICES": "lo"}
ENVIRONMENT = {"threads_test": SANITIZER_OPTIONS | {"ARK_ISA": "avx2"},  # the kernels that are instrumented
               "dma_test": LOOPBACK, "engine_test": LOOPBACK}


@dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)  # names, with what happened

    def fail(self, what):
        self.failed += 1
        self.failures.append(what)


class Totals:
    """Prints each suite as it ends and sums up; safe to use from several threads."""

    def __init__(self):
        self.sum, self.lock = Result(), threading.Lock()
        self.doubtful = []  # (suite, failures, function that runs them again)

    def add(self, name, result, seconds, log=None, again=None):
        """`again`: runs what has failed once more and gives the Result; None where a failure is none of the machine's."""
        with self.lock:
            if result.failed and again:
                self.doubtful.append((name, result.failures, again))
            for count in ("passed", "failed", "skipped"):
                setattr(self.sum, count, getattr(self.sum, count) + getattr(result, count))
            verdict = "FAIL" if result.failed else "ok  "
            print(f"{verdict} {name}: {counts(result)} ({times(log, seconds)})", flush=True)
            for failure in result.failures:
                print(f"     failed: {failure}", flush=True)
            if result.failed and log and log.exists():
                lines = log.read_text(errors="replace").splitlines()[-TAIL:]
                print("\n".join(f"     | {line}" for line in lines), flush=True)

    def try_again(self):
        """Runs doubtful failures alone; to be called when all else has ended."""
        if sum(len(failures) for _, failures, _ in self.doubtful) > UNSTEADY:
            return
        for name, failures, again in self.doubtful:
            result = again()
            if result.failed or result.passed < len(failures):
                print(f"FAIL {name}, alone: {counts(result)}", flush=True)
                continue
            self.sum.failed -= len(failures)
            self.sum.passed += len(failures)
            print(f"ok   {name}, alone: {counts(result)}", flush=True)
            for failure in failures:
                print(f"     unsteady: {failure}", flush=True)


CPU_SECONDS = {}  # of the command that wrote a log, with its children


def times(log, seconds):
    return f"{seconds:.0f} s" + (f", {CPU_SECONDS[log]:.0f} s of CPU" if log in CPU_SECONDS else "")


def counts(result):
    return f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"


def execute(command, log, limit, **environment):
    """Runs a command in its own process group, with its output in `log`. Returns the exit status, or None if
    it ran out of time: then the whole group is killed."""
    with open(log, "wb") as output:
        process = subprocess.Popen([str(c) for c in command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=os.environ | environment, start_new_session=True)
        end = time.monotonic() + limit
        try:
            while time.monotonic() < end:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    CPU_SECONDS[log] = usage.ru_utime + usage.ru_stime
                    return process.returncode
                time.sleep(0.05)
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # also what the command left behind
            except ProcessLookupError:
                pass
            process.wait()


def describe(status, limit):
    if status is None:
        return f"ran longer than {limit} s"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def read_gtest(log):
    """Counts from GoogleTest's own lines, which survive a crash; the test that was running is named."""
    result, running = Result(), None
    for line in log.read_text(errors="replace").splitlines():
        match = re.search(r"\[ (RUN     |      OK| FAILED | SKIPPED) \] (\S+?)(?:,.*)?(?: \(\d+ ms\))?$", line)
        if not match:
            continue
        kind, name = match.group(1).strip(), match.group(2)
        if kind == "RUN":
            running = name
        elif name == running:  # the summary repeats names of tests that have ended
            running = None
            if kind == "OK":
                result.passed += 1
            elif kind == "SKIPPED":
                result.skipped += 1
            else:
                result.fail(name)
    return result, running


def gtest(binary, log, limit, environment, *options):
    """The Result, and whether all that failed did so by its own words."""
    command = [*WRAPPERS.get(binary.name, ()), binary, "--gtest_color=no", *options]
    status = execute(command, log, limit, **ENVIRONMENT.get(binary.name, {}), **environment)
    result, running = read_gtest(log)
    clean = status in (0, 1) and not running
    if not clean or (status == 1 and not result.failed):
        result.fail(f"{running or binary.name}: {describe(status, limit)}")
    elif not result.passed + result.failed + result.skipped:
        result.fail(f"{binary.name}: ran no test")
        clean = False
    return result, clean


def log_of(name):
    return LOGS / f"{name.replace('/', ' of ')}.log"


def run_gtest(totals, name, binary, limit, **environment):
    start = time.monotonic()
    result, clean = gtest(binary, log_of(name), limit, environment)

    def again():
        unsharded = {key: value for key, value in environment.items() if not key.startswith("GTEST_")}
        return gtest(binary, log_of(f"{name}, alone"), limit, unsharded, f"--gtest_filter={':'.join(result.failures)}")[0]

    totals.add(name, result, time.monotonic() - start, log_of(name), again if clean else None)


def pytest(name, limit, *arguments):
    """The Result, and whether all that failed did so by its own words. What failed is remembered for --last-failed."""
    log, report = log_of(name), LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [PYTHON, "-m", "pytest", "-q", "-rs", f"--junitxml={report}",
               "-W", "error::pytest.PytestUnhandledThreadExceptionWarning", *arguments]
    status, result = execute(command, log, limit), Result()
    if report.exists():
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                result.fail(f"{case.get('classname')}.{case.get('name')}")
            elif (skipped := case.find("skipped")) is not None and f"{ROOT}/build/" in skipped.get("message", ""):
                result.fail(f"{case.get('classname')}.{case.get('name')}: {skipped.get('message')}")  # it is built before
            elif skipped is not None:
                result.skipped += 1
            else:
                result.passed += 1
    if status is None or status < 0 or (status and not result.failed):
        result.fail(f"pytest: {describe(status, limit)}")
        return result, False
    return result, status in (0, 1)  # 2 and above: not all was run


def run_pytest(totals, name, paths, limit):
    start, memory = time.monotonic(), ["-o", f"cache_dir={LOGS / 'pytest-cache' / name}"]
    shutil.rmtree(LOGS / "pytest-cache" / name, ignore_errors=True)
    result, clean = pytest(name, limit, *memory, *paths)

    def again():
        return pytest(f"{name}, alone", limit, *memory, "--last-failed", "--last-failed-no-failures=none", *paths)[0]

    totals.add(name, result, time.monotonic() - start, log_of(name), again if clean else None)


def build(totals, name, *arguments, wrapper=(), limit=3000):
    """True if the build succeeded; a failed one counts as a failed test."""
    log, start = LOGS / f"build-{name}.log", time.monotonic()
    status = execute([*wrapper, "scripts/build.sh", *arguments], log, limit)
    seconds = time.monotonic() - start
    if status == 0:
        print(f"ok   build {name} ({times(log, seconds)})", flush=True)
        return True
    result = Result()
    result.fail(describe(status, limit))
    totals.add(f"build {name}", result, seconds, log)
    return False


def prepare(totals, quick):
    """What tests need beside the build: packages, the Python environment, the real model and the zoo of small ones."""
    rest = ["scripts/test.sh", "--install-rest", *(["--quick"] if quick else [])]
    steps = [("packages", rest, 1200), ("python", ["scripts/venv.sh"], 1200), ("smollm2", [PYTHON, "models/smollm2.py"], 1200)]
    steps += [("zoo", [PYTHON, "models/zoo.py", ZOO, *options], 900) for options in ([], ["--random", "40"])]
    for name, command, limit in steps:
        log, start = LOGS / f"prepare-{name}.log", time.monotonic()
        status = execute(command, log, limit)
        if status != 0:
            result = Result()
            result.fail(describe(status, limit))
            totals.add(f"prepare {name}", result, time.monotonic() - start, log)
    if obtain_nvrtc():
        os.environ["ARK_REQUIRE_NVRTC"] = "1"


def parallel(tasks):
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for future in [pool.submit(*task) for task in tasks]:
            future.result()


def test_binaries(quick):
    left_out = READERS if leaves_out_readers(quick) else []
    return [path for path in sorted((ROOT / "build" / "bin").glob("*_test")) if path.name not in left_out]


def gtest_tasks(totals, kind, binaries, limit, filters, **environment):
    tasks = []
    for binary in binaries:
        shards = SHARDS.get(binary.name, 1)
        for i in range(shards):
            name = f"{kind}{binary.name}" + (f" {i + 1}/{shards}" if shards > 1 else "")
            shard = {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(i)} if shards > 1 else {}
            if binary.name in filters:
                shard["GTEST_FILTER"] = filters[binary.name]
            rank = LONGEST.index(binary.name) if binary.name in LONGEST else len(LONGEST)
            tasks.append((rank, lambda n=name, b=binary, e=shard: run_gtest(totals, n, b, limit, **e, **environment)))
    return tasks


def in_order(tasks):
    return [(run,) for _, run in sorted(tasks, key=lambda task: task[0])]


def plain(totals, quick, when_served):
    """Builds what the suites need; returns whether that succeeded. Calls `when_served` as soon as the end-to-end tests can run."""
    getting_ready = threading.Thread(target=prepare, args=(totals, quick))
    getting_ready.start()
    # Warnings are errors where code is judged; elsewhere another option would mean another build than serve.sh's.
    strict = ["-DARK_WERROR=ON"] if os.environ.get("CI") else []
    served = build(totals, "release", *strict, "all", *END_TO_END_NEEDS)
    getting_ready.join()
    if served:
        when_served()
    built = served and build(totals, "tests", "tests", *([] if leaves_out_readers(quick) else ["tests_of_readers"]))
    if "ARK_FULL" in os.environ:
        build(totals, "of each file alone", "--dir", "build-alone", "-DARK_UNITE=OFF", "all", "tests", "tests_of_readers")
    return built


def leaves_out_readers(quick):
    return not quick and "ARK_FULL" not in os.environ


def fuzzers():
    """None without clang."""
    return [path.stem for path in sorted((ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))] if shutil.which("clang++") else []


def build_sanitized(totals):
    """Beside the suites of the release build, whose waits it fills."""
    # clang compiles for the address sanitizer in half of gcc's time, and has the fuzzer.
    clang = ["-DARK_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_C_COMPILER=clang"] if fuzzers() else []
    less = "-DARK_SANITIZE_NOT=" if "ARK_FULL" in os.environ else ASAN_NOT
    return build(totals, "asan", "--dir", "build-asan", "-DARK_SANITIZE=address,undefined", less, *clang, *ASAN_TESTS,
                 *fuzzers(), wrapper=("nice",))


def sanitized_tasks(totals, limit, is_built):
    """Suites and fuzzers, the longest first. `is_built` waits for the build, whose failure is told by itself."""
    filters = {} if "ARK_FULL" in os.environ else ASAN_FILTER
    binaries = [ROOT / "build-asan" / "bin" / name for name in sorted(ASAN_TESTS)]
    suites = [run for (run,) in in_order(gtest_tasks(totals, "asan ", binaries, limit, filters, **SANITIZER_OPTIONS))]
    suites += [lambda name=name: run_fuzzer(totals, name) for name in fuzzers()]
    if not fuzzers():
        suites.append(lambda: totals.add("fuzz (no clang++)", Result(skipped=1), 0))
    return [(lambda run=run: is_built() and run(),) for run in suites]


def fuzz_length(name):
    """What is longer takes longer, but goes no other ways."""
    options = configparser.ConfigParser()
    options.read(ROOT / "tests" / "fuzz" / f"{name}.options")
    return options.getint("libfuzzer", "max_len", fallback=FUZZ_LENGTH)


def run_fuzzer(totals, name):
    """One fuzzer from the small fixtures and its own corpus; what it finds stays in build-asan/NAME-crash-*."""
    log, start, result = LOGS / f"{name}.log", time.monotonic(), Result()
    corpus, seeds = ROOT / "build-asan" / "corpus" / name, ROOT / "tests" / "fuzz" / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    seconds = FUZZ_SECONDS_FULL if "ARK_FULL" in os.environ else FUZZ_SECONDS
    command = [ROOT / "build-asan" / "bin" / name, f"-max_total_time={seconds}", "-timeout=60",
               "-rss_limit_mb=1024", f"-max_len={fuzz_length(name)}", "-print_final_stats=1",
               f"-artifact_prefix={ROOT / 'build-asan' / name}-", corpus]
    if "ARK_FULL" not in os.environ:
        command.append("-seed=1")  # much the same each time: what is new is looked for with --full
    models = sorted(ZOO.glob("llama")) if name == "parse_fuzz" else []
    command += [folder for folder in (seeds, *models) if folder.is_dir()]
    limit = seconds + 600
    status = execute(command, log, limit, **SANITIZER_OPTIONS)
    if status == 0:
        result.passed = 1
    else:
        result.fail(f"{name}: {describe(status, limit)}")
    totals.add(name, result, time.monotonic() - start, log)


def obtain(name, missing):
    """What scripts/requirements-NAME.txt lists; `missing`: what goes without it."""
    try:
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                        "--require-hashes", "-r", ROOT / "scripts" / f"requirements-{name}.txt"], timeout=300, check=True)
        return True
    except (subprocess.SubprocessError, OSError):
        print(f"{name} cannot be had: {missing}", file=sys.stderr)
        return False


def obtain_nvrtc():
    """The CUDA compiler without a toolkit or a GPU, 90 MB, and its disassembler, 5 MB, which not every toolkit has: what
    it makes of kernels is tested wherever they can be had."""
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        obtain("nvdisasm", "what the instructions of compiled kernels are is not tested")
    return (any(Path("/usr/local/cuda/lib64").glob("libnvrtc.so*")) or
            obtain("nvrtc", "the tests of compiled kernels will be skipped"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no sanitizer and fuzzer builds")
    parser.add_argument("--full", action="store_true", help="longer random tests (sets ARK_FULL=1)")
    args = parser.parse_args()
    if args.full:
        os.environ["ARK_FULL"] = "1"
        ASAN_TESTS.extend(ASAN_TESTS_FULL)
    os.environ["ARK_ZOO"] = str(ZOO)
    os.environ["VIRTUAL_ENV"] = str(PYTHON.parents[1])
    LOGS.mkdir(parents=True, exist_ok=True)
    totals, limit = Totals(), 3600 if args.full else 1800  # seconds a suite may take
    # The end-to-end tests wait more than they compute: all else runs beside them.
    beside = threading.Thread(target=run_pytest, args=(totals, "end_to_end", ["tests/end_to_end", f"--ignore={VERBS}"], 2 * limit))
    built = plain(totals, args.quick, beside.start)
    tasks = gtest_tasks(totals, "", test_binaries(args.quick), limit, {}) if built else []
    tasks += [(LONGEST.index(name) if name in LONGEST else len(LONGEST),
               lambda name=name, path=path: run_pytest(totals, name, [path], 2 * limit)) for name, path in PYTEST.items()]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # Sanitized suites come last, when they are built: none is waited for while there is something else to run.
        sanitized = [] if args.quick else sanitized_tasks(totals, limit, pool.submit(build_sanitized, totals).result)
        parallel(in_order(tasks) + sanitized)
    if beside.ident:
        beside.join()
    totals.try_again()
    print(counts(totals.sum))
    return 1 if totals.sum.failed else 0


if __name__ == "__main__":
    sys.exit(main())
