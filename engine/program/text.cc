// Longer than most: what writes a line and what reads it stand side by side, so that none is changed alone.
#include "engine/program/text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/program/attribute_text.h"
#include "engine/program/opcodes.h"
#include "engine/program/text_cursor.h"

namespace ark {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"weight", "act",   "kv_page", "io",
                                                    "inbox",  "input", "output"};
constexpr std::array<std::string_view, 6> kEpilogues = {"bias", "residual", "relu",
                                                        "silu", "gelu",     "gelu_tanh"};
constexpr std::array<std::string_view, 4> kPrecisions = {"f32", "bf16", "bf16_tiles", "int8"};

// A list with ", " between its items.
template <typename Items, typename F>
std::string join(const Items& items, F&& text) {
  std::string result;
  for (const auto& item : items) result += (result.empty() ? "" : ", ") + text(item);
  return result;
}
std::string number(int64_t n) { return std::to_string(n); }
// " name=SIGIL index", nothing for kNone.
std::string field(std::string_view name, char sigil, int32_t index) {
  return index == kNone ? "" : " " + std::string(name) + "=" + sigil + number(index);
}

std::string range_text(const Range& r) { return number(r.begin) + ":" + number(r.end); }

std::string step_text(const PointwiseStep& s) {
  if (s.op == Op::kIdentity && s.input != kNone) return "load " + number(s.input);
  std::string text = s.op == Op::kConstantOfShape ? "const" : std::string(name_of(s.op));
  for (const int32_t r : {s.a, s.b, s.c}) {
    if (r != kNone) text += " " + number(r);
  }
  if (s.p != 0 || s.q != 0) text += " p=" + real_text(s.p) + " q=" + real_text(s.q);
  return text;
}

std::string wait_text(const Wait& w) {
  if (w.kind == WaitKind::kArrived) return "arrived ~" + number(w.channel);
  if (w.kind == WaitKind::kCredit) return "credit ~" + number(w.channel);
  return number(w.phase) + (w.trip_offset != 0 ? "@" + number(w.trip_offset) : "");
}

std::string operand_text(const Operand& o) {
  if (o.slot != kNone) return "." + number(o.slot);
  return o.buffer == kNone ? "-" : "%" + number(o.buffer);
}

std::string buffer_text(const Program& p, const Binding& binding, std::size_t i) {
  const Buffer& b = p.buffers[i];
  std::string text = "buffer %" + number(static_cast<int64_t>(i)) + " " + std::string(name_of(b.kind)) + " " +
                     std::string(name_of(b.dtype)) + " [" +
                     join(b.dims, [](ValId v) { return "$" + number(v); }) + "]";
  if (i < binding.offsets.size() && binding.offsets[i] >= 0) text += " @" + number(binding.offsets[i]);
  text += field("weight", '^', b.weight) + field("cache", '#', b.cache) + field("channel", '~', b.channel) +
          field("alias", '%', b.alias) + (b.is_value ? " values" : "");
  return text + " " + quote(b.name) + "\n";
}

constexpr std::pair<BlockTerms, const char*> kTermsNames[] = {{BlockTerms::kOffsets16, "offsets16"},
                                                              {BlockTerms::kOffsets, "offsets"},
                                                              {BlockTerms::kScales16, "scales16"}};

std::string terms_text(BlockTerms terms) {
  for (const auto& [kind, name] : kTermsNames)
    if (kind == terms) return std::string(" ") + name;
  return "";
}

std::string weight_text(const WeightUse& w) {
  return "constant=" + number(w.constant) +
         (w.layout == Layout::kRaw ? " raw" : " panels=" + number(w.panel)) +
         (w.block == 0 ? "" : " block=" + number(w.block)) + terms_text(w.terms) +
         (w.transposed ? " transposed " : " ") + std::string(name_of(w.stored)) + " [" +
         join(w.ranges, range_text) + "]";
}

std::string phase_text(const Phase& p, std::size_t i) {
  std::string text = "phase " + number(static_cast<int64_t>(i)) + " !" + number(p.variant) + " (" +
                     join(p.operands, operand_text) + ")" + field("grid", '$', p.grid) +
                     field("channel", '~', p.channel);
  if (!p.waits.empty()) text += " wait [" + join(p.waits, wait_text) + "]";
  return text + " " + quote(p.name) + "\n";
}

std::string repeat_text(const Repeat& r, std::size_t i) {
  std::string text = "repeat *" + number(static_cast<int64_t>(i)) + " first=" + number(r.first) +
                     " count=" + number(r.count) + " trips=" + number(r.trips) + "\n";
  for (const auto& row : r.table) {
    text += "trip [" + join(row, [](BufferId b) { return b == kNone ? "-" : "%" + number(b); }) + "]\n";
  }
  return text;
}

// -- reading

template <std::size_t N>
int find(const std::array<std::string_view, N>& names, TextCursor& c, const std::string& word) {
  const auto it = std::find(names.begin(), names.end(), word);
  if (it == names.end()) c.fail("unknown word " + quote(word));
  return static_cast<int>(it - names.begin());
}

// "SIGIL index".
int32_t reference(TextCursor& c, std::string_view sigil) {
  c.expect(sigil);
  return c.index();
}
// Must be the next index of its section.
void expect_next(TextCursor& c, std::string_view sigil, std::size_t next) {
  if (!sigil.empty()) c.expect(sigil);
  if (c.integer() != static_cast<int64_t>(next)) c.fail("records of a section are numbered 0, 1, ...");
}
int32_t optional_field(TextCursor& c, std::string_view name) { return c.accept(name) ? c.index() : kNone; }

DType read_dtype(TextCursor& c) {
  const DType type = dtype_from_name(c.word());
  if (type == DType::kUndefined) c.fail("unknown element type before");
  return type;
}

PointwiseStep read_step(TextCursor& c) {
  PointwiseStep s;
  const std::string name = c.word();
  if (name == "load") {
    s.input = c.index();
    return s;
  }
  s.op = name == "const" ? Op::kConstantOfShape : op_from_name(name);
  if (s.op == Op::kCount) c.fail("unknown operator before");
  for (int32_t* r : {&s.a, &s.b, &s.c}) {
    if (!c.peek(";") && !c.peek("]") && !c.peek("p=")) *r = c.index();
  }
  if (c.accept("p=")) {
    s.p = static_cast<float>(c.real());
    c.expect("q=");
    s.q = static_cast<float>(c.real());
  }
  return s;
}

OpCode read_opcode(TextCursor& c) {
  const std::string word = c.word();
  for (const OpCodeInfo& info : all_opcodes()) {
    if (info.name == word) return info.code;
  }
  c.fail("unknown word " + quote(word));
}

Variant read_variant(TextCursor& c) {
  Variant v;
  v.code = read_opcode(c);
  if (v.code == OpCode::kGeneric || v.code == OpCode::kRowwise) {
    v.op = op_from_name(c.word());
    if (v.op == Op::kCount) c.fail("unknown operator before");
    if (v.code == OpCode::kGeneric) {
      c.expect("outputs=");
      v.outputs = c.index();
    }
  }
  if (c.accept("slabs=")) c.list([&] { v.recipe.slabs.push_back(c.index()); });
  if (c.accept("precision=")) v.precision = static_cast<Precision>(find(kPrecisions, c, c.word()));
  if (c.accept("epilogue=")) {
    std::string words = c.word() + "|";
    for (std::size_t end; (end = words.find('|')) != std::string::npos; words.erase(0, end + 1)) {
      v.epilogue |= 1u << find(kEpilogues, c, words.substr(0, end));
    }
  }
  if (c.accept("steps=")) c.list([&] { v.pointwise.push_back(read_step(c)); }, ";");
  if (c.peek("{")) v.attributes = read_attributes(c);
  if (const std::string problem = variant_problem(v); !problem.empty())
    c.fail(std::string(name_of(v.code)) + " " + problem);
  return v;
}

Buffer read_buffer(TextCursor& c, int64_t& offset) {
  Buffer b;
  b.kind = static_cast<BufferKind>(find(kKinds, c, c.word()));
  b.dtype = read_dtype(c);
  c.list([&] { b.dims.push_back(reference(c, "$")); });
  offset = c.accept("@") ? c.integer() : -1;
  b.weight = optional_field(c, "weight=^");
  b.cache = optional_field(c, "cache=#");
  b.channel = optional_field(c, "channel=~");
  b.alias = optional_field(c, "alias=%");
  b.is_value = c.accept("values");
  b.name = c.quoted();
  return b;
}

WeightUse read_weight(TextCursor& c) {
  WeightUse w;
  c.expect("constant=");
  w.constant = c.index();
  if (c.accept("panels=")) {
    w.layout = Layout::kPanels;
    w.panel = c.index();
  } else {
    c.expect("raw");
  }
  if (c.accept("block=")) w.block = c.index();
  for (const auto& [kind, name] : kTermsNames) {
    if (!c.accept(name)) continue;
    w.terms = kind;
    break;
  }
  w.transposed = c.accept("transposed");
  w.stored = read_dtype(c);
  c.list([&] {
    const int64_t begin = c.integer();
    c.expect(":");
    w.ranges.push_back({begin, c.integer()});
  });
  return w;
}

Channel read_channel(TextCursor& c) {
  Channel channel;
  channel.outgoing = c.accept("out");
  if (!channel.outgoing) c.expect("in");
  c.expect("peer=");
  channel.peer = c.index();
  channel.link = c.accept("posted") ? Link::kPosted : Link::kDirect;
  if (channel.link == Link::kDirect) c.expect("direct");
  c.expect("bytes=");
  channel.bytes = c.integer();
  channel.name = c.quoted();
  return channel;
}

Wait read_wait(TextCursor& c) {
  if (c.accept("arrived")) return {.kind = WaitKind::kArrived, .channel = reference(c, "~")};
  if (c.accept("credit")) return {.kind = WaitKind::kCredit, .channel = reference(c, "~")};
  Wait w{.phase = c.index()};
  if (c.accept("@")) w.trip_offset = c.index();
  return w;
}

Phase read_phase(TextCursor& c) {
  Phase p;
  p.variant = reference(c, "!");
  c.expect("(");
  while (!c.accept(")")) {
    Operand o;
    if (c.accept("."))
      o.slot = c.index();
    else if (!c.accept("-"))
      o.buffer = reference(c, "%");
    p.operands.push_back(o);
    if (!c.accept(",") && !c.peek(")")) c.fail("expected ',' or ')'");
  }
  p.grid = optional_field(c, "grid=$");
  p.channel = optional_field(c, "channel=~");
  if (c.accept("wait")) c.list([&] { p.waits.push_back(read_wait(c)); });
  p.name = c.quoted();
  return p;
}

class Reader {
 public:
  std::pair<Program, Binding> read(std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      TextCursor c(text.substr(0, end), number);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (c.done() || c.peek("#")) continue;
      record(c);
      if (!c.done()) c.fail("not expected");
    }
    set_repeats();
    return {std::move(p_), std::move(b_)};
  }

 private:
  void record(TextCursor& c) {
    if (c.accept("program ")) return header(c);
    if (c.accept("val ")) {
      expect_next(c, "$", p_.vals.size());
      c.expect("max=");
      const int64_t max = c.integer();
      c.expect("=");
      p_.vals.push_back({c.expression("\n"), max});
    } else if (c.accept("buffer ")) {
      expect_next(c, "%", p_.buffers.size());
      p_.buffers.push_back(read_buffer(c, b_.offsets.emplace_back()));
    } else if (c.accept("weight ")) {
      expect_next(c, "^", p_.weights.size());
      p_.weights.push_back(read_weight(c));
    } else if (c.accept("channel ")) {
      expect_next(c, "~", p_.channels.size());
      p_.channels.push_back(read_channel(c));
    } else if (c.accept("variant ")) {
      expect_next(c, "!", p_.variants.size());
      p_.variants.push_back(read_variant(c));
    } else if (c.accept("repeat ")) {
      repeat(c);
    } else if (c.accept("trip ")) {
      if (p_.repeats.empty()) c.fail("a trip before its repeat");
      std::vector<BufferId>& row = p_.repeats.back().table.emplace_back();
      c.list([&] { row.push_back(c.accept("-") ? kNone : reference(c, "%")); });
    } else if (c.accept("phase ")) {
      expect_next(c, "", p_.phases.size());
      p_.phases.push_back(read_phase(c));
    } else {
      c.fail("unknown record");
    }
  }

  void header(TextCursor& c) {
    c.expect("rank=");
    p_.rank = c.index();
    c.expect("ranks=");
    p_.ranks = c.index();
    p_.token_ids = optional_field(c, "token_ids=%");
    p_.positions = optional_field(c, "positions=%");
    p_.logits = optional_field(c, "logits=%");
    c.expect("act_bytes=");
    b_.act_bytes = c.integer();
    c.expect("inbox_bytes=");
    b_.inbox_bytes = c.integer();
  }

  void repeat(TextCursor& c) {
    expect_next(c, "*", p_.repeats.size());
    Repeat r;
    c.expect("first=");
    r.first = c.index();
    c.expect("count=");
    r.count = c.index();
    c.expect("trips=");
    r.trips = c.index();
    p_.repeats.push_back(std::move(r));
  }

  void set_repeats() {
    for (std::size_t r = 0; r < p_.repeats.size(); ++r) {
      for (int32_t i = 0; i < p_.repeats[r].count; ++i) {
        const auto phase = static_cast<std::size_t>(p_.repeats[r].first) + static_cast<std::size_t>(i);
        if (phase >= p_.phases.size())
          throw Error(Code::kInvalidArgument, "plan: a repeat passes the last phase");
        p_.phases[phase].repeat = static_cast<int32_t>(r);
      }
    }
  }

  Program p_;
  Binding b_;
};

}  // namespace

std::string_view name_of(BufferKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

std::string_view name_of(Precision precision) { return kPrecisions.at(static_cast<std::size_t>(precision)); }

std::string epilogue_text(uint32_t epilogue) {
  std::string text;
  for (std::size_t i = 0; i < kEpilogues.size(); ++i) {
    if (epilogue >> i & 1) text += (text.empty() ? "" : "|") + std::string(kEpilogues[i]);
  }
  return text;
}

std::string variant_text(const Variant& v) {
  std::string text(name_of(v.code));
  if (v.code == OpCode::kGeneric || v.code == OpCode::kRowwise) text += " " + std::string(name_of(v.op));
  if (v.code == OpCode::kGeneric) text += " outputs=" + number(v.outputs);
  if (!v.recipe.slabs.empty()) text += " slabs=[" + join(v.recipe.slabs, number) + "]";
  if (v.precision != Precision::kF32) text += " precision=" + std::string(name_of(v.precision));
  if (v.epilogue != 0) text += " epilogue=" + epilogue_text(v.epilogue);
  if (!v.pointwise.empty()) {
    text += " steps=[";
    for (std::size_t i = 0; i < v.pointwise.size(); ++i) text += (i ? "; " : "") + step_text(v.pointwise[i]);
    text += "]";
  }
  if (!v.attributes.values().empty()) text += " " + attributes_text(v.attributes);
  return text;
}

std::string program_text(const Program& p, const Binding& binding) {
  std::string text = "program rank=" + number(p.rank) + " ranks=" + number(p.ranks) +
                     field("token_ids", '%', p.token_ids) + field("positions", '%', p.positions) +
                     field("logits", '%', p.logits) + " act_bytes=" + number(binding.act_bytes) +
                     " inbox_bytes=" + number(binding.inbox_bytes) + "\n";
  const auto numbered = [&](std::string_view record, char sigil, std::size_t i) {
    text += std::string(record) + " " + sigil + number(static_cast<int64_t>(i)) + " ";
  };
  for (std::size_t i = 0; i < p.vals.size(); ++i) {
    numbered("val", '$', i);
    text += "max=" + number(p.vals[i].max) + " = " + p.vals[i].e.str() + "\n";
  }
  for (std::size_t i = 0; i < p.buffers.size(); ++i) text += buffer_text(p, binding, i);
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    numbered("weight", '^', i);
    text += weight_text(p.weights[i]) + "\n";
  }
  for (std::size_t i = 0; i < p.channels.size(); ++i) {
    const Channel& c = p.channels[i];
    numbered("channel", '~', i);
    text += std::string(c.outgoing ? "out" : "in") + " peer=" + number(c.peer) +
            (c.link == Link::kDirect ? " direct" : " posted") + " bytes=" + number(c.bytes) + " " +
            quote(c.name) + "\n";
  }
  for (std::size_t i = 0; i < p.variants.size(); ++i) {
    numbered("variant", '!', i);
    text += variant_text(p.variants[i]) + "\n";
  }
  for (std::size_t i = 0; i < p.repeats.size(); ++i) text += repeat_text(p.repeats[i], i);
  for (std::size_t i = 0; i < p.phases.size(); ++i) text += phase_text(p.phases[i], i);
  return text;
}

std::pair<Program, Binding> parse_program(std::string_view text) { return Reader().read(text); }

}  // namespace ark
