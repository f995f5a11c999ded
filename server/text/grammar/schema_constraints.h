// What the keywords of a JSON Schema, with all that it refers to and merges, ask of one value.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/json_fwd.h"
#include "server/text/budget.h"
#include "server/text/grammar/expression.h"
#include "server/text/grammar/number_range.h"

namespace ark::text::grammar {

// A schema in the document, and its JSON pointer there.
struct SchemaPlace {
  const Json* schema;
  std::string pointer;
};
// Schemas that must all hold; where there is none, any value does.
using AllOf = std::vector<SchemaPlace>;

// Bits of Constraints::types. A number that is no integer is a type of its own here.
enum JsonType : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAllTypes = 127,
};

unsigned type_of(const Json& value);

struct Constraints {
  struct Property {
    std::string name;
    AllOf schemas;
  };
  struct Text {  // a pattern or a format
    std::string text, pointer;
  };
  struct Counts {
    std::uint32_t min = 0, max = kUnbounded;
    void narrow(const Counts& other);
  };

  std::string pointer;
  unsigned types = kAllTypes;
  unsigned hinted_types = 0;                       // those that other keywords speak of
  std::optional<std::vector<const Json*>> values;  // of enum and const
  NumberBounds bounds;
  std::optional<std::uint32_t> multiple_of;
  Counts length, items_count, members_count;
  std::vector<Text> patterns, formats;
  std::vector<AllOf> first_items;
  AllOf items;
  std::vector<Property> properties;
  AllOf additional;
  std::vector<std::string> required;
  std::vector<AllOf> any_of;  // of each at least one must hold

  // Whether something but types and any_of is asked for.
  bool is_detailed() const { return hinted_types != 0 || values; }
};

// Reads schemas of one document, which must outlive it. Throws kInvalidArgument: `what` and the keyword's JSON pointer.
class SchemaReader {
 public:
  SchemaReader(const Json& document, std::string what, Budget& budget)
      : document_(document), what_(std::move(what)), budget_(budget) {}

  Constraints read(const AllOf& schemas);
  // What both ask for.
  Constraints merged(Constraints a, const Constraints& b);
  std::string named(const std::string& pointer) const;  // as messages begin
  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const;

 private:
  Constraints read(const SchemaPlace& place);
  void read_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at, Constraints& out);
  bool read_number_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                           Constraints& out);
  bool read_string_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                           Constraints& out);
  bool read_array_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                          Constraints& out);
  bool read_object_keyword(const std::string& keyword, const Json& value, const SchemaPlace& at,
                           Constraints& out);
  void refuse(const std::string& keyword, const Json& value, const std::string& pointer) const;
  Constraints named_as(const Json& names, const std::string& pointer);
  void merge_members(Constraints& a, const Constraints& b);
  unsigned types_of(const Json& value, const std::string& pointer) const;
  std::uint32_t count_of(const Json& value, const std::string& pointer) const;
  std::vector<SchemaPlace> list_of(const Json& value, const std::string& pointer) const;
  SchemaPlace target_of(const Json& reference, const std::string& pointer) const;

  const Json& document_;
  const std::string what_;
  Budget& budget_;
  std::set<const Json*> open_;  // schemas that are being read
};

}  // namespace ark::text::grammar
