// A drawing of a graph or a program, for people: boxes coloured by operator family in nested groups, edges between
// them, and what each family weighs. Made by graph_picture.h and server/tools/program_picture.h, drawn by dot() and by
// ark-inspect's page.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ir/ops.h"

namespace ark {

enum class Family : uint8_t {
  kInput,  // and outputs
  kProduct,
  kAttention,
  kNorm,
  kPointwise,
  kLookup,
  kReduce,
  kMovement,
  kQuantize,
  kExchange,
  kControl,
  kCount,
};
struct FamilyLook {
  const char *name, *fill;  // fill: "#rrggbb", light: text on it is black
};
const FamilyLook& look_of(Family family);
Family family_of(Op op);

struct Picture {
  enum class Line : uint8_t {
    kData,
    kOrder,    // that a processor follows
    kWait,     // for an earlier phase
    kMessage,  // to another rank
  };
  // Texts are as in the file, unescaped: whoever draws escapes.
  struct Box {
    std::string id;  // unique; letters, digits and _
    Family family = Family::kPointwise;
    std::string title;
    std::vector<std::string> lines;
    int32_t group = -1;
    int64_t count = 1;  // nodes that it stands for
    int64_t bytes = 0;  // of weights that no box before it has, of all these nodes
  };
  struct Edge {
    int32_t from = 0, to = 0;  // boxes
    std::string label;
    Line line = Line::kData;
  };
  struct Group {
    std::string label;
    int32_t parent = -1;  // a group before this one
  };

  std::string name;
  std::vector<Box> boxes;
  std::vector<Edge> edges;
  std::vector<Group> groups;
};

// By family, of those that occur: boxes' nodes and weights.
struct LegendRow {
  Family family;
  int64_t count = 0, bytes = 0;
};
std::vector<LegendRow> legend(const Picture& picture);

// As Graphviz text.
std::string dot(const Picture& picture);

// "3.4 MiB", "90 KiB", "560 B".
std::string size_text(int64_t bytes);
// With entities for what HTML and Graphviz's HTML-like labels take for markup.
std::string html_escaped(std::string_view text);

// What all names begin with, up to and with a '/' or '.'.
std::string common_prefix(const std::vector<std::string>& names);

}  // namespace ark
