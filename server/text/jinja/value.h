// Values of the template language: Python's, as far as templates can see them.
//
// Lists, tuples and dicts never change once made (templates run in Jinja's immutable sandbox), so values
// share them. Namespaces are the one thing that templates write to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "server/text/budget.h"

namespace ark::text::jinja {

// What goes wrong in a template; the interpreter adds the line.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;
class Interpreter;
using Keywords = std::vector<std::pair<std::string, Value>>;

struct Arguments {
  std::vector<Value> positional;
  Keywords keywords;
};

struct Undefined {
  std::shared_ptr<const std::string> what;  // for messages: "'x' is undefined"
};
struct None {};

struct List {
  enum class Flavor { kList, kTuple, kGenerator, kKeys, kValues, kItems };
  std::vector<Value> items;
  Flavor flavor;
  int depth;                  // of nested containers
  mutable bool used = false;  // a generator gives its items once
};

struct Dict;
struct Namespace;

struct Callable {
  std::string name;  // as it prints
  std::function<Value(Interpreter&, const Arguments&)> call;
};

inline constexpr int kMaxContainerDepth = 100;

// What values take beside the Value itself, with the allocator's share: a text and its letters, a list and its items,
// a function; an entry of a dict and its key's letters.
inline constexpr std::size_t kTextBytes = 64, kListBytes = 96, kFunctionBytes = 128, kEntryBytes = 224;

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(int value) : data_(std::int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> object) : data_(std::move(object)) {}
  Value(std::shared_ptr<const Callable> function) : data_(std::move(function)) {}

  static Value undefined(std::string what);
  static Value list(std::vector<Value> items, List::Flavor flavor = List::Flavor::kList);
  static Value tuple(std::vector<Value> items) { return list(std::move(items), List::Flavor::kTuple); }
  static Value generator(std::vector<Value> items) {
    return list(std::move(items), List::Flavor::kGenerator);
  }
  static Value function(std::string name, std::function<Value(Interpreter&, const Arguments&)> call);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }  // any flavor
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_namespace() const { return std::holds_alternative<std::shared_ptr<Namespace>>(data_); }
  bool is_callable() const { return std::holds_alternative<std::shared_ptr<const Callable>>(data_); }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_flavor(List::Flavor flavor) const { return is_list() && as_list().flavor == flavor; }
  bool is_sequence() const { return is_flavor(List::Flavor::kList) || is_flavor(List::Flavor::kTuple); }

  const std::string& undefined_what() const { return *std::get<Undefined>(data_).what; }
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_int() const { return is_bool() ? as_bool() : std::get<std::int64_t>(data_); }
  double as_number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& as_namespace() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Callable& as_callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  // Whether both are one object (Python's `is`, for containers by address).
  bool same_object(const Value& other) const;
  int depth() const;
  const char* type_name() const;  // Python's

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Callable>>
      data_;
};

// Empty, with room for so many values, which are charged for.
std::vector<Value> room_for(std::size_t count, Budget& budget);

// Insertion-ordered. Keys are compared as Python does: 1, 1.0 and True are one key. They are strings,
// numbers, none, undefined, and tuples of these: not nested, so that finding one is as much work as its size.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  // The work of a key is charged; TemplateError for other keys.
  void set(const Value& key, Value value, Budget& budget);
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key) const;

 private:
  static std::string hash_key(const Value& key, Budget& budget);
  std::unordered_map<std::string, std::size_t> index_;
};

// Few names, in the order in which they came.
struct Names : std::vector<std::pair<std::string, Value>> {
  void set(const std::string& name, Value value);
  const Value* find(const std::string& name) const;  // null if there is none
};

// An object with attributes: what namespace() makes, and `loop`.
struct Namespace {
  virtual ~Namespace() = default;
  virtual void set(const std::string& name, Value value);
  virtual Value find(const std::string& name);  // undefined if there is none

  Names attributes;
};

}  // namespace ark::text::jinja
