#include "engine/cuda/cost/work.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/rowwise_host.h"
#include "engine/cuda/cost/work_parts.h"
#include "engine/program/kv_codec.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda::cost {
namespace {

OpCode code_of(const StepTables& t, const Instance& i) {
  const Program& p = t.program();
  return p.variants[p.phases[i.phase].variant].code;
}

// Whether a norm adds up what the tiles of the product before it share.
bool takes_up(const StepTables& t, const Instance& i) {
  return i.stream.partials != 0 &&
         StreamTiles(i.stream, t.size(i.stream.m), t.machine().tiles.row_block).groups > 1;
}

// ---- rows and tokens: bodies/rows.h, bodies/append.h

// Where ranks share the table: of one that has the rows of all tokens.
Work embed(const StepTables& t, const Instance& i, Tiles tiles) {
  Work row = loads(1);
  row += at_once(4, t.size(i.embed.width), true);
  return row.times(tiles.last - tiles.first);
}

// Scales and biases are asked for before the wait.
Work norm(const StepTables& t, const Instance& i, Tiles tiles) {
  const std::string& type = t.variant(i).type;
  const bool rms = type.starts_with("Norm<true"), is_split = !type.ends_with("float>"),
             has_bias = i.norm.bias != 0;
  const int32_t held = rms ? 8 : 4, n = t.size(i.norm.width), parts = up(n, int64_t{held} * kConsumers);
  const int32_t passes = rms ? 2 : 3, each = std::min(held, turns(n));
  Work row;
  if (takes_up(t, i)) {
    const int32_t rounds = up(n, 4 * kConsumers);
    row = loads(rounds + (parts == 1 ? 0 : parts));
    row += barriers(1);
    row.cycles = rounds * (kCall + 100 + 4 * 60.0);
  } else {
    row = loads(parts == 1 ? 1 : parts * passes);
  }
  if (rms && has_bias) row += loads(parts * each);
  row += barriers((rms ? 1 : 2) + (is_split && parts > 1 ? parts : 0));
  row.cycles += (rms ? 1 : 2) * (kWarpSum + 100) + 2 * kCall + passes * parts * each * 20;
  Work all = row.times(tiles.last - tiles.first);
  all.barriers += static_cast<int32_t>(tiles.last - tiles.first) - 1;
  return all;
}

Work row_operator(const StepTables& t, const Instance& i, Tiles tiles) {
  const Program& p = t.program();
  const int32_t each = up(t.size(i.rowwise.width), 32),
                passes = rowwise::row_of(p.variants[p.phases[i.phase].variant].op)->passes;
  Work row = loads(passes * each);
  row.cycles = (passes - 1) * kWarpSum + passes * each * kLoopTurn;
  return row.times(up(tiles.last - tiles.first, kConsumerWarps));
}

Work rotary(const StepTables& t, const Instance& i, Tiles tiles) {
  const RotaryArguments& a = i.rotary;
  const int64_t pairs = t.size(a.turned.dim) - t.size(a.turned.pairs);
  Work token = loads(1);
  token += element_loop(t.size(a.heads) * pairs);
  token.cycles += turns(t.size(a.heads) * pairs) * 2 * kCall;
  return token.times(tiles.last - tiles.first);
}

// How pages hold keys and values: bodies/kv.h.
KvFormat kv_format(const StepTables& t, const Instance& i, std::size_t pages) {
  const Program& p = t.program();
  const Phase& phase = p.phases[i.phase];
  return kv_codec_of(p.buffers[resolve(p, phase, phase.operands[pages], i.trip)].dtype)->format;
}
int32_t elements_at_once(const KvFormat& format) {
  return 32 / format.bits;
}  // that a lane stores, or loads of a value

// Where there are scales a warp takes a head: its largest number first.
Work scaled_head(int32_t dim, int32_t pack) {
  Work head = loads(up(dim, 32) + up(dim, 32 * pack));
  head.cycles = head.loads * kLoopTurn + kWarpSum + 2 * kCall;
  return head;
}

Work kv_append(const StepTables& t, const Instance& i, Tiles tiles) {
  const KvFormat format = kv_format(t, i, 2);
  const KvAppendArguments& a = i.kv_append;
  const int32_t heads = t.size(a.heads), pack = elements_at_once(format);
  Work token = loads(1);
  const int32_t key = t.size(a.dims[kOfKeys]), value = t.size(a.dims[kOfValues]);
  if (format.has_scales()) {
    for (const int32_t dim : {key, value}) token += scaled_head(dim, pack).times(up(heads, kConsumerWarps));
  } else {
    const int64_t packs = int64_t{heads} * (key + value) / pack;
    token += at_once(4, packs);
    token.cycles += turns(packs) * kCall;
  }
  return token.times(tiles.last - tiles.first);
}

// Keys and values come through scratch, where nobody waits for loads.
Work rotary_append(const StepTables& t, const Instance& i, Tiles tiles) {
  const KvFormat format = kv_format(t, i, 7);
  const RotaryAppendArguments& a = i.rotary_append;
  const int32_t heads = t.size(a.heads), kv_heads = t.size(a.kv_heads), key = t.size(a.turned.dim),
                value = t.size(a.value_dim), pairs = key - t.size(a.turned.pairs),
                pack = elements_at_once(format);
  Work all;
  for (int64_t tile = tiles.first; tile < tiles.last; ++tile) {
    const auto head = static_cast<int32_t>(tile % kv_heads);
    const int32_t queries = heads * (head + 1) / kv_heads - heads * head / kv_heads;
    Work one = loads(1);
    one += element_loop(int64_t{queries + 1} * pairs + value);
    one.cycles += 4 * kCall + one.loads * kCall;
    one += barriers(tile + 1 < tiles.last ? 2 : 1);
    one.cycles += format.has_scales() ? scaled_head(std::max(key, value), pack).cycles : 2 * kLoopTurn;
    all += one;
  }
  return all;
}

Work select_rows(const StepTables& t, const Instance& i, Tiles tiles) {
  Work row = loads(1);
  row += at_once(4, t.size(i.select_rows.width));
  Work all = row.times(tiles.last - tiles.first);
  return all += loads(1);
}

// ---- attention: bodies/attention.h

struct AttentionShape {
  KvFormat format;
  int32_t key, value;                    // elements of a head
  int32_t keys_at_once, values_at_once;  // of 32, whose loads are under way together
};
AttentionShape attention_shape(const StepTables& t, const Instance& i) {
  const Program& p = t.program();
  const Phase& phase = p.phases[i.phase];
  const auto dim = [&](std::size_t operand) {
    return static_cast<int32_t>(
        p.vals[p.buffers[resolve(p, phase, phase.operands[operand], i.trip)].dims[3]].max);
  };
  AttentionShape s{kv_format(t, i, 1), dim(1), dim(2), 0, 0};
  const int32_t pack = elements_at_once(s.format), quarters = up(s.key, 32), packs = up(s.value, 32 * pack);
  s.keys_at_once = 4 * (quarters > 4 ? 1 : quarters > 2 ? 2 : s.format.bits < 32 ? 8 : 4);
  s.values_at_once = packs > 4 ? 4 : packs > 2 || (pack > 1 && packs * pack > 2) ? 8 : 16;
  return s;
}

// A warp's 32 keys, of which `keys` are there, for `rows` rows.
Work attend(const AttentionShape& s, int32_t keys, int32_t rows, bool has_slopes, bool is_near) {
  const int32_t rounds = up(keys, s.keys_at_once) + up(keys, s.values_at_once);
  Work w = is_near ? loads(1 + rounds) : loads(1, rounds);
  if (has_slopes) w += loads(2 * rows);
  w.cycles = rows * (up(keys, 4) * 30.0 + 2 * kWarpSum + 100 + keys * 6.0) + 200;
  return w;
}

const AttentionItem& item_of(const StepTables& t, const Instance& i, int64_t tile) {
  return t.items()[at(tile / t.splits() / t.size_at(i, 1))];
}

// prefetch_tile(): the item, and a warp's page, if it has a key.
Work prefetch_tile(const StepTables& t, const Instance& i, int64_t tile) {
  const AttentionItem& item = item_of(t, i, tile);
  const int32_t window = t.size_at(i, 3), newest = item.position + item.count - 1,
                oldest = window > 0 ? item.position - window + 1 : 0;
  const auto begin = static_cast<int32_t>(tile % t.splits()) * t.split_keys();
  bool has_key = false;
  for (int32_t first = begin; first < begin + kAttentionBlock; first += 32)
    has_key = has_key || (first <= newest && first + 32 > oldest);
  Work w = loads(1 + has_key);
  w.cycles = 3 * kCall;
  return w;
}

Work attention(const StepTables& t, const Instance& i, Tiles tiles) {
  const AttentionShape s = attention_shape(t, i);
  const int32_t heads = t.size_at(i, 1), group_all = t.size_at(i, 0) / heads, window = t.size_at(i, 3);
  const bool has_slopes = i.operands[3] != 0, has_sinks = i.operands[4] != 0;
  Work all;
  for (int64_t tile = tiles.first; tile < tiles.last; ++tile) {
    const AttentionItem& item = item_of(t, i, tile);
    const int32_t rows = item.count * group_all,
                  begin = static_cast<int32_t>(tile % t.splits()) * t.split_keys();
    Work one = loads(1);  // the item, and beside it the heads
    one.cycles = 3 * kCall;
    for (int32_t row0 = 0; row0 < rows; row0 += 4) {
      const int32_t count = std::min(4, rows - row0);
      one += loads(2 * turns(int64_t{count} * s.key));
      one += barriers(1);
      const int32_t newest = item.position + (row0 + count - 1) / group_all,
                    oldest = window > 0 ? item.position + row0 / group_all - window + 1 : 0,
                    end = std::min(begin + t.split_keys(), newest + 1);
      for (int32_t first = begin; first < end; first += kAttentionBlock) {  // warp 0: it has the most
        if (first + 32 <= oldest) continue;
        const bool is_near = first == begin && tile < tiles.first + kTilesAhead;
        one += attend(s, std::min(32, end - first), count, has_slopes, is_near);
      }
      one.bytes +=
          int64_t{std::max(0, end - std::max(begin, oldest))} * (s.key + s.value) * s.format.bits / 8;
      one += barriers(2);
      one += loads(turns(int64_t{count} * s.value) * (1 + has_sinks));
      one.cycles += turns(int64_t{count} * s.value) * 500.0;
    }
    all += one;
  }
  return all;
}

// ---- elements and messages: bodies/pointwise.h

Work pointwise(const StepTables& t, const Instance& i, Tiles tiles) {
  const int64_t elements = std::min<int64_t>(tiles.last * kElementTile, t.product(i.pointwise.elements)) -
                           tiles.first * kElementTile;
  const Program& p = t.program();
  const auto inputs = p.phases[i.phase].operands.size() - 1;
  int32_t tables = 0;
  for (std::size_t n = 0; n < inputs; ++n) tables += i.pointwise.placements[n] == kByTable;
  Work turn = loads(1 + 4 * tables);
  turn.cycles = kLoopTurn +
                20.0 * static_cast<double>(p.variants[p.phases[i.phase].variant].pointwise.size()) +
                tables * 4 * kCall;
  return turn.times(turns(elements));
}

Work send(const StepTables& t, const Instance& i, Tiles tiles) {
  const int64_t all = t.product(i.send.elements) * 4;
  return at_once(
      8,
      (std::min<int64_t>(tiles.last * kSendTile, all) - std::min<int64_t>(tiles.first * kSendTile, all)) / 4);
}

Work recv_reduce(const StepTables& t, const Instance& i, Tiles tiles) {
  return at_once(4, std::min<int64_t>(tiles.last * kElementTile, t.product(i.reduce.elements)) -
                        tiles.first * kElementTile);
}

Work recv_concat(const StepTables& t, const Instance& i, Tiles tiles) {
  Work row;
  for (int r = 0; r < t.program().ranks; ++r) row += at_once(4, t.size(i.concat.part_widths[r]));
  return row.times(tiles.last - tiles.first);
}

// Parts of rows: bodies/rows.h.
Work copy(const StepTables& t, const Instance& i, Tiles tiles) {
  Work all;
  const Program& p = t.program();
  for (int o = 0; o < p.variants[p.phases[i.phase].variant].outputs; ++o) {
    const int64_t elements = t.product(i.copy.rows) * t.size(i.copy.taken[o].width);
    all += element_loop(std::min<int64_t>(tiles.last * kElementTile, elements) - tiles.first * kElementTile);
    all.cycles += 2 * kCall;
  }
  return all;
}

// Greedy: the best token of a row.
Work sample(const StepTables& t, const Instance& i, Tiles tiles) {
  const int32_t vocabulary = t.size(i.sample.vocabulary), passes = up(up(vocabulary, 4), 8 * kConsumers);
  Work row = loads(2 + passes + 2);  // at the best a thread looks once more
  row += barriers(3);
  row.cycles = passes * (32 * 6.0 + 100) + 32 * 25 + 2 * kWarpSum + 8 * 40 + 400;
  return row.times(tiles.last - tiles.first);
}

struct Row {
  OpCode code;
  Work (*work)(const StepTables&, const Instance&, Tiles);
};
constexpr Row kBodies[] = {
    {OpCode::kGeneric, copy},
    {OpCode::kPointwise, pointwise},
    {OpCode::kEmbed, embed},
    {OpCode::kNorm, norm},
    {OpCode::kRowwise, row_operator},
    {OpCode::kRotary, rotary},
    {OpCode::kKvAppend, kv_append},
    {OpCode::kAttention, attention},
    {OpCode::kSelectRows, select_rows},
    {OpCode::kRotaryAppend, rotary_append},
    {OpCode::kSend, send},
    {OpCode::kRecvReduce, recv_reduce},
    {OpCode::kRecvConcat, recv_concat},
    {OpCode::kSendRows, send},
    {OpCode::kRecvRows, recv_reduce},
    {OpCode::kSample, sample},
};

}  // namespace

Work& Work::operator+=(const Work& other) {
  loads += other.loads, fences += other.fences, atomics += other.atomics, barriers += other.barriers;
  far += other.far, cold += other.cold, cycles += other.cycles, bytes += other.bytes, shared += other.shared;
  return *this;
}

Work Work::times(int64_t n) const {
  Work all;
  const auto count = static_cast<int32_t>(n);
  all.loads = loads * count, all.fences = fences * count, all.atomics = atomics * count,
  all.barriers = barriers * count, all.far = far * count, all.cold = cold * count;
  all.cycles = cycles * static_cast<double>(n), all.bytes = bytes * n, all.shared = shared * n;
  return all;
}

i64 grid_of(const StepTables& t, const Instance& i) {
  switch (code_of(t, i)) {
    case OpCode::kMatMul:
    case OpCode::kGatedMatMul:
      return StreamTiles(i.stream, t.size(i.stream.m), t.machine().tiles.row_block).grid;
    case OpCode::kAttention:
      return i64{t.size(i.grid)} * t.splits();
    case OpCode::kGeneric: {
      const Program& p = t.program();
      i64 most = 0;
      for (int o = 0; o < p.variants[p.phases[i.phase].variant].outputs; ++o)
        most = std::max(most, i64{t.size(i.copy.taken[o].width)});
      return (t.product(i.copy.rows) * most + kElementTile - 1) / kElementTile;
    }
    default:
      return t.size(i.grid);
  }
}

Part part_of(const StepTables& t, const Instance& i, i64 grid, int32_t processor) {
  const int32_t processors = t.machine().processors;
  const int place = place_from(processor, i.base, processors);
  return {dealt(grid, place, processors), raises_of(grid, place, processors, i.messages > 0)};
}

Work prepare_work(const StepTables& t, const Instance& i, Tiles tiles) {
  if (is_product(code_of(t, i))) return ProductWork(t, i).prepare_work();
  Work all;
  if (code_of(t, i) != OpCode::kAttention) return all;
  for (int64_t tile = tiles.first; tile < std::min<int64_t>(tiles.last, tiles.first + kTilesAhead); ++tile)
    all += prefetch_tile(t, i, tile);
  return all;
}

Work instance_work(const StepTables& t, const Instance& i, int32_t processor, int32_t last) {
  const Part part = part_of(t, i, grid_of(t, i), processor);
  Work all = barriers(1);  // at the end: all come there
  if (part.raises == 0) return all;
  const bool multiplies = is_product(code_of(t, i));
  all += prepare_work(t, i, part.own);
  if (i.waits > 0) all += loads(1);
  all += barriers(1);
  all.fences += i.waits + 1 + (i.messages > 0);
  all.atomics += 1 + (i.messages > 0);
  if (i.readers_period > 0) {  // who is through last with the inboxes returns their credits
    all.loads += 1;
    all.fences += last * i.messages, all.atomics += last * i.messages;
  }
  return all += multiplies ? ProductWork(t, i).total(part.own, last) : body_work(t, i, part.own);
}

int32_t shared_outputs(const StepTables& t, const Instance& i) {
  if (i.readers_period > 0) return 1;
  if (!is_product(code_of(t, i))) return 0;
  const StreamTiles tiles(i.stream, t.size(i.stream.m), t.machine().tiles.row_block);
  return tiles.groups > 1 && i.stream.arrivals != 0 ? tiles.panels * tiles.blocks : 0;
}

Work body_work(const StepTables& t, const Instance& i, Tiles tiles) {
  if (tiles.first >= tiles.last) return {};
  const Row* row = std::ranges::find(kBodies, code_of(t, i), &Row::code);
  ARK_CHECK(row != std::end(kBodies), "no work is known of " + std::string(info_of(code_of(t, i)).name));
  return row->work(t, i, tiles);
}

}  // namespace ark::cuda::cost
