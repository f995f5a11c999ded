// PTX text -> functions of instructions whose names, operands and targets are resolved.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tests/emulator/ptx/ptx.h"

namespace ark::emulator::ptx {
namespace {

constexpr const char* kSpace = " \t\r\n";

std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : s.substr(first, s.find_last_not_of(kSpace) - first + 1);
}

// At commas outside of brackets.
std::vector<std::string> split(const std::string& s) {
  std::vector<std::string> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= s.size(); i++) {
    if (i < s.size() && std::strchr("([{", s[i])) depth++;
    if (i < s.size() && std::strchr(")]}", s[i])) depth--;
    if (i < s.size() && (s[i] != ',' || depth)) continue;
    const std::string part = trimmed(s.substr(start, i - start));
    if (!part.empty()) parts.push_back(part);
    start = i + 1;
  }
  return parts;
}

// ".param .align 8 .b8 name[24]" and the like.
struct Variable {
  std::string name, content;
  std::size_t align = 1, bytes = 0, each = 0;
  bool has_length = false;
};

class Parser {
 public:
  Parser(const std::string& text, const std::string& name) : module_(std::make_shared<Module>()) {
    module_->name = name;
    text_.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); i++) {  // without comments
      if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size() - 1);
      text_ += text[i];
    }
  }

  std::shared_ptr<const Module> run() {
    while (skip_space()) {
      const std::string word = next_word();
      if (word == ".version" || word == ".target" || word == ".address_size") {
        until('\n');
      } else if (word == ".global") {
        add_table(variable(until(';')));
      } else if (word == ".extern") {
        const Variable v = variable(until(';'));
        if (v.has_length) refuse("only the block's dynamic shared memory may be external: " + v.name);
        shared_[v.name] = kSharedBase;
      } else if (word == ".entry" || word == ".func") {
        read_function();
      } else if (word != ".visible" && word != ".weak") {
        refuse("the directive " + word);
      }
    }
    for (auto& [name, function] : module_->functions) resolve(*function);
    return module_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::kInternal, "PTX " + module_->name + ":" + std::to_string(line_) +
                                     ": not known to the interpreter: " + what);
  }

  // ---- text

  bool skip_space() {
    while (at_ < text_.size() && std::strchr(kSpace, text_[at_])) line_ += text_[at_++] == '\n';
    return at_ < text_.size();
  }
  std::string next_word() {
    skip_space();
    const std::size_t end = std::min(text_.find_first_of(" \t\r\n;(){", at_ + 1), text_.size());
    const std::string word = text_.substr(at_, end - at_);
    at_ = end;
    return word;
  }
  std::string until(char end) {
    const std::size_t stop = std::min(text_.find(end, at_), text_.size());
    std::string s = text_.substr(at_, stop - at_);
    for (const char c : s) line_ += c == '\n';
    at_ = std::min(stop + 1, text_.size());
    return trimmed(s);
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }

  Variable variable(std::string s) {
    Variable v;
    if (const auto equals = s.find('='); equals != std::string::npos) {
      v.content = trimmed(s.substr(equals + 1));
      s = trimmed(s.substr(0, equals));
    }
    std::size_t count = 1;
    v.has_length = true;
    if (s.ends_with("]")) {
      const auto open = s.rfind('[');
      count = std::strtoull(s.c_str() + open + 1, nullptr, 10);
      v.has_length = count != 0;
      s = s.substr(0, open);
    }
    for (std::size_t start = 0; start < s.size();) {
      const std::size_t end = std::min(s.find_first_of(kSpace, start), s.size());
      const std::string word = s.substr(start, end - start);
      start = std::min(s.find_first_not_of(kSpace, end), s.size());
      if (word == ".align") {
        v.align = std::strtoull(s.c_str() + start, nullptr, 10);
        start = std::min(s.find_first_not_of(kSpace, s.find_first_of(kSpace, start)), s.size());
      } else if (word[0] != '.') {
        v.name = word;
      } else if (word != ".param" && word != ".local" && word != ".shared" && word != ".global") {
        v.each = bytes_of(word.substr(1));
      }
    }
    v.bytes = v.each * count;
    v.align = std::max(v.align, v.each);
    return v;
  }
  std::size_t bytes_of(const std::string& type) const {
    if (type == "pred") return 1;
    const int bits = type.empty() ? 0 : std::atoi(type.c_str() + 1);
    if (!std::strchr("bfsu", type[0]) || bits % 8 || !bits) refuse("the type " + type);
    return static_cast<std::size_t>(bits / 8);
  }

  void add_table(const Variable& v) {
    auto table = std::make_unique<std::vector<uint64_t>>((v.bytes + 7) / 8);
    auto* to = reinterpret_cast<std::byte*>(table->data());
    std::string content = v.content;
    if (content.starts_with("{")) content = content.substr(1, content.size() - 2);
    for (const std::string& number : split(content)) {
      const bool is_address = number.starts_with("generic(");
      const uint64_t n = value(is_address ? number.substr(8, number.size() - 9) : number).number;
      std::memcpy(to, &n, v.each);
      to += v.each;
    }
    module_->tables[v.name] = std::move(table);
  }

  // ---- functions

  void read_parameters(std::vector<Function::Parameter>& into, std::size_t& bytes) {
    for (const std::string& one : split(until(')'))) {
      const Variable v = variable(one);
      bytes = (bytes + v.align - 1) / v.align * v.align;
      into.push_back({bytes, v.bytes});
      names_.back()[v.name] = {Value::kParameter, false, bytes};
      bytes += v.bytes;
    }
  }

  void read_function() {
    auto function = std::make_unique<Function>();
    f_ = function.get();
    names_.assign(1, {});
    // Arguments come first: those of a kernel lie elsewhere.
    const std::size_t results = take('(') ? at_ : 0;
    if (results) until(')');
    f_->name = next_word();
    if (take('(')) read_parameters(f_->arguments, f_->argument_bytes);
    f_->parameter_bytes = (f_->argument_bytes + 15) / 16 * 16;
    f_->argument_bytes = f_->parameter_bytes;
    if (results) {
      const std::size_t here = std::exchange(at_, results);
      const int line = line_;
      read_parameters(f_->results, f_->parameter_bytes);
      at_ = here, line_ = line;
    }
    while (skip_space() && text_[at_] != '{' && text_[at_] != ';') at_++;  // .maxntid and the like
    if (take(';')) return;                                                 // defined further down
    take('{');
    read_body();
    module_->functions[f_->name] = std::move(function);
  }

  void read_body() {
    std::unordered_map<std::string, std::size_t> labels;
    for (std::size_t depth = 1; depth;) {
      if (take('{')) {
        names_.emplace_back();
        depth++;
        continue;
      }
      if (take('}')) {
        if (--depth) names_.pop_back();
        continue;
      }
      if (!skip_space()) refuse("a function without an end: " + f_->name);
      const int line = line_;
      if (text_[at_] == '$') {
        labels[until(':')] = f_->code.size();
        continue;
      }
      const std::string word = next_word();
      const std::string rest = until(';');
      if (word == ".reg") {
        add_registers(rest);
      } else if (word == ".local" || word == ".param") {
        const Variable v = variable(rest);
        std::size_t& bytes = word == ".local" ? f_->local_bytes : f_->parameter_bytes;
        bytes = (bytes + v.align - 1) / v.align * v.align;
        names_.back()[v.name] = {word == ".local" ? Value::kLocal : Value::kParameter, false, bytes};
        bytes += v.bytes;
      } else if (word != ".pragma") {
        line_ = line;
        add_instruction(word, rest);
        line_ += static_cast<int>(std::count(rest.begin(), rest.end(), '\n'));
      }
    }
    for (Instruction& i : f_->code) {
      if (i.flow != Instruction::kBranch) continue;
      if (!labels.contains(i.label)) refuse("the label " + i.label);
      i.target = labels[i.label];
    }
  }

  void add_registers(const std::string& declaration) {
    const auto space = declaration.find_first_of(kSpace);
    for (const std::string& name : split(declaration.substr(space))) {
      const auto open = name.find('<');
      const int count = open == std::string::npos ? 1 : std::atoi(name.c_str() + open + 1);
      for (int k = 0; k < count; k++) {
        const std::string one = open == std::string::npos ? name : name.substr(0, open) + std::to_string(k);
        names_.back()[one] = {Value::kRegister, false, f_->registers.size()};
        f_->registers.push_back(one);
      }
    }
  }

  // ---- instructions

  void add_instruction(std::string word, std::string rest) {
    Instruction i;
    i.line = line_;
    if (word[0] == '@') {
      const Value guard = value(word.substr(1));
      i.guard = static_cast<int>(guard.number);
      i.guard_negated = guard.is_negated;
      const auto end = std::min(rest.find_first_of(kSpace), rest.size());
      word = rest.substr(0, end);
      rest = trimmed(rest.substr(end));
    }
    i.name = word;
    const std::vector<std::string> operands = split(rest);
    if (word == "bra" || word == "bra.uni") {
      i.flow = Instruction::kBranch;
      i.label = rest;
    } else if (word == "ret") {
      i.flow = Instruction::kReturn;
    } else if (word == "call" || word == "call.uni") {
      i.flow = Instruction::kCall;
      for (const std::string& o : operands) {
        if (o[0] != '(') {
          i.label = o;
          continue;
        }
        for (const std::string& one : split(o.substr(1, o.size() - 2)))
          (i.label.empty() ? i.results : i.arguments).push_back(value(one).number);
      }
    } else {
      for (const std::string& o : operands) i.operands.push_back(operand(o));
      i.compute = arithmetic(word);
      if (!i.compute && !bind_effect(i)) refuse(word + " " + rest);
      if (i.operands.size() > kMaxOperands) refuse(word + " with so many operands");
    }
    f_->code.push_back(std::move(i));
  }

  Operand operand(const std::string& s) {
    Operand o;
    if (s[0] == '{') {
      for (const std::string& one : split(s.substr(1, s.size() - 2))) o.values.push_back(value(one));
    } else if (s[0] == '[') {
      const std::string inside = s.substr(1, s.size() - 2);
      const auto plus = inside.find('+');
      o.values.push_back(value(trimmed(inside.substr(0, plus))));
      if (plus != std::string::npos) o.offset = std::strtoll(inside.c_str() + plus + 1, nullptr, 0);
    } else if (const auto bar = s.find('|'); bar != std::string::npos) {
      o.values = {value(s.substr(0, bar)), value(s.substr(bar + 1))};
    } else {
      o.values.push_back(value(s));
    }
    return o;
  }

  Value value(const std::string& s) {
    static const std::unordered_map<std::string, Special> kSpecials = {
        {"%tid.x", kThread},        {"%ctaid.x", kBlock}, {"%ntid.x", kBlockThreads},
        {"%nctaid.x", kGridBlocks}, {"%laneid", kLane},   {"%globaltimer", kClock}};
    if (s[0] == '!') {
      Value v = value(s.substr(1));
      v.is_negated = true;
      return v;
    }
    if (s == "_") return {Value::kSink};
    for (auto scope = names_.rbegin(); scope != names_.rend(); ++scope) {
      if (const auto found = scope->find(s); found != scope->end()) return found->second;
    }
    if (const auto found = kSpecials.find(s); found != kSpecials.end())
      return {Value::kSpecial, false, found->second};
    if (const auto found = shared_.find(s); found != shared_.end())
      return {Value::kConstant, false, found->second};
    if (const auto found = module_->tables.find(s); found != module_->tables.end())
      return {Value::kConstant, false, reinterpret_cast<uint64_t>(found->second->data())};
    return {Value::kConstant, false, constant(s)};
  }

  uint64_t constant(const std::string& s) const {
    char* end = nullptr;
    uint64_t n = 0;
    if (s.starts_with("0f") || s.starts_with("0d")) {
      n = std::strtoull(s.c_str() + 2, &end, 16);
    } else if (s.find('.') != std::string::npos) {
      n = std::bit_cast<uint64_t>(std::strtod(s.c_str(), &end));
    } else {
      n = s[0] == '-' ? static_cast<uint64_t>(std::strtoll(s.c_str(), &end, 0))
                      : std::strtoull(s.c_str(), &end, 0);
    }
    if (end != s.c_str() + s.size()) refuse("the operand " + s);
    return n;
  }

  void resolve(Function& f) {
    for (Instruction& i : f.code) {
      if (i.flow != Instruction::kCall) continue;
      line_ = i.line;
      const auto found = module_->functions.find(i.label);
      if (found == module_->functions.end()) refuse("a call of " + i.label);
      i.callee = found->second.get();
      if (i.callee->arguments.size() != i.arguments.size() || i.callee->results.size() != i.results.size())
        refuse("a call of " + i.label + " with other arguments");
    }
  }

  std::shared_ptr<Module> module_;
  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  Function* f_ = nullptr;
  std::vector<std::unordered_map<std::string, Value>> names_;  // innermost scope last
  std::unordered_map<std::string, uint64_t> shared_;
};

}  // namespace

std::shared_ptr<const Module> parse(const std::string& text, const std::string& name) {
  return Parser(text, name).run();
}

}  // namespace ark::emulator::ptx
