#include "server/tools/picture_html.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace ark {
namespace {

constexpr std::size_t kMostBoxes = 1500;  // browsers lay out no more with pleasure

std::string short_name_html(const std::string& name) { return html_escaped(escaped(name, 200)); }

class HtmlPicture {
 public:
  explicit HtmlPicture(const Picture& picture) : picture_(picture), inside_(picture.groups.size() + 1) {
    for (std::size_t b = 0; b < picture.boxes.size(); ++b)
      inside_[picture.boxes[b].group + 1].push_back(static_cast<int32_t>(b));
    for (std::size_t g = 0; g < picture.groups.size(); ++g)
      inside_[picture.groups[g].parent + 1].push_back(-1 - static_cast<int32_t>(g));
  }

  std::string all() const {
    std::string edges;
    for (const Picture::Edge& e : picture_.edges)
      edges += (edges.empty() ? "" : " ") + std::to_string(e.from) + "," + std::to_string(e.to) + "," +
               std::to_string(static_cast<int>(e.line));
    return "<div class=picture data-edges=\"" + edges + "\"><svg aria-hidden=true></svg>" + rows(-1) +
           "</div>" + legend_html();
  }

 private:
  // What lies in a group is named by box, or by -1 - group.
  using Item = int32_t;

  // The item of `group` that a box lies in or is; 0 with `found` unset if it lies elsewhere.
  bool item_in(int32_t box, int32_t group, Item& item) const {
    item = box;
    for (int32_t g = picture_.boxes[box].group; g != group; g = picture_.groups[g].parent) {
      if (g < 0) return false;
      item = -1 - g;
    }
    return true;
  }

  // The depth of each item: one more than what it is made from. Inputs stand just above who reads them.
  std::map<Item, int64_t> depths(int32_t group) const {
    std::map<Item, int64_t> depth;
    for (const Item item : inside_[group + 1]) depth[item] = 0;
    std::vector<std::pair<Item, Item>> edges;
    for (const Picture::Edge& e : picture_.edges) {
      Item from = 0, to = 0;
      const bool flows = e.line == Picture::Line::kData || e.line == Picture::Line::kOrder;
      if (flows && item_in(e.from, group, from) && item_in(e.to, group, to) && from != to)
        edges.emplace_back(from, to);
    }
    bool changed = true;
    for (std::size_t pass = 0; changed && pass < depth.size(); ++pass) {
      changed = false;
      for (const auto& [from, to] : edges)
        if (depth[to] <= depth[from]) depth[to] = depth[from] + 1, changed = true;
    }
    std::map<Item, int64_t> lowest;
    for (const auto& [from, to] : edges) {
      const auto [it, is_new] = lowest.try_emplace(from, depth[to]);
      it->second = std::min(it->second, depth[to]);
    }
    for (const auto& [from, to] : edges) lowest.erase(to);
    for (const auto& [item, reader] : lowest) depth[item] = reader - 1;
    return depth;
  }

  std::string rows(int32_t group) const {
    std::map<int64_t, std::vector<Item>> by_depth;
    const std::map<Item, int64_t> depth = depths(group);
    for (const Item item : inside_[group + 1]) by_depth[depth.at(item)].push_back(item);
    std::string html;
    for (const auto& [row, items] : by_depth) {
      html += "<div class=row>";
      for (const Item item : items) html += item >= 0 ? box_html(item) : group_html(-1 - item);
      html += "</div>";
    }
    return html;
  }

  std::string group_html(int32_t group) const {
    return "<div class=group><div class=times>" + short_name_html(picture_.groups[group].label) + "</div>" +
           rows(group) + "</div>";
  }

  std::string box_html(int32_t b) const {
    const Picture::Box& box = picture_.boxes[b];
    std::string html = "<div class=box data-box=" + std::to_string(b) +
                       " style=\"background:" + look_of(box.family).fill + "\"><b>" +
                       short_name_html(box.title) + "</b>";
    for (const std::string& line : box.lines) html += "<span>" + short_name_html(line) + "</span>";
    return html + "</div>";
  }

  std::string legend_html() const {
    std::string html = "<p class=legend>";
    int64_t total = 0;
    for (const LegendRow& row : legend(picture_)) {
      html += std::string("<span><i style=\"background:") + look_of(row.family).fill + "\"></i>" +
              look_of(row.family).name + " × " + std::to_string(row.count) +
              (row.bytes ? ", " + size_text(row.bytes) : "") + "</span> ";
      total += row.bytes;
    }
    return html + "<span>weights " + size_text(total) + "</span></p>";
  }

  const Picture& picture_;
  std::vector<std::vector<Item>> inside_;  // by group + 1
};

}  // namespace

std::string html_picture(const Picture& picture) {
  if (picture.boxes.size() > kMostBoxes)
    return "<p>" + std::to_string(picture.boxes.size()) + " boxes are too many for a page; take --dot.</p>";
  return HtmlPicture(picture).all();
}

}  // namespace ark
