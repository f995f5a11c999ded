"""Formatting, includes of the standard library that nothing needs, and READMEs: what a reader would stumble over."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["base", "importer", "dma", "engine", "server", "tests"]
# What of a standard header's names tells that it is used; headers that are not listed are not judged.
STANDARD = {
    "algorithm": r"std::(ranges::|sort|stable_sort|min|max|clamp|find|any_of|all_of|none_of|copy|fill|equal|count|remove|"
                 r"reverse|transform|lower_bound|upper_bound|minmax|unique|is_sorted|nth_element|partial_sort|rotate|generate|"
                 r"for_each|search|mismatch|partition|shuffle|binary_search|lexicographical|next_permutation|adjacent_find|set_|"
                 r"includes|merge|replace|push_heap|pop_heap|make_heap|is_permutation|stable_partition|swap_ranges)",
    "array": r"std::(to_)?array",
    "atomic": r"std::(atomic|memory_order)",
    "bit": r"std::(bit_|popcount|has_single_bit|countr|countl|rotl|rotr|endian)",
    "charconv": r"(to|from)_chars",
    "chrono": r"chrono|\d(ms|s|us|ns)\b",
    "cmath": r"\b(exp|expm1|log|log1p|log2|log10|sqrt|pow|abs|fabs|floor|ceil|round|rint|nearbyint|fmod|isnan|isinf|isfinite|"
             r"signbit|copysign|ldexp|frexp|sin|cos|tan|tanh|erf|lround|llround|fma|trunc|hypot|a?sinh?|a?cosh?|a?tanh?|"
             r"remainder|nextafter|ilogb|scalbn|INFINITY|NAN|M_PI)f?\b",
    "condition_variable": r"condition_variable",
    "cstring": r"\b(mem(cpy|set|cmp|move|chr|mem)|str(len|n?cmp|error|r?chr|str|signal|dup))\b",
    "deque": r"std::deque",
    "filesystem": r"filesystem",
    "fstream": r"fstream",
    "functional": r"std::(function|hash|less|greater|plus|c?ref\b|invoke|reference_wrapper|equal_to|bind|not_fn|multiplies|minus)",
    "future": r"std::(future|promise|async|packaged)",
    "initializer_list": r"initializer_list",
    "limits": r"numeric_limits",
    "map": r"std::(multi)?map",
    "memory": r"std::(unique_ptr|shared_ptr|make_unique|make_shared|weak_ptr|addressof|allocator|enable_shared|static_pointer|"
              r"dynamic_pointer|construct_at|destroy|align\b|default_delete)",
    "mutex": r"std::(mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once|recursive_mutex)",
    "numeric": r"std::(iota|accumulate|reduce|inner_product|partial_sum|gcd|lcm|midpoint|exclusive_scan|inclusive_scan)",
    "optional": r"std::(optional|nullopt|make_optional)",
    "queue": r"std::(priority_)?queue",
    "random": r"std::(mt19937|\w+_distribution|random_device|minstd|seed_seq)",
    "set": r"std::(multi)?set\b",
    "span": r"std::(span|as_bytes|as_writable|dynamic_extent)",
    "sstream": r"(string|ostring|istring)stream",
    "stdexcept": r"std::(runtime_error|logic_error|out_of_range|invalid_argument|length_error|domain_error|overflow_error)",
    "string": r'std::(string|to_string|sto\w+|getline|char_traits|u32string|basic_string)|"s\b',
    "string_view": r"string_view|\"sv\b",
    "thread": r"std::(thread|this_thread|jthread)",
    "tuple": r"std::(tuple|tie|make_tuple|apply|get<|forward_as)",
    "unordered_map": r"unordered_(multi)?map",
    "unordered_set": r"unordered_(multi)?set",
    "variant": r"std::(variant|visit|get_if|get<|holds_alternative|monostate|in_place|bad_variant)",
    "vector": r"std::vector",
}


def sources(*folders):
    return sorted(p for f in folders for e in ("*.h", "*.cc") for p in (ROOT / f).rglob(e))


def named(path):
    return path.relative_to(ROOT).as_posix()


def needless(path):
    text = path.read_text()
    code = re.sub(r"//.*|^#include.*$", "", text, flags=re.M)
    return [header for header in re.findall(r"^#include <(\w+)>", text, re.M)
            if header in STANDARD and not re.search(STANDARD[header], code)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_standard_header_is_included_for_nothing(folder):
    assert not [f"{named(path)} includes <{header}>" for path in sources(folder) for header in needless(path)]


@pytest.mark.skipif(not shutil.which("clang-format"), reason="clang-format is not installed")
@pytest.mark.parametrize("folder", FOLDERS)
def test_code_is_formatted(folder):
    run = subprocess.run(["clang-format", "--dry-run", "--Werror", *sources(folder)], capture_output=True, text=True)
    wrong = sorted(set(re.findall(rf"^{re.escape(str(ROOT))}/(\S+?):\d+", run.stderr, re.M)))
    assert run.returncode == 0, f"run clang-format -i {' '.join(wrong)}"


def test_comments_are_wrapped_by_hand_within_120_columns():
    assert not [f"{named(path)}:{i}" for path in sources(*FOLDERS)
                for i, line in enumerate(path.read_text().splitlines(), 1)
                if len(line) > 120 and line.lstrip().startswith("//")]


def test_no_comment_tears_its_declaration():
    """`int count =` above `0;  // ...` is what the formatter makes of a comment that is too long: it belongs above."""
    torn = re.compile(r"^(?!\s*(?://|#))[^/\n]*(?:(?:=|\()\n\s[^/\n]*[;,{]|[\w>*&]\n\s+\w+(?:\{.*\})?;) +// ", re.M)
    assert not [f"{named(path)}: {match[0]!r}" for path in sources(*FOLDERS) for match in torn.finditer(path.read_text())]


def code_folders():
    return sorted({path.parent for path in sources(*FOLDERS[:-1])})


def test_every_folder_of_code_says_what_it_holds_and_where_its_tests_are():
    without = [named(folder) for folder in code_folders() if not (folder / "README.md").is_file()]
    silent = [named(folder) for folder in code_folders() if (folder / "README.md").is_file()
              and not re.search(r"^(Tests?:|\| tests? )", (folder / "README.md").read_text(), re.M | re.I)]
    assert not without and not silent


def variables_of(path):
    """Names of environment variables that a file asks for: as they are read, and ours wherever they are named."""
    text = path.read_text()
    if path.suffix in (".h", ".cc"):
        return set(re.findall(r'getenv\("(\w+)"', text) + re.findall(r'"(ARK_[A-Z0-9_]+)"', text))
    if path.suffix == ".py":
        return set(re.findall(r'environ(?:\.get\(|\[)"([A-Z0-9_]+)"', text) + re.findall(r'"([A-Z0-9_]+)" (?:not )?in os\.environ', text))
    return set(re.findall(r"\$\{?(ARK_\w+|CI\b)", text)) - set(re.findall(r"^\s*(?:export |local )*(ARK_\w+)=", text, re.M))


def test_every_environment_variable_is_in_the_table():
    table = (ROOT / "docs" / "debugging.md").read_text().split("## Environment")[1]
    known = {name for row in re.findall(r"^\| (.*?) \|", table, re.M) for name in re.findall(r"`(\w+\*?)`", row)}
    code = [p for f in (*FOLDERS, "scripts", "models") for p in (ROOT / f).rglob("*") if p.suffix in (".h", ".cc", ".py", ".sh")]
    found = {name: named(path) for path in code for name in variables_of(path)}
    options = tuple(name.removesuffix("*") for name in known if name.endswith("*"))
    assert len(found) > 40 and not {name: path for name, path in found.items() if name not in known and not name.startswith(options)}


def test_python_packages_are_named_by_their_content():
    files = sorted((ROOT / "scripts").glob("requirements*.txt"))
    asked = [(file.name, package) for file in files for package in re.split(r"(?m)^(?=\w)", file.read_text()) if "==" in package.split("\n")[0]]
    assert len(asked) > 90 and [each for each in asked if " --hash=sha256:" not in each[1]] == []


def test_folders_are_read_by_what_survives_a_lack_of_memory():
    files = [p for f in FOLDERS if f != "tests" for p in (ROOT / f).rglob("*") if p.suffix in (".h", ".cc")]
    iterates = re.compile(r"(?<!recursive_)directory_iterator\(")  # the recursive one: of a tool, over test data
    assert len(files) > 500 and [named(p) for p in files if iterates.search(p.read_text())] == []


def test_thread_local_objects_need_no_destructor():
    """glibc ends the process where it has no memory to note one: base/per_thread.h."""
    files = [p for f in FOLDERS if f != "tests" for p in (ROOT / f).rglob("*") if p.suffix in (".h", ".cc")]
    found = [line.strip() for p in files for line in re.findall(r"^.*\bthread_local\b.*;", p.read_text(), re.M)]
    assert found and [line for line in found if not re.match(r"thread_local (int \w+|[^=]*\*\w*) ?= ", line.replace("* ", "*"))] == []
