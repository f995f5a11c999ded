#include "importer/onnx_parser.h"

#include "base/error.h"

namespace ark::onnx {
namespace {

std::string domain_of(std::string domain) { return domain == "ai.onnx" ? "" : domain; }

}  // namespace

const Attribute* Node::attribute(std::string_view attribute_name) const {
  for (const Attribute& a : attributes)
    if (a.name == attribute_name) return &a;
  return nullptr;
}

Model Parser::model() {
  Model m;
  bool has_graph = false;
  wire_.fields([&](Field f) {
    switch (f.number) {
      case 1:
        m.ir_version = wire_.varint(f);
        break;
      case 2:
        m.producer = wire_.name(f);
        break;
      case 3:
        m.producer_version = wire_.name(f);
        break;
      case 7:
        graph(f, m.graph), has_graph = true;
        break;
      case 8:
        opset(f, m.opsets);
        break;
      case 14:
        metadata(f, m.metadata);
        break;
      case 25:
        wire_.charge(sizeof(Function));
        m.functions.push_back(function(f));
        break;
      default:
        wire_.skip(f);  // domain, model_version, doc_string, training_info, ...
    }
  });
  if (m.ir_version == 0) wire_.fail("no ir_version: this is no ONNX model");
  if (m.ir_version < 3 || m.ir_version > 14)
    wire_.unsupported("IR version " + std::to_string(m.ir_version) +
                      "; ark reads 3 to 14: convert the file with onnx.version_converter");
  if (!has_graph) wire_.fail("the model has no graph");
  return m;
}

void Parser::opset(Field field, std::map<std::string, int64_t>& into) {
  std::string domain;
  int64_t version = 0;
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        domain = domain_of(wire_.name(f));
        break;
      case 2:
        version = wire_.varint(f);
        break;
      default:
        wire_.skip(f);
    }
  });
  wire_.charge(128);
  // skl2onnx imports '' beside 'ai.onnx', one domain: the last counts, as in ONNX Runtime and ONNX's checker.
  into[domain] = version;
}

void Parser::metadata(Field field, std::map<std::string, std::string>& into) {
  std::string key, value;
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        key = wire_.name(f);
        break;
      case 2:
        value = wire_.text(f, wire_.limits().max_string_bytes, "max_string_bytes");
        break;
      default:
        wire_.skip(f);
    }
  });
  wire_.charge(128);
  into[key] = std::move(value);
}

void Parser::graph(Field field, Graph& into) {
  const WireReader::Level level(wire_);
  const Limits& limits = wire_.limits();
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        if (static_cast<int64_t>(into.nodes.size()) >= limits.max_nodes)
          wire_.fail("more than " + std::to_string(limits.max_nodes) + " nodes in a graph (max_nodes)");
        wire_.charge(sizeof(Node));
        into.nodes.push_back(node(f));
        break;
      case 2:
        into.name = wire_.name(f);
        break;
      case 5:
        if (static_cast<int64_t>(into.initializers.size()) >= limits.max_initializers)
          wire_.fail("more than " + std::to_string(limits.max_initializers) +
                     " initializers (max_initializers)");
        into.initializers.push_back(tensor(f));
        break;
      case 11:
        into.inputs.push_back(value_info(f));
        break;
      case 12:
        into.outputs.push_back(value_info(f));
        break;
      case 13:
        into.value_infos.push_back(value_info(f));
        break;
      case 15:
        wire_.unsupported("sparse initializers are not supported: store the tensor dense");
      default:
        wire_.skip(f);  // doc_string, quantization_annotation, metadata_props
    }
  });
}

Node Parser::node(Field field) {
  Node n;
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
      case 2:
        wire_.charge(sizeof(std::string));
        (f.number == 1 ? n.inputs : n.outputs).push_back(wire_.name(f));
        break;
      case 3:
        n.name = wire_.name(f);
        break;
      case 4:
        n.op_type = wire_.name(f);
        break;
      case 5:
        n.attributes.push_back(attribute(f));
        break;
      case 7:
        n.domain = domain_of(wire_.name(f));
        break;
      case 8:
        n.overload = wire_.name(f);
        break;
      default:
        wire_.skip(f);  // doc_string, metadata_props, device_configurations
    }
  });
  return n;
}

Attribute Parser::attribute(Field field) {
  wire_.charge(sizeof(Attribute));
  Attribute a;
  int64_t type = 0;
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        a.name = wire_.name(f);
        break;
      case 20:
        type = wire_.varint(f);
        break;
      case 21:
        a.ref_attr_name = wire_.name(f);
        break;
      default:
        attribute_payload(f, a);
    }
  });
  finish_attribute(a, type);
  return a;
}

// Sets a.type to what was found: files of IR version 1 do not say it (check_model).
void Parser::attribute_payload(Field f, Attribute& a) {
  const AttributeType before = a.type;
  const auto room = [&](std::size_t count, std::size_t bytes) {
    if (static_cast<int64_t>(count) >= wire_.limits().max_attribute_elements)
      wire_.fail("attribute '" + escaped(a.name) + "' has more than " +
                 std::to_string(wire_.limits().max_attribute_elements) +
                 " elements (max_attribute_elements)");
    wire_.charge(static_cast<int64_t>(bytes));
  };
  switch (f.number) {
    case 2:
      a.f = wire_.fixed32(f), a.type = AttributeType::kFloat;
      break;
    case 3:
      a.i = wire_.varint(f), a.type = AttributeType::kInt;
      break;
    case 4:
      a.s = wire_.text(f, wire_.limits().max_string_bytes, "max_string_bytes");
      a.type = AttributeType::kString;
      break;
    case 5:
      a.t = tensor(f), a.type = AttributeType::kTensor;
      break;
    case 6:
      wire_.charge(sizeof(Graph));
      if (!a.g) a.g = std::make_shared<Graph>();
      a.type = AttributeType::kGraph;
      graph(f, *a.g);
      break;
    case 7:
      a.type = AttributeType::kFloats;
      wire_.floats(f, [&](double v) { room(a.floats.size(), sizeof v), a.floats.push_back(v); });
      break;
    case 8:
      a.type = AttributeType::kInts;
      wire_.varints(f, [&](int64_t v) { room(a.ints.size(), sizeof v), a.ints.push_back(v); });
      break;
    case 9:
      a.type = AttributeType::kStrings;
      room(a.strings.size(), sizeof(std::string));
      a.strings.push_back(wire_.text(f, wire_.limits().max_string_bytes, "max_string_bytes"));
      break;
    case 10:
    case 11:
      a.type = f.number == 10 ? AttributeType::kTensors : AttributeType::kGraphs;
      wire_.skip(f);
      break;
    case 14:
    case 15:
    case 22:
    case 23:
      a.type = AttributeType::kOther;
      [[fallthrough]];  // types; sparse tensors
    default:
      wire_.skip(f);
  }
  if (before != AttributeType::kUndefined && before != a.type)
    wire_.fail("attribute '" + escaped(a.name) + "' holds values of two types");
}

void Parser::finish_attribute(Attribute& a, int64_t type) {
  static constexpr AttributeType kTypes[] = {
      AttributeType::kUndefined, AttributeType::kFloat,   AttributeType::kInt,    AttributeType::kString,
      AttributeType::kTensor,    AttributeType::kGraph,   AttributeType::kFloats, AttributeType::kInts,
      AttributeType::kStrings,   AttributeType::kTensors, AttributeType::kGraphs};
  if (type < 0 || type > 14)
    wire_.fail("attribute '" + escaped(a.name) + "' has type " + std::to_string(type));
  const AttributeType found = a.type;
  a.is_typed = type > 0;
  if (type > 10)
    a.type = AttributeType::kOther;
  else if (type > 0)
    a.type = kTypes[type];
  if (!a.ref_attr_name.empty() || found == a.type) return;
  if (found != AttributeType::kUndefined)
    wire_.fail("attribute '" + escaped(a.name) + "' holds another type than it announces");
  // Zeros and empty lists may be left out.
  if (a.type == AttributeType::kTensor || a.type == AttributeType::kGraph)
    wire_.fail("attribute '" + escaped(a.name) + "' announces a tensor or graph that is not there");
}

ValueInfo Parser::value_info(Field field) {
  wire_.charge(sizeof(ValueInfo));
  ValueInfo v;
  v.type.kind = "none";
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        v.name = wire_.name(f);
        break;
      case 2:
        type(f, v.type);
        break;
      default:
        wire_.skip(f);
    }
  });
  return v;
}

void Parser::type(Field field, Type& into) {
  const WireReader::Level level(wire_);
  // A type of another type, in field `number`: only its depth counts.
  const auto inner = [&](Field f, uint32_t number) {
    wire_.message(f, [&](Field g) {
      Type ignored;
      g.number == number ? type(g, ignored) : wire_.skip(g);
    });
  };
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        tensor_type(f, into), into.kind = "tensor";
        break;
      case 4:
        into.kind = "sequence", inner(f, 1);
        break;
      case 5:
        into.kind = "map", inner(f, 2);
        break;
      case 7:
        into.kind = "opaque", wire_.skip(f);
        break;
      case 8:
        into.kind = "sparse_tensor", wire_.skip(f);
        break;
      case 9:
        into.kind = "optional", inner(f, 1);
        break;
      default:
        wire_.skip(f);
    }
  });
}

void Parser::tensor_type(Field field, Type& into) {
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        into.element_type = static_cast<int32_t>(wire_.varint(f));
        break;
      case 2:
        into.has_shape = true, shape(f, into);
        break;
      default:
        wire_.skip(f);
    }
  });
}

void Parser::shape(Field field, Type& into) {
  wire_.message(field, [&](Field f) {
    if (f.number != 1) return wire_.skip(f);
    if (static_cast<int>(into.dims.size()) >= wire_.limits().max_rank)
      wire_.fail("a tensor of more than " + std::to_string(wire_.limits().max_rank) +
                 " dimensions (max_rank)");
    wire_.charge(sizeof(Dimension));
    Dimension& d = into.dims.emplace_back();
    wire_.message(f, [&](Field g) {
      switch (g.number) {
        case 1:
          d.value = wire_.varint(g);
          break;
        case 2:
          d.parameter = wire_.name(g);
          break;
        default:
          wire_.skip(g);
      }
    });
  });
}

Function Parser::function(Field field) {
  Function fn;
  wire_.message(field, [&](Field f) {
    switch (f.number) {
      case 1:
        fn.name = wire_.name(f);
        break;
      case 4:
        wire_.charge(32), fn.inputs.push_back(wire_.name(f));
        break;
      case 5:
        wire_.charge(32), fn.outputs.push_back(wire_.name(f));
        break;
      case 6:
        wire_.charge(32), fn.attributes.push_back(wire_.name(f));
        break;
      case 7:
        wire_.charge(sizeof(Node));
        fn.nodes.push_back(node(f));
        break;
      case 9:
        opset(f, fn.opsets);
        break;
      case 10:
        fn.domain = domain_of(wire_.name(f));
        break;
      case 11:
        fn.attribute_defaults.push_back(attribute(f));
        break;
      case 13:
        fn.overload = wire_.name(f);
        break;
      default:
        wire_.skip(f);  // doc_string, value_info, metadata_props
    }
  });
  return fn;
}

}  // namespace ark::onnx
