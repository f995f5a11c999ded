#include "importer/schema.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/error.h"

namespace ark::onnx {
namespace {

constexpr std::string_view kTable =
#include "importer/schemas.inc"
    ;

// Takes what stands before `end` off the front.
std::string_view take(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view front = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return front;
}

int64_t number(std::string_view text, int base = 10) {
  int64_t n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n, base);
  return n;
}

struct Range {
  int64_t least = 0, most = 0;
  explicit Range(std::string_view text) : least(number(take(text, '-'))) {
    most = text == "*" ? INT64_MAX : number(text);
  }
};

struct Parameter {
  bool needed = true, repeats = false;
  char variable = 0;
  int64_t types = 0;  // index of the set
  explicit Parameter(std::string_view text) {
    if (text[0] == '?' || text[0] == '*') needed = false, repeats = text[0] == '*', text.remove_prefix(1);
    if (text[0] >= 'A') variable = text[0], text.remove_prefix(1);
    types = number(text);
  }
};

// One line of the table, in parts.
struct Row {
  int64_t since;
  Range inputs, outputs;
  bool retired;
  std::string_view in, out, attributes;
};

struct Table {
  std::vector<uint32_t> sets;
  std::unordered_map<std::string_view, std::vector<Row>> rows;
};

const Table& table() {
  static const auto* made = [] {
    auto* t = new Table;
    std::string_view text = kTable;
    for (std::string_view line = take(text, '\n'); !line.empty();)
      t->sets.push_back(static_cast<uint32_t>(number(take(line, ' '), 16)));
    while (!text.empty()) {
      std::string_view line = take(text, '\n'), head = take(line, '|');
      const std::string_view name = take(head, ' '), since = take(head, ' '), inputs = take(head, ' '),
                             outputs = take(head, ' '), in = take(line, '|'), out = take(line, '|');
      t->rows[name].push_back({number(since), Range(inputs), Range(outputs), !head.empty(), in, out, line});
    }
    return t;
  }();
  return *made;
}

// The operator as `opset` has it; null if there is none of that name.
const Row* row_of(const Node& node, int64_t opset, const std::string& label) {
  const auto found = table().rows.find(node.domain.empty() ? node.op_type : node.domain + "." + node.op_type);
  if (found == table().rows.end()) return nullptr;
  const std::vector<Row>& versions = found->second;
  const auto after =
      std::find_if(versions.begin(), versions.end(), [&](const Row& r) { return r.since > opset; });
  if (after != versions.begin()) return &*(after - 1);
  // ONNX Runtime writes this one into files of older opsets.
  if (node.domain.empty() && node.op_type == "LayerNormalization") return &*after;
  throw Error(Code::kBadModel, "node " + label + ": " + node.op_type + " came with opset " +
                                   std::to_string(after->since) + " of " +
                                   (node.domain.empty() ? "ai.onnx" : node.domain) + "; the file imports " +
                                   std::to_string(opset));
}

[[noreturn]] void fail(const Node& node, const Row& row, const std::string& label, const std::string& why) {
  const char* whose = node.domain == "com.microsoft" ? "ONNX Runtime's " : "ONNX's ";
  throw Error(Code::kBadModel, "node " + label + ": " + why + "; see " + whose + node.op_type + "-" +
                                   std::to_string(row.since));
}

void check_names(const Node& node, const Row& row, const std::string& label, const char* what,
                 const std::vector<std::string>& names, const Range& range, std::string_view formal) {
  const auto count = static_cast<int64_t>(names.size());
  if (count < range.least || count > range.most)
    fail(node, row, label,
         "has " + std::to_string(count) + " " + what + "s; " +
             (count < range.least ? "at least " + std::to_string(range.least)
                                  : "at most " + std::to_string(range.most)));
  for (std::size_t i = 0; i < names.size() && !formal.empty(); ++i)
    if (Parameter(take(formal, ' ')).needed && names[i].empty())
      fail(node, row, label, std::string(what) + " " + std::to_string(i) + " is needed and has no name");
}

bool is_of(AttributeType type, char letter) {
  switch (letter) {
    case 'f':
      return type == AttributeType::kFloat;
    case 'i':
      return type == AttributeType::kInt;
    case 's':
      return type == AttributeType::kString;
    case 't':
      return type == AttributeType::kTensor;
    case 'g':
      return type == AttributeType::kGraph;
    case 'F':
      return type == AttributeType::kFloats ||
             type == AttributeType::kUndefined;  // an empty list of old files
    case 'I':
      return type == AttributeType::kInts || type == AttributeType::kUndefined;
    case 'S':
      return type == AttributeType::kStrings || type == AttributeType::kUndefined;
    case 'T':
      return type == AttributeType::kTensors;
    case 'G':
      return type == AttributeType::kGraphs;
    default:
      return type == AttributeType::kOther;
  }
}

}  // namespace

void check_against_schema(const Node& node, int64_t opset, const std::string& label) {
  const Row* row = row_of(node, opset, label);
  if (!row) return;
  // The standard retired the GroupNormalization of opset 18, which files have and ONNX Runtime runs.
  if (row->retired && !(node.domain.empty() && node.op_type == "GroupNormalization"))
    throw Error(Code::kBadModel, "node " + label + ": " + node.op_type + " was retired with opset " +
                                     std::to_string(row->since) + "; the file imports " +
                                     std::to_string(opset));
  check_names(node, *row, label, "input", node.inputs, row->inputs, row->in);
  check_names(node, *row, label, "output", node.outputs, row->outputs, row->out);
  std::size_t known = 0;
  for (std::string_view formal = row->attributes; !formal.empty();) {
    std::string_view type = take(formal, ' ');
    const std::string_view name = take(type, ':');
    const Attribute* a = node.attribute(name);
    known += a != nullptr;
    if (!a && type.ends_with('!'))
      fail(node, *row, label, "attribute '" + std::string(name) + "' is missing");
    if (a && a->ref_attr_name.empty() && !is_of(a->type, type[0])) {
      constexpr std::string_view kLetters = "fistg";
      constexpr const char* kNames[] = {"a float", "an integer", "a string", "a tensor", "a graph"};
      const std::size_t at = kLetters.find(type[0]);
      fail(node, *row, label,
           "attribute '" + std::string(name) + "' is not " +
               (at == kLetters.npos ? "of its type (a list)" : kNames[at]));
    }
  }
  if (known == node.attributes.size()) return;
  for (const Attribute& a : node.attributes) {
    bool is_known = a.name.starts_with("__");  // ONNX's mark of what is nobody else's business
    for (std::string_view formal = row->attributes; !formal.empty();) {
      std::string_view type = take(formal, ' ');
      is_known = is_known || take(type, ':') == a.name;
    }
    if (!is_known) fail(node, *row, label, "attribute '" + escaped(a.name, 60) + "' does not exist");
  }
}

bool has_schema(const Node& node) {
  if (!node.domain.empty() && node.domain != "ai.onnx.ml" && node.domain != "com.microsoft") return true;
  return table().rows.contains(node.domain.empty() ? node.op_type : node.domain + "." + node.op_type);
}

void refuse_unknown(const Node& node, int64_t opset, const std::string& label) {
  throw Error(Code::kUnsupported,
              "node " + label + ": ark does not know operator " + escaped(node.op_type) + " of domain " +
                  (node.domain.empty() ? "ai.onnx" : escaped(node.domain)) + ", opset " +
                  std::to_string(opset) +
                  "; export with another opset, or with the operator expanded to a model-local function");
}

void check_input_rank(const Node& node, const std::string& label, std::size_t input, std::size_t rank) {
  // Inputs first to last of the operator, ranks least to most: what ONNX's inference or ONNX Runtime's kernels demand.
  struct Ranks {
    std::string_view op;
    std::size_t first, last, least, most;
  };
  constexpr std::size_t kAny = 99;
  static constexpr Ranks kRanks[] = {
      {"BatchNormalization", 1, 4, 1, 1},
      {"ConstantOfShape", 0, 0, 1, kAny},
      {"Conv", 2, 2, 1, 1},
      {"ConvTranspose", 2, 2, 1, 1},
      {"CumSum", 1, 1, 0, 1},
      {"Gather", 0, 0, 1, kAny},
      {"GatherND", 0, 1, 1, kAny},
      {"InstanceNormalization", 1, 2, 1, 1},
      {"OneHot", 0, 0, 1, kAny},
      {"OneHot", 1, 1, 0, 1},
      {"OneHot", 2, 2, 1, 1},
      {"ReduceL1", 1, 1, 1, 1},
      {"ReduceL2", 1, 1, 1, 1},
      {"ReduceLogSum", 1, 1, 1, 1},
      {"ReduceLogSumExp", 1, 1, 1, 1},
      {"ReduceMax", 1, 1, 1, 1},
      {"ReduceMean", 1, 1, 1, 1},
      {"ReduceMin", 1, 1, 1, 1},
      {"ReduceProd", 1, 1, 1, 1},
      {"ReduceSum", 1, 1, 1, 1},
      {"ReduceSumSquare", 1, 1, 1, 1},
      {"Reshape", 1, 1, 1, 1},
      {"ReverseSequence", 1, 1, 1, 1},
      {"Slice", 1, 4, 1, 1},
      {"Split", 1, 1, 1, 1},
      {"Squeeze", 1, 1, 1, 1},
      {"Tile", 1, 1, 1, 1},
      {"TopK", 1, 1, 1, 1},
      {"Trilu", 0, 0, 2, kAny},
      {"Trilu", 1, 1, 0, 1},
      {"Unsqueeze", 1, 1, 0, 1},
  };
  if (!node.domain.empty()) return;
  for (const Ranks& r : kRanks) {
    if (node.op_type != r.op || input < r.first || input > r.last || (rank >= r.least && rank <= r.most))
      continue;
    const std::string wanted = r.least == r.most ? std::to_string(r.least)
                               : r.most == kAny  ? "at least " + std::to_string(r.least)
                                                 : "at most " + std::to_string(r.most);
    throw Error(Code::kBadModel, "node " + label + ": input " + std::to_string(input) + " has rank " +
                                     std::to_string(rank) + ", not " + wanted);
  }
}

void check_input_types(const Node& node, int64_t opset, const std::string& label,
                       std::span<const DType> types) {
  const Row* row = row_of(node, opset, label);
  if (!row || opset < row->since) return;
  std::string_view formals = row->in;
  std::optional<Parameter> formal;
  DType bound[32] = {};  // by variable
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!formals.empty()) formal.emplace(take(formals, ' '));
    if (!formal || types[i] == DType::kUndefined) continue;
    const std::string name(name_of(types[i]));
    if (!(table().sets[formal->types] >> static_cast<int>(types[i]) & 1))
      fail(node, *row, label, "input " + std::to_string(i) + " is " + name + ", which it does not take");
    DType& same = bound[formal->variable % 32];
    if (formal->variable && same != DType::kUndefined && same != types[i])
      fail(node, *row, label,
           "input " + std::to_string(i) + " is " + name + " beside " + std::string(name_of(same)) +
               "; both must be of one type");
    same = types[i];
  }
}

}  // namespace ark::onnx
