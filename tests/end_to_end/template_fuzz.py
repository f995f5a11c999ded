"""Random templates over a fixed set of variables, of what server/text/jinja/README.md lists."""

VARIABLES = {
    "n": 7, "z": 0, "m": -3, "f": 2.5, "g": 1e20, "h": 1e-7, "t": True, "u": False, "none_value": None, "s": "Hello, World",
    "e": "", "w": "  two words\n", "q": "it's \"ünï\" ß 世界 👍\t", "num": "42.23", "l": [3, 1, 2], "el": [],
    "words": ["b", "A", "c", "a"], "mixed": [1, "x", None, 2.0, True, [1], {"k": "v"}],
    "d": {"a": 1, "b": {"c": [1, 2]}, "items": 5, "é": "x"}, "ed": {},
    "ms": [{"role": "user", "content": "hi", "i": 2}, {"role": "bot", "content": None, "i": 1}, {"role": "user", "i": 3}],
}
NAMES = [*VARIABLES, "missing"]
ATTRIBUTES = ["a", "b", "c", "role", "content", "i", "items", "nope", "k"]
STRING_METHODS = [
    "strip()", "lstrip()", "rstrip('d\\n ')", "split()", "split(' ')", "split('l', 1)", "rsplit('o', 1)", "upper()", "lower()",
    "title()", "capitalize()", "startswith('H')", "endswith(('d', '\\n'))", "replace('l', 'L')", "replace('l', '', 1)",
    "find('o')", "rfind('o')", "count('l')", "join(words)", "splitlines()", "isdigit()", "isalpha()", "removeprefix('He')",
    "isspace()", "isalnum()", "removesuffix('d')", "format(1, x=2)",
]
DICT_METHODS = ["items()", "keys()", "values()", "get('a')", "get('zz', 3)", "items()|list"]
LIST_METHODS = ["index(1)"]
FILTERS = [
    "upper", "lower", "capitalize", "title", "trim", "length", "list", "string", "int", "float", "abs", "first", "last", "join", "join(', ')", "reverse|list", "reverse", "sort",
    "sort(reverse=true)", "unique|list", "min", "max", "sum", "default('D')", "default('D', true)", "d(1)", "tojson",
    "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "map('upper')|list", "map('string')|join('-')",
    "map(attribute='i')|list", "map(attribute='content', default='?')|list", "select|list", "reject|list",
    "select('string')|list", "reject('none')|list", "selectattr('content')|list", "selectattr('role', 'equalto', 'user')|list",
    "rejectattr('i', 'gt', 1)|list", "selectattr('content', 'defined')|list", "replace('l', 'L')", "indent", "indent(2, true)",
    "items|list", "dictsort", "dictsort(by='value')", "escape", "safe", "count", "sort(attribute='i')",
    "sum(attribute='i')", "max(attribute='i')", "int(9)", "float(1.5)", "join('/', attribute='role')",
    "tojson(separators=(',', ':'))", "int(default=-1)", "unique(attribute='role')|list",
]
TESTS = [
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "integer", "float", "true",
    "false", "odd", "even", "divisibleby 3", "divisibleby(2)", "eq 1", "equalto('x')", "ne 1", "gt 1", "lt(5)", "ge 2", "le 7",
    "in [1, 7, 'b']", "in(words)", "callable", "sameas none", "not none", "not defined",
]


def atom(rng):
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(NAMES)
    if kind < 0.75:
        return rng.choice(["0", "1", "2", "-1", "3.0", "0.1", "100", "1.5e3", "true", "false", "none", "True", "None"])
    if kind < 0.92:
        return rng.choice(["'x'", "'a b'", '"q\'s"', "''", "'é世'", "'a|b'", "'12'", "'l'", "'\\n'"])
    return rng.choice(["[]", "{}", "()", "range(3)|list", "range(1, 8, 3)|list", "dict(a=1)", "(1,)", "'a' 'b'", "namespace(a=1).a"])


def expression(rng, depth):
    if depth <= 0:
        return atom(rng)
    one = lambda: expression(rng, depth - 1 - rng.randrange(2))
    kind = rng.randrange(23)
    if kind < 2:
        return atom(rng)
    if kind < 4:
        return f"{one()} {rng.choice(['+', '-', '*', '/', '//', '~'])} {one()}"
    if kind == 4:
        return f"{one()} {rng.choice(['==', '!=', '<', '<=', '>', '>='])} {one()}"
    if kind == 5:
        return f"{one()} {rng.choice(['in', 'not in', 'and', 'or'])} {one()}"
    if kind == 6:
        return f"{rng.choice(['not ', '-', 'not not '])}{one()}"
    if kind == 7:
        return f"({one()} if {one()} else {one()})" if rng.random() < 0.7 else f"({one()} if {one()})"
    if kind == 8:
        return f"[{', '.join(one() for _ in range(rng.randrange(4)))}]"
    if kind == 9:
        return "{" + ", ".join(f"{rng.choice(['1', chr(39) + 'k' + chr(39), 'n', 's'])}: {one()}" for _ in range(rng.randrange(3))) + "}"
    if kind == 10:
        return f"({one()}, {one()})"
    if kind == 11:
        return f"{rng.choice(['d', 'ms[0]', 'ms', 'd.b', one_paren(rng, depth)])}.{rng.choice(ATTRIBUTES)}"
    if kind == 12:
        return f"{rng.choice(NAMES)}[{one()}]"
    if kind == 13:
        bound = lambda: rng.choice(["", "", "0", "1", "-1", "2", "-2", "5", "n", "none"])
        step = rng.choice(["", "", ":", ":2", ":-1", ":1"])
        return f"{rng.choice(['s', 'q', 'l', 'words', 'mixed', 'e', 'el', 'ms'])}[{bound()}:{bound()}{step}]"
    if kind == 14:
        return f"{rng.choice(['s', 'e', 'w', 'q', 'num', one_paren(rng, depth)])}.{rng.choice(STRING_METHODS)}"
    if kind == 15:
        return f"{rng.choice(['d', 'ed', 'ms[1]'])}.{rng.choice(DICT_METHODS)}"
    if kind == 16:
        return f"{rng.choice(['l', 'words', 'mixed'])}.{rng.choice(LIST_METHODS)}"
    if kind < 20:
        return f"{rng.choice([one, lambda: one_paren(rng, depth)])()}|{rng.choice(FILTERS)}"
    if kind == 20:  # of numbers only: formatting by % is not there
        return f"{one_paren(rng, depth)}|int % {rng.choice(['2', '3', '-2', '2.5'])}"
    return f"{one_paren(rng, depth)} is {rng.choice(TESTS)}"


def one_paren(rng, depth):
    return f"({expression(rng, depth - 1)})"


def statement(rng, depth):
    if depth <= 0:
        return rng.choice(["text\n", " x ", "\n  ", "{{ " + expression(rng, 1) + " }}"])
    inner = lambda: "".join(statement(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
    value = lambda: expression(rng, rng.randrange(3))
    begin, end = rng.choice(["{%", "{%-", "{%", "{%+"]), rng.choice(["%}", "-%}", "%}"])
    tag = lambda text: f"{begin} {text} {end}"
    kind = rng.randrange(9)
    if kind == 0:
        return tag(f"if {value()}") + inner() + tag(f"elif {value()}") + inner() + tag("else") + inner() + tag("endif")
    if kind == 1:
        body = rng.choice(["", "{{ loop.index }}{{ loop.last }}", "{{ loop.revindex0 }}{{ loop.length }}", "{{ x }}",
                           "{{ loop.cycle('a', 'b') }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{% if x %}{% continue %}{% endif %}",
                           "{% if loop.index > 1 %}{% break %}{% endif %}", "{% set n = 9 %}{{ n }}"])
        test = rng.choice(["", "", " if x", " if x is not none"])
        return tag(f"for x in {value()}{test}") + body + inner() + tag("else") + "none" + tag("endfor")
    if kind == 2:
        return tag(f"for k, v in {rng.choice(['d.items()', 'd|items', 'd|dictsort', '[(1, 2)]'])}") + "{{ k }}={{ v }};" + tag("endfor")
    if kind == 3:
        return tag(f"set {rng.choice(['y', 'a, b'])} = {value()}") + "{{ y }}{{ a }}{{ n }}"
    if kind == 4:
        return tag("set y") + inner() + tag("endset") + "[{{ y }}]"
    if kind == 5:
        return tag(f"macro f(p, r={value()})") + "<{{ p }}:{{ r }}>" + inner() + tag("endmacro") + "{{ f(1) }}{{ f(p=2, r=3) }}"
    if kind == 6:
        return tag("set ns = namespace(c=0)") + "{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}"
    if kind == 7:
        return tag(f"with y = {value()}") + "{{ y }}" + inner() + tag("endwith") + "{{ y }}"
    return "{{ " + expression(rng, 3) + " }}"


def random_template(rng):
    if rng.random() < 0.6:
        return "{{ " + expression(rng, rng.randrange(1, 5)) + " }}"
    return "".join(statement(rng, 2) for _ in range(rng.randrange(1, 4)))
