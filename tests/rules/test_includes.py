"""Who may include whom: the table of folders, held by reading every #include."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_INCLUDE = {
    "base": {"base"},
    "importer": {"importer", "base"},
    "dma": {"dma", "base"},
    "engine": {"engine", "base", "dma"},
    "server": {"server", "base", "engine"},
}
# The rooms of the server. Files directly in server/ are its outside: named one by one where a room may see them.
SERVER_ROOMS = {
    "http": set(),
    "text": {"json"},
    "schedule": set(),
    "trace": {"schedule", "json", "version.h"},
    "session": {"schedule", "text", "trace", "model.h"},
    "api": {"http", "session", "schedule", "text", "trace", "json", "version.h"},
    "supervise": set(),
    "peers": {"schedule"},
    "load": {"schedule", "supervise", "peers", "text", "model.h", "config.h", "command_line.h", "version.h", "tools/main_guard.h"},
}
SERVER_ROOMS["tools"] = {"schedule", "session", "text", "load", "json", "model.h", "config.h", "command_line.h",
                         "version.h"}
# The engine's rooms, "" being the files beside them. Each may include itself and what stands here; the validator does
# not see what it judges, and executors see programs only.
ENGINE_ROOMS = {
    "program": set(),
    "partition": {"program"},
    "weights": {"program"},
    "lower": {"program", "partition", "weights"},
    "ops": {"program", "partition", "lower"},
    "validate": {"program", "partition"},
    "run": {"program"},
    "cpu": {"program", "run"},
    "cuda": {"program", "run"},
    "": {"program", "partition", "lower", "weights", "validate", "run", "cuda"},
    "plain": {"", "cpu", "run"},
}
# What puts the parts together: loading, main functions and tools. These also see the importer and the transports.
COMPOSITION_ROOTS = re.compile(r"server/([^/]+|load/.*|peers/.*|supervise/.*|tools/.*)$")
# Outside libraries, by the folders that may use them. What is named nowhere is the C++ library or the system's.
LIBRARIES = {
    "google/protobuf/": {"importer"},
    "httplib.h": {"server"},
    "openssl/": {"server"},
    "mpi.h": {"dma"},
    "nlohmann/": {"server"},
    "CLI/": {"server"},
    "pcre2": {"server"},
    "utf8proc": {"server"},
    "infiniband/": {"dma"},
    "gtest/": set(),
    "gmock/": set(),
}
LONG = 400  # lines; few files are over it
SCREEN = 60  # lines of a folder's README
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def sources(*folders):
    return sorted(p for f in folders for e in ("*.h", "*.cc") for p in (ROOT / f).rglob(e))


def includes(path, quote='"'):
    return [name for kind, name in INCLUDE.findall(path.read_text()) if kind == quote]


def named(path):
    return path.relative_to(ROOT).as_posix()


def reachable(path):
    """All of our headers that a file sees, itself excluded."""
    seen, todo = set(), [path]
    while todo:
        for name in includes(todo.pop()):
            header = ROOT / name
            if header not in seen and header.is_file():
                seen.add(header)
                todo.append(header)
    return {named(header) for header in seen}


def allowed(path):
    folders = MAY_INCLUDE[named(path).split("/")[0]]
    return folders | {"importer", "dma"} if COMPOSITION_ROOTS.match(named(path)) else folders


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_folders_include_only_what_they_may(folder):
    wrong = [f"{named(path)} includes {name}" for path in sources(folder) for name in includes(path)
             if name.split("/")[0] not in allowed(path)]
    assert not wrong


@pytest.mark.parametrize("room", SERVER_ROOMS)
def test_rooms_of_the_server_include_only_what_they_may(room):
    may = SERVER_ROOMS[room] | {room}

    def is_allowed(name):  # "server/http/head.h" by its room, "server/json_fwd.h" by its stem's first word
        place = name.removeprefix("server/")
        return place in may or place.split("/")[0] in may or place.removesuffix(".h").removesuffix("_fwd") in may

    wrong = [f"{named(path)} includes {name}" for path in sources(f"server/{room}") for name in includes(path)
             if name.startswith("server/") and not is_allowed(name)]
    assert sources(f"server/{room}") and not wrong


def test_the_http_library_is_included_in_one_file():
    assert [named(path) for path in sources("server") if "httplib.h" in includes(path, "<")] == ["server/tools/bench/library.h"]


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_our_headers_are_named_from_the_root(folder):
    wrong = [f"{named(path)} includes {name}" for path in sources(folder) for name in includes(path)
             if not (ROOT / name).is_file()]
    assert not wrong


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_outside_libraries_stay_in_their_folders(folder):
    wrong = [f"{named(path)} includes {name}" for path in sources(folder)
             for name in includes(path, "<") + includes(path)
             for prefix, users in LIBRARIES.items() if name.startswith(prefix) and folder not in users]
    assert not wrong


def test_other_folders_see_only_the_importers_public_headers():
    private = re.compile(r"importer/\w+/")
    wrong = [f"{named(path)} includes {name}" for path in sources("engine", "server") for name in includes(path)
             if private.match(name)]
    assert not wrong


def engine_room(name):
    """The room of a file named from the root; None outside of the engine."""
    parts = name.split("/")
    return None if parts[0] != "engine" else parts[1] if len(parts) > 2 else ""


def test_rooms_of_the_engine_include_only_what_they_may():
    wrong = [f"{named(path)} includes {name}" for path in sources("engine") for name in includes(path)
             for own, other in [(engine_room(named(path)), engine_room(name))]
             if other is not None and other != own and other not in ENGINE_ROOMS[own]]
    assert not wrong


def test_rooms_of_the_engine_are_all_named_and_form_no_circle():
    assert {engine_room(named(path)) for path in sources("engine")} == set(ENGINE_ROOMS)
    TopologicalSorter(ENGINE_ROOMS).prepare()  # raises CycleError


def test_executors_never_see_the_graph():
    wrong = [named(path) for path in sources("engine/cpu", "engine/cuda") if "base/ir/graph.h" in reachable(path)]
    assert not wrong


def test_text_is_a_library_of_its_own():
    """Strangers feed it: sanitizers and fuzzers build ark_text without the rest of the server."""
    own = ("server/text/", "base/error.h", "base/files.h", "base/per_thread.h", "base/percent.h", "server/json")
    wrong = [f"{named(path)} includes {name}" for path in sources("server/text") for name in includes(path)
             if not name.startswith(own)]
    assert not wrong
    libraries = re.compile(r"pcre2\.h|utf8proc\.h|[a-z_]+$")  # the last: the C++ library
    wrong = [f"{named(path)} includes <{name}>" for path in sources("server/text") for name in includes(path, "<")
             if not libraries.match(name)]
    assert not wrong


def test_headers_do_not_include_each_other_in_circles():
    headers = [path for path in sources(*MAY_INCLUDE) if path.suffix == ".h"]
    assert not [named(path) for path in headers if named(path) in reachable(path)]


def test_headers_have_a_guard():
    headers = [path for path in sources(*MAY_INCLUDE, "tests") if path.suffix == ".h"]
    assert not [named(path) for path in headers if "#pragma once" not in path.read_text()]


def top_folders():
    return sorted(p.name for p in ROOT.iterdir() if p.is_dir() and any(p.iterdir())
                  and not p.name.startswith((".", "build")))


@pytest.mark.parametrize("folder", top_folders())
def test_every_folder_has_a_readme_of_one_screen(folder):
    readme = ROOT / folder / "README.md"
    assert readme.is_file()
    assert len(readme.read_text().splitlines()) <= SCREEN


def test_long_files_say_why():
    long = [p for p in sources(*MAY_INCLUDE) if len(p.read_text().splitlines()) > LONG]
    assert [named(p) for p in long if "Longer than most: " not in "".join(p.read_text().splitlines()[:2])] == []
    assert len(long) <= 8
