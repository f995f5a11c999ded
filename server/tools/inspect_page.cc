#include "server/tools/inspect_page.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "engine/ragged_runner.h"
#include "engine/run/weight_store.h"
#include "server/json.h"
#include "server/tools/model_card.h"
#include "server/tools/picture_html.h"

namespace ark {
namespace {

constexpr std::size_t kMostText = 1 << 20;  // bytes of one stage
constexpr std::size_t kMostWeights = 1000;  // rows

// Nothing may be fetched, whatever a text should hold.
constexpr const char* kHead = R"(<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5f6b76;--paper:#fff;--panel:#f5f7f9;--line:#d5dbe1;--edge:#8a97a3}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--soft:#9aa7b3;--paper:#14181c;--panel:#1c2228;--line:#343d46;--edge:#6b7884}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.2rem;background:var(--panel);padding:1rem;border-radius:.6rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
details{border-top:1px solid var(--line);padding:.6rem 0}summary{cursor:pointer;font-weight:600;font-size:1.05rem}
pre{overflow:auto;max-height:36rem;background:var(--panel);padding:.8rem;border-radius:.6rem;font-size:.8rem}
.scroll{overflow:auto;max-height:36rem}table{border-collapse:collapse;font-size:.85rem}
td,th{text-align:left;padding:.15rem .9rem .15rem 0;border-bottom:1px solid var(--line)}td.n{text-align:right;font-variant-numeric:tabular-nums}
.picture{position:relative;overflow-x:auto;padding:1rem 0}.picture svg{position:absolute;left:0;top:0;pointer-events:none}
.row{display:flex;justify-content:center;align-items:flex-start;gap:1.2rem;margin:.75rem 0;position:relative}
.group{border:1px dashed var(--edge);border-radius:.8rem;padding:.2rem 1rem}.times{color:var(--soft);font-weight:600}
.box{color:#1d2329;border:1px solid #5f6b7680;border-radius:.5rem;padding:.25rem .6rem;font-size:.72rem;max-width:17rem;overflow-wrap:anywhere}
.box b{display:block;font-size:.8rem}.box span{display:block}.box.near{outline:2px solid #1f6feb}
.picture path{fill:none;stroke:var(--edge);stroke-width:1.2}.picture path.l1{opacity:.45}.picture path.l2{stroke:#d2691e;stroke-dasharray:4 3}
.picture path.l3{stroke:#3b73f0}.picture path.near{stroke:#1f6feb;stroke-width:2.4;opacity:1}
.legend{font-size:.8rem;color:var(--soft)}.legend span{margin-right:1rem;white-space:nowrap}
i{display:inline-block;width:.9rem;height:.9rem;border-radius:.2rem;border:1px solid #5f6b7680;vertical-align:-.1rem;margin-right:.35rem}
.bar{display:flex;height:1.6rem;border-radius:.4rem;overflow:hidden;margin:.2rem 0 .7rem;background:var(--panel)}.bar div{min-width:1px}
</style>
)";

// Edges run from the bottom of a box to the top of another; a box that is pointed at shows its own.
constexpr const char* kScript = R"(<script>
for (const p of document.querySelectorAll('.picture')) {
  const svg = p.querySelector('svg'), boxes = {};
  for (const b of p.querySelectorAll('.box')) boxes[b.dataset.box] = b;
  const edges = p.dataset.edges.split(' ').filter(e => e).map(e => e.split(','));
  const draw = () => {
    const o = p.getBoundingClientRect();
    if (!o.width) return;
    svg.setAttribute('width', 0), svg.setAttribute('height', 0), svg.replaceChildren();
    svg.setAttribute('width', p.scrollWidth), svg.setAttribute('height', p.scrollHeight);
    for (const [from, to, line] of edges) {
      const a = boxes[from].getBoundingClientRect(), b = boxes[to].getBoundingClientRect();
      const side = Math.abs(a.top - b.top) < 4, down = a.top < b.top, s = p.scrollLeft;
      const x = side ? (a.left < b.left ? a.right : a.left) - o.left + s : (a.left + a.right) / 2 - o.left + s;
      const y = side ? (a.top + a.bottom) / 2 - o.top : (down ? a.bottom : a.top) - o.top;
      const u = side ? (a.left < b.left ? b.left : b.right) - o.left + s : (b.left + b.right) / 2 - o.left + s;
      const v = side ? (b.top + b.bottom) / 2 - o.top : (down ? b.top : b.bottom) - o.top;
      const m = side ? 0 : Math.min(60, Math.abs(v - y) / 2) * (down ? 1 : -1);
      const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      path.setAttribute('d', `M${x} ${y}C${x} ${y + m} ${u} ${v - m} ${u} ${v}`);
      path.setAttribute('class', 'l' + line), path.dataset.from = from, path.dataset.to = to;
      svg.append(path);
    }
  };
  const near = (b, on) => {
    for (const e of svg.children)
      if (e.dataset.from === b || e.dataset.to === b)
        for (const x of [e, boxes[e.dataset.from], boxes[e.dataset.to]]) x.classList.toggle('near', on);
  };
  for (const b in boxes) boxes[b].onmouseenter = () => near(b, true), boxes[b].onmouseleave = () => near(b, false);
  new ResizeObserver(draw).observe(p);
}
</script>
)";

std::string name_html(const std::string& name) { return html_escaped(escaped(name)); }

// A part of the page, or why there is none.
std::string section(const std::string& title, bool open, const std::function<std::string()>& body) {
  std::string inner;
  try {
    inner = body();
  } catch (const Error& e) {
    inner = "<p>" + html_escaped(e.what()) + "</p>";
  }
  return std::string(open ? "<details open>" : "<details>") + "<summary>" + html_escaped(title) +
         "</summary>" + inner + "</details>\n";
}

std::string card_html(const Json& card) {
  std::string html = "<h1>" + name_html(card["model"].get<std::string>()) + "</h1>\n<dl>";
  for (const auto& [what, fact] : card_lines(card))
    html += "<dt>" + html_escaped(what) + "</dt><dd>" + html_escaped(fact) + "</dd>";
  return html + "</dl>\n";
}

std::string weights_html(Inspection& inspection) {
  Json weights = weights_json(inspection)["ranks"][0]["weights"];
  std::sort(weights.begin(), weights.end(),
            [](const auto& a, const auto& b) { return a["bytes"] > b["bytes"]; });
  std::string html =
      "<div class=scroll><table><tr><th>name</th><th>shape</th><th>type</th><th>layout</th><th>on rank "
      "0</th></tr>";
  for (std::size_t i = 0; i < std::min(weights.size(), kMostWeights); ++i) {
    const Json& w = weights[i];
    html += "<tr><td>" + name_html(w["name"].get<std::string>()) + "</td><td>" +
            html_escaped(w["dims"].dump()) + "</td><td>" + html_escaped(w["dtype"].get<std::string>()) +
            "</td><td>" + html_escaped(w["layout"].get<std::string>()) + "</td><td class=n>" +
            size_text(w["bytes"].get<int64_t>()) + "</td></tr>";
  }
  html += "</table></div>";
  if (weights.size() > kMostWeights)
    html += "<p>and " + std::to_string(weights.size() - kMostWeights) + " smaller ones</p>";
  return html;
}

// Of each rank a bar: what it holds, with the keys and values of one full sequence.
std::string memory_html(const Json& card) {
  if (!card.contains("ranks")) return "<p>known of recognised decoders only</p>";
  const std::pair<const char*, Family> parts[] = {{"weights", Family::kProduct},
                                                  {"activations", Family::kPointwise},
                                                  {"kv_of_a_full_sequence", Family::kAttention}};
  std::string html;
  for (std::size_t r = 0; r < card["ranks"].size(); ++r) {
    std::string bar, text;
    for (const auto& [name, family] : parts) {
      const auto bytes = card["ranks"][r][name].get<int64_t>();
      std::string words = name;
      std::replace(words.begin(), words.end(), '_', ' ');
      const std::string fill = std::string("background:") + look_of(family).fill;
      bar += "<div style=\"" + fill + ";flex:" + std::to_string(bytes) + " 0 0\"></div>";
      text += "<span><i style=\"" + fill + "\"></i>" + words + " " + size_text(bytes) + "</span>";
    }
    html +=
        "<p class=legend>rank " + std::to_string(r) + "  " + text + "</p><div class=bar>" + bar + "</div>";
  }
  return html;
}

std::string stage_html(const InspectStage& stage, Inspection& inspection) {
  const std::string text = stage.text(inspection);
  const bool is_cut = text.size() > kMostText;
  return "<pre>" + html_escaped(std::string_view(text).substr(0, kMostText)) + "</pre>" +
         (is_cut ? "<p>The start of it; ark-inspect --stage " + std::string(stage.name) + " prints all.</p>"
                 : "");
}

}  // namespace

std::string html_page(Inspection& inspection) {
  const Json card = model_card(inspection);
  std::string html = kHead;
  html += "<title>" + name_html(card["model"].get<std::string>()) + " · ark</title>\n" + card_html(card);
  for (const InspectStage& stage : inspect_stages())
    if (stage.picture && std::string_view(stage.name) == "recognise")
      html += section("Graph", true, [&] { return html_picture(stage.picture(inspection)); });
  html += section("Memory", true, [&] { return memory_html(card); });
  html += section("Weights", false, [&] { return weights_html(inspection); });
  html += section("Plan: what each rank holds and sends", false,
                  [&] { return html_picture(plan_picture(inspection)); });
  html +=
      section("Program: phases and waits", false, [&] { return html_picture(program_picture(inspection)); });
  for (const InspectStage& stage : inspect_stages())
    html += section(std::string("Stage ") + stage.name, false, [&] { return stage_html(stage, inspection); });
  return html + kScript;
}

}  // namespace ark
