"""Random JSON Schemas of the keywords that ark constrains text to, and instances of them, right and wrong."""

import copy
import json

NAMES = ["a", "b", "name", "nam", "é", 'q"\\', "x y"]
PATTERNS = ["^[a-z]+$", "a|bc", "^x", "y$", "^(ab|c)*$", "[^a-c]", "^\\d{2,3}$", '^"?\\\\+$', "^.{2}$", "é+", "^\\w+@\\w+\\.(com|org)$"]
TEXTS = ["", "a", "bc", "abc", "xay", "12", "1234", "ab c", "é", "éé", '"\\', "a\nb", "😀", "\u0001", "abcc", "me@x.org", "Z"]
FORMATS = {"date": ["2024-02-29", "2023-02-29", "2024-13-01", "1999-12-31"], "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123e"],
           "ipv4": ["10.0.0.255", "10.0.0.256", "1.2.3"], "ipv6": ["::1", "1:2:3:4:5:6:7:8", "1::2::3", "fe80::"]}
NUMBERS = [0, 1, -1, 7, 10, 12, 99, 100, 101, -5, -50, 255, 12345, 0.5, -0.5, 1.25, 3.75, 10.5, 99.99, -12.25, 0.001]


def bounds(rng, numbers):
    out = {}
    for low, high in [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")]:
        if rng.random() < 0.4:
            out[low] = rng.choice(numbers)
        if rng.random() < 0.4:
            out[high] = rng.choice(numbers)
    return out


def random_object(rng, depth, defs):
    names = rng.sample(NAMES, rng.randint(0, 4))
    out = {"type": "object", "properties": {name: random_schema(rng, depth - 1, defs) for name in names}}
    if names and rng.random() < 0.7:
        out["required"] = rng.sample(names, rng.randint(0, len(names))) + rng.choice([[], [], ["other"]])
    more = rng.random()
    if more < 0.5:
        out["additionalProperties"] = False
    elif more < 0.7:
        out["additionalProperties"] = random_schema(rng, depth - 1, defs)
    else:
        out["additionalProperties"] = True  # ark writes no others where nothing is said
    if rng.random() < 0.15:
        out["maxProperties"] = rng.randint(0, 4)
    if rng.random() < 0.15:
        out["minProperties"] = rng.randint(0, 2)
    if names and rng.random() < 0.2:
        out["anyOf"] = [{"required": [name]} for name in rng.sample(names, min(2, len(names)))]
    if rng.random() < 0.2:
        out["allOf"] = [{"properties": {"z": random_schema(rng, depth - 1, defs)}, "required": rng.choice([[], ["z"]])}]
    return out


def random_array(rng, depth, defs):
    out = {"type": "array"}
    if rng.random() < 0.7:
        out["items"] = rng.choice([random_schema(rng, depth - 1, defs), random_schema(rng, depth - 1, defs), False])
    if rng.random() < 0.4:
        out["prefixItems"] = [random_schema(rng, depth - 1, defs) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        out["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.4:
        out["maxItems"] = rng.randint(0, 4)
    return out


def random_string(rng):
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind < 0.4:
        return {"type": "string", "format": rng.choice(list(FORMATS))}
    out = {"type": "string"}
    if kind < 0.7:
        out.update(rng.choice([{"minLength": 1}, {"maxLength": 2}, {"minLength": 2, "maxLength": 3}]))
    return out


def random_schema(rng, depth=3, defs=()):
    kind = rng.randint(0, 11 if depth > 0 else 6)
    if kind <= 1:
        return random_string(rng)
    if kind == 2:
        out = {"type": "integer", **bounds(rng, NUMBERS + [2**53, -(2**53)])}
        return {**out, "multipleOf": rng.choice([2, 3, 7, 10, 25])} if rng.random() < 0.3 else out
    if kind == 3:
        return {"type": "number", **bounds(rng, NUMBERS)}
    if kind == 4:
        return {"type": rng.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}
    if kind == 5:
        return {"enum": rng.sample(["a", "b", 1, 2.5, None, True, [1, "x"], {"k": 1}, "é\n"], rng.randint(1, 4))}
    if kind == 6:
        return rng.choice([{"const": "c"}, {"const": 5}, {}, True, {"title": "anything"}])
    if kind == 7:
        return {"anyOf": [random_schema(rng, depth - 1, defs) for _ in range(rng.randint(1, 3))]}
    if kind == 8 and defs:
        return {"$ref": f"#/$defs/{rng.choice(defs)}"}
    if kind == 9:
        return random_array(rng, depth, defs)
    return random_object(rng, depth, defs)


def random_document(rng):
    defs = ["node", "leaf"]
    out = random_schema(rng, 3, defs)
    if not isinstance(out, dict):
        return out
    return {**out, "$defs": {"node": random_object(rng, 2, defs), "leaf": random_schema(rng, 1, [])}}


def resolved(schema, root):
    while isinstance(schema, dict) and "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema if isinstance(schema, dict) else {}


def parts(schema, root):
    """The schema, and the others that speak of the same value, in ark's order."""
    schema = resolved(schema, root)
    out = [schema]
    for key in ("allOf", "anyOf"):
        for part in schema.get(key, []):
            out += parts(part, root)
    return out


def sample(rng, schema, root, depth=4):
    """A value that is likely to be valid."""
    schema = resolved(schema, root)
    if "enum" in schema:
        return copy.deepcopy(rng.choice(schema["enum"]))
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema and "type" not in schema:
        return sample(rng, rng.choice(schema["anyOf"]), root, depth)
    kind = schema.get("type", rng.choice(["string", "integer", "array", "null"]))
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "string":
        return rng.choice(FORMATS.get(schema.get("format"), TEXTS))
    if kind in ("integer", "number"):
        near = [schema[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in schema] + [0, 21]
        value = rng.choice(near) + rng.choice([0, 1, -1, 10, -10, 0.5, -0.25, 50])
        return int(value) if kind == "integer" or value == int(value) else value
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null" or depth <= 0:
        return None
    if kind == "array":
        first = schema.get("prefixItems", [])
        count = rng.randint(schema.get("minItems", 0), min(schema.get("maxItems", 4), 4)) if schema.get("minItems", 0) <= schema.get("maxItems", 4) else 1
        return [sample(rng, first[i] if i < len(first) else schema.get("items", {}), root, depth - 1) for i in range(count)]
    out = {}
    for part in parts(schema, root):
        for name, value in part.get("properties", {}).items():
            if name in schema.get("required", []) + part.get("required", []) or rng.random() < 0.6:
                out[name] = sample(rng, value, root, depth - 1)
    for name in schema.get("required", []) + rng.choice([[], ["more"]]):
        if name not in out:
            out[name] = sample(rng, schema.get("additionalProperties", {}), root, depth - 1)
    return out


def mutated(rng, value):
    """The same with a thing changed somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        out = dict(value)
        if rng.random() < 0.3:
            del out[name]
        else:
            out[name] = mutated(rng, value[name])
        return out
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice([[], [mutated(rng, value[at])], [value[at]] * 2]) + value[at + 1:]
    return rng.choice([None, True, 3, -7, 2.5, "", "abc", [], {}, {"a": 1}, [1, 2]])


def ordered(value, schema, root):
    """Members in the order in which the schema names them: ark writes no other."""
    if isinstance(value, list):
        first = resolved(schema, root).get("prefixItems", [])
        items = resolved(schema, root).get("items", {})
        return [ordered(v, first[i] if i < len(first) else items, root) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    every = parts(schema, root)
    if any(isinstance(part.get("enum"), list) for part in every):
        return value
    names = {}
    for part in every:
        for name, inner in part.get("properties", {}).items():
            names.setdefault(name, inner)
    for part in every:
        for name in part.get("required", []):
            names.setdefault(name, part.get("additionalProperties", {}))
    rest = resolved(schema, root).get("additionalProperties", {})
    known = [name for name in names if name in value]
    return {name: ordered(value[name], names.get(name, rest), root) for name in known + [n for n in value if n not in names]}


def written(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
