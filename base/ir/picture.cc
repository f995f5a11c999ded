#include "base/ir/picture.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace ark {
namespace {

constexpr std::size_t kWidest = 64;  // characters of a line in a box

// A name from the file as markup; of a long one the end, which tells more than the start.
std::string label_text(const std::string& name) {
  std::string text = escaped(name, name.size() * 4);
  if (text.size() > kWidest) {
    std::size_t cut = text.size() - kWidest;
    while (cut < text.size() && (text[cut] & 0xc0) == 0x80) ++cut;  // not within a character
    text = "…" + text.substr(cut);
  }
  return html_escaped(text);
}

const char* attributes_of(Picture::Line line) {
  switch (line) {
    case Picture::Line::kData:
      return "color=\"#708090\"";
    case Picture::Line::kOrder:
      return "color=\"#b0b8c0\", weight=10";
    case Picture::Line::kWait:
      return "color=\"#d2691e\", fontcolor=\"#d2691e\", style=dashed, constraint=false";
    case Picture::Line::kMessage:
      return "color=\"#1f4fd0\", fontcolor=\"#1f4fd0\"";
  }
  return "";
}

std::string box_text(const Picture::Box& box) {
  std::string label = "<b>" + label_text(box.title) + "</b>";
  for (const std::string& line : box.lines) label += "<br/>" + label_text(line);
  return box.id + " [fillcolor=\"" + look_of(box.family).fill + "\", label=<" + label + ">" +
         (box.family == Family::kInput ? ", shape=ellipse" : "") +
         (box.family == Family::kExchange ? ", shape=cds" : "") + "];\n";
}

// A group's boxes, and its groups.
void append_group(const Picture& picture, int32_t group, const std::string& indent, std::string& text) {
  for (const Picture::Box& box : picture.boxes)
    if (box.group == group) text += indent + box_text(box);
  for (std::size_t g = 0; g < picture.groups.size(); ++g) {
    if (picture.groups[g].parent != group) continue;
    text += indent + "subgraph cluster_" + std::to_string(g) + " {\n" + indent + "  label=\"" +
            escaped(picture.groups[g].label) +
            "\"; style=\"rounded,dashed\"; color=\"#708090\"; fontsize=14;\n";
    append_group(picture, static_cast<int32_t>(g), indent + "  ", text);
    text += indent + "}\n";
  }
}

std::string legend_text(const Picture& picture) {
  std::string rows;
  int64_t total = 0;
  for (const LegendRow& row : legend(picture)) {
    rows += std::string("<tr><td bgcolor=\"") + look_of(row.family).fill + "\">" + look_of(row.family).name +
            "</td><td>" + std::to_string(row.count) + "</td><td align=\"right\">" +
            (row.bytes ? size_text(row.bytes) : "") + "</td></tr>";
    total += row.bytes;
  }
  return "  legend [shape=plain, style=\"\", label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"0\" "
         "cellpadding=\"4\"><tr><td colspan=\"3\"><b>" +
         label_text(picture.name) + "</b></td></tr>" + rows +
         "<tr><td colspan=\"2\">weights</td><td align=\"right\">" + size_text(total) +
         "</td></tr></table>>];\n";
}

}  // namespace

const FamilyLook& look_of(Family family) {
  static constexpr FamilyLook kLooks[] = {
      {"input or output", "#e8eaed"}, {"product", "#a8c7fa"},
      {"attention", "#ffcc99"},       {"norm", "#c4e7c0"},
      {"pointwise", "#fff0b3"},       {"lookup", "#b2e5e0"},
      {"reduction", "#dcedc8"},       {"movement", "#e4e0d8"},
      {"quantization", "#d9c7f0"},    {"exchange", "#f7b6b2"},
      {"control", "#f3c6e0"},
  };
  static_assert(std::size(kLooks) == static_cast<std::size_t>(Family::kCount));
  return kLooks[static_cast<std::size_t>(family)];
}

// By the sections of ops.h, each named by its last operator.
Family family_of(Op op) {
  if (op >= Op::kGather && op <= Op::kGatherND) return Family::kLookup;
  if (op == Op::kSelectRows) return Family::kLookup;
  static constexpr std::pair<Op, Family> kSections[] = {
      {Op::kClip, Family::kPointwise},        {Op::kEyeLike, Family::kMovement},
      {Op::kLogSoftmax, Family::kReduce},     {Op::kLrn, Family::kNorm},
      {Op::kConvTranspose, Family::kProduct}, {Op::kResize, Family::kReduce},
      {Op::kMatMulNBits, Family::kQuantize},  {Op::kPagedAttention, Family::kAttention},
      {Op::kSelectRows, Family::kLookup},     {Op::kAllGather, Family::kExchange},
      {Op::kCount, Family::kControl},
  };
  for (const auto& [last, family] : kSections)
    if (op <= last) return family;
  return Family::kControl;
}

std::vector<LegendRow> legend(const Picture& picture) {
  std::vector<LegendRow> rows(static_cast<std::size_t>(Family::kCount));
  for (std::size_t f = 0; f < rows.size(); ++f) rows[f].family = static_cast<Family>(f);
  for (const Picture::Box& box : picture.boxes) {
    LegendRow& row = rows[static_cast<std::size_t>(box.family)];
    row.count += box.count, row.bytes += box.bytes;
  }
  std::erase_if(rows, [](const LegendRow& row) { return row.count == 0; });
  return rows;
}

std::string dot(const Picture& picture) {
  std::string text =
      "digraph picture {\n  rankdir=TB; nodesep=0.25; ranksep=0.35; fontname=\"sans-serif\";\n"
      "  node [shape=box, style=\"filled,rounded\", color=\"#5f6b76\", fontname=\"sans-serif\", "
      "fontsize=11];\n"
      "  edge [fontname=\"sans-serif\", fontsize=9, fontcolor=\"#5f6b76\", arrowsize=0.7];\n" +
      legend_text(picture);
  append_group(picture, -1, "  ", text);
  for (const Picture::Edge& edge : picture.edges)
    text += "  " + picture.boxes[edge.from].id + " -> " + picture.boxes[edge.to].id + " [" +
            (edge.label.empty() ? "" : "label=\"" + escaped(edge.label, kWidest) + "\", ") +
            attributes_of(edge.line) + "];\n";
  return text + "}\n";
}

std::string size_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1) return bytes < 1024 ? std::to_string(bytes) + " B" : std::to_string(bytes >> 10) + " KiB";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", mib);
  return text;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const std::size_t special = std::string_view("&<>\"'").find(c);
    static const char* const kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    if (special == std::string_view::npos)
      out += c;
    else
      out += kEntities[special];
  }
  return out;
}

std::string common_prefix(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::size_t length = names[0].size();
  for (const std::string& name : names)
    length = static_cast<std::size_t>(
        std::mismatch(names[0].begin(), names[0].begin() + length, name.begin(), name.end()).first -
        names[0].begin());
  const std::size_t end = names[0].substr(0, length).find_last_of("/.");
  return end == std::string::npos ? "" : names[0].substr(0, end + 1);
}

}  // namespace ark
