"""Prints an executable's manual page, made of its own --help: usage, options, commands and what it says about exit codes.

usage: man_page.py EXECUTABLE [SUBCOMMAND...]"""

import re
import subprocess
import sys
from pathlib import Path

EXIT_CODES = [("0", "success"), ("64", "usage: an option or argument is wrong"), ("65", "the model is bad or not supported"),
              ("66", "a file is missing"), ("69", "a device, memory or rank is unavailable"), ("70", "a bug of ours"),
              ("71", "the operating system refused")]


def escaped(text):
    """Text as roff takes it: no control lines, plain hyphens and backslashes."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def sections(text):
    """CLI11's help: what stands before the first section, then {title: lines}."""
    head, parts, title = [], {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][\w \[\]]*:", line):
            title = line[:-1]
            parts[title] = []
        else:
            (parts[title] if title else head).append(line)
    return head, parts


def entries(lines):
    """(term, description) of lines like `  -t,--tp INT  ranks`; deeper lines continue the one before."""
    result = []
    for line in lines:
        if not line.strip():
            continue
        if re.match(r" {2}\S", line):
            term, _, about = line.strip().partition("  ")
            result.append([term, about.strip()])
        elif result:
            result[-1][1] = (result[-1][1] + " " + line.strip()).strip()
    return result


def help_of(command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def options_of(command):
    """The sections of one command's help as roff, its subcommands' after it."""
    out, (_, parts) = [], sections(help_of(command))
    for title, lines in parts.items():
        out.append(f'.SH "{escaped(" ".join([*command[1:], title]).upper())}"')
        for term, about in entries(lines):
            out += [".TP", f"\\fB{escaped(term)}\\fR", escaped(about) or "\\&"]
    for name, _ in entries(parts.get("Subcommands", [])):
        out += options_of([*command, name.split()[0]])
    return out


def main():
    executable = Path(sys.argv[1])
    name, command = executable.name, [str(executable)]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    head, _ = sections(help_of(command))
    about = [line.strip() for line in head if line.strip() and not line.startswith("Usage:")]
    usage = next((line for line in head if line.startswith("Usage:")), f"Usage: {name}")
    out = [f'.TH {name.upper()} 1 "" "{version}"', ".SH NAME",
           f"{escaped(name)} \\- {escaped(about[0] if about else name)}",
           ".SH SYNOPSIS", f"\\fB{escaped(name)}\\fR {escaped(usage.split(maxsplit=2)[2] if len(usage.split()) > 2 else '')}"]
    if about[1:]:
        out += [".SH DESCRIPTION", *[escaped(line) for line in about[1:]]]
    out += options_of(command)
    out.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        out += [".TP", f"\\fB{code}\\fR", meaning]
    print("\n".join(out))


if __name__ == "__main__":
    main()
