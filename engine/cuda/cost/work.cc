// A function for each body, and the table that names them.
#include "engine/cuda/cost/work.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/rowwise_host.h"
#include "engine/cuda/cost/work_parts.h"
#include "engine/program/opcodes.h"

namespace ark::cuda::cost {
namespace {

OpCode code_of(const StepTables& t, const Instance& i) {
  const Program& p = t.program();
  return p.variants[p.phases[i.phase].variant].code;
}

// Whether a norm adds up what the tiles of the product before it share.
bool takes_up(const StepTables& t, const Instance& i) {
  return i.stream.partials != 0 &&
         (t.tells_sums(i) ||
          StreamTiles(i.stream, t.size(i.stream.m), t.machine().tiles.row_block).groups > 1);
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
  const bool rms = type.starts_with("Norm<true"), is_split = type.find("float") == std::string::npos,
             has_bias = i.norm.bias != 0;
  const int32_t held = rms ? 8 : 4, n = t.size(i.norm.width), parts = up(n, int64_t{held} * kConsumers);
  const int32_t passes = rms ? 2 : 3, each = std::min(held, turns(n));
  Work row;
  if (takes_up(t, i)) {
    const int32_t rounds = up(n, 4 * kConsumers);
    row = loads(rounds + (parts == 1 ? 0 : parts));
    row += barriers(1);
    row.cycles = rounds * (kCall + 100 + 4 * 60.0);
  } else if (t.is_by_norm(i)) {  // the parts of ranks, as sums over them read these
    const int32_t rounds = up(n, 4 * kConsumers);
    row = loads(rounds + (parts == 1 ? 0 : parts));
    row += barriers(1);
    row.cycles = rounds * (2 * kCall + 30.0 * t.program().ranks);
    row.streamed = int64_t{n} * 4 * t.program().ranks;
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

// By warps: rounds of loads, and what elements take one after the other. Codes with scales are stored from scratch.
Work rotary_append(const StepTables& t, const Instance& i, Tiles tiles) {
  constexpr int32_t kElement = 60;
  const KvFormat format = kv_format(t, i, 7);
  const RotaryAppendArguments& a = i.rotary_append;
  const int32_t heads = t.size(a.heads), kv_heads = t.size(a.kv_heads), key = t.size(a.turned.dim),
                value = t.size(a.value_dim), pairs = key - t.size(a.turned.pairs),
                pack = elements_at_once(format);
  const int64_t count = tiles.last - tiles.first;
  const int32_t warps = append_warps(count, format.has_scales()), groups = kConsumerWarps / warps;
  Work all;
  for (int64_t group = 0; group < groups; ++group) {
    Work own;
    for (int64_t tile = tiles.first + group; tile < tiles.last; tile += groups) {
      const auto head = static_cast<int32_t>(tile % kv_heads);
      const int32_t queries = heads * (head + 1) / kv_heads - heads * head / kv_heads;
      const int32_t elements = up(int64_t{queries + 1} * pairs + value, warps * 32);  // of a lane
      Work one = loads(1 + up(elements, 4));
      one.covered = one.loads;
      one.beside = one.loads * kRound + elements * kElement + 4 * kCall;
      if (format.has_scales()) one.beside += 2 * scaled_head(std::max(key, value), pack).cycles;
      one.streamed = (int64_t{2} * queries + 1) * key * 4 + value * 4;
      own += one;
    }
    all.streamed += own.streamed;
    own.streamed = all.streamed;
    if (own.loads > all.loads) all = own;
  }
  return all;
}

Work select_rows(const StepTables& t, const Instance& i, Tiles tiles) {
  Work row = loads(1);
  row += at_once(4, t.size(i.select_rows.width));
  Work all = row.times(tiles.last - tiles.first);
  return all += loads(1);
}

// ---- elements and messages: bodies/pointwise.h, bodies/exchange.h, bodies/shares.h

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

// Fours of a rank's share of a sum, by this processor.
int64_t share_of_sum(const StepTables& t, const Size (&elements)[4], int32_t rank, Tiles tiles) {
  const Fours own = fours_of(static_cast<i32>(t.product(elements) / 4), t.program().ranks,
                             t.machine().processors, rank, static_cast<i32>(tiles.first));
  return own.last - own.first;
}

Work send_shares(const StepTables& t, const Instance& i, Tiles tiles) {
  Work w;
  if (i.share_parts_at != 0) return w;  // products have stored them
  for (int32_t rank = 0; rank < t.program().ranks; ++rank) {
    if (rank == t.program().rank) continue;
    const int64_t own = share_of_sum(t, i.send.elements, rank, tiles);
    w += at_once(4, own);
    w.cycles += 2 * kCall;
    if (t.leaves_gpu(i)) w.sent += own * 16;
  }
  return w;
}

Work send(const StepTables& t, const Instance& i, Tiles tiles) {
  if (t.shares(i)) return send_shares(t, i, tiles);
  const int64_t all = t.product(i.send.elements) * 4;
  const int64_t own =
      std::min<int64_t>(tiles.last * kSendTile, all) - std::min<int64_t>(tiles.first * kSendTile, all);
  Work w = at_once(8, own / 4);
  if (t.leaves_gpu(i)) w.sent = own * i.messages;
  return w;
}

Work recv_reduce(const StepTables& t, const Instance& i, Tiles tiles) {
  if (t.tells_ranks(i)) {  // the terms, and the parts, which are there or asked for until they are
    const int64_t own = std::min<int64_t>(tiles.last * kElementTile, t.product(i.reduce.elements)) -
                        tiles.first * kElementTile;
    const int32_t each = turns(own / 4);
    Work w = loads(each);
    w.cycles = each * (2 * kCall + 30.0 * t.program().ranks);
    return w;
  }
  if (t.shares(i)) {
    Work w = share_work(t, i, tiles);
    return w += gathered_work(t, i, tiles);
  }
  return at_once(4, std::min<int64_t>(tiles.last * kElementTile, t.product(i.reduce.elements)) -
                        tiles.first * kElementTile);
}

// Of a row.
int32_t concat_tiles(const StepTables& t, const Instance& i) {
  return std::max(1, up(t.size(i.concat.width), kElementTile));
}
Work recv_concat(const StepTables& t, const Instance& i, Tiles tiles) {
  const int32_t each = concat_tiles(t, i);
  Work all;
  for (int64_t tile = tiles.first; tile < tiles.last; ++tile) {
    const auto first = static_cast<int32_t>(tile % each) * kElementTile;
    int32_t begin = 0;
    for (int r = 0; r < t.program().ranks; ++r) {
      const int32_t end = begin + t.size(i.concat.part_widths[r]),
                    own = std::min(end, first + kElementTile) - std::max(begin, first);
      if (own > 0) all += at_once(8, own);
      begin = end;
    }
  }
  return all;
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
  covered += other.covered, beside += other.beside, streamed += other.streamed, sent += other.sent;
  return *this;
}

Work Work::times(int64_t n) const {
  Work all;
  const auto count = static_cast<int32_t>(n);
  all.loads = loads * count, all.fences = fences * count, all.atomics = atomics * count,
  all.barriers = barriers * count, all.far = far * count, all.cold = cold * count;
  all.cycles = cycles * static_cast<double>(n), all.bytes = bytes * n, all.shared = shared * n;
  all.covered = covered * count, all.beside = beside * static_cast<double>(n), all.streamed = streamed * n;
  all.sent = sent * n;
  return all;
}

Lineup grid_of(const StepTables& t, const Instance& i) {
  switch (code_of(t, i)) {
    case OpCode::kMatMul:
    case OpCode::kGatedMatMul:
      return StreamTiles(i.stream, t.size(i.stream.m), t.machine().tiles.row_block).lineup(i.stream);
    case OpCode::kAttention:
      return i64{t.size(i.grid)} * t.splits();
    case OpCode::kGeneric: {
      const Program& p = t.program();
      i64 most = 0;
      for (int o = 0; o < p.variants[p.phases[i.phase].variant].outputs; ++o)
        most = std::max(most, i64{t.size(i.copy.taken[o].width)});
      return (t.product(i.copy.rows) * most + kElementTile - 1) / kElementTile;
    }
    case OpCode::kRecvConcat:
      return i64{t.size(i.grid)} * concat_tiles(t, i);
    default:
      return t.shares(i) ? t.machine().processors : t.size(i.grid);
  }
}

// The terms and the parts of each four together; then words that say that the sums are there.
Work share_work(const StepTables& t, const Instance& i, Tiles tiles) {
  const int64_t own = share_of_sum(t, i.reduce.elements, t.program().rank, tiles);
  const int32_t each = turns(own);
  Work w = loads(each);
  w.cycles = each * (2 * kCall + 40.0 * t.program().ranks) + 4 * kCall;
  w.barriers = w.fences = 1;
  if (t.leaves_gpu(i)) w.sent = own * 16 * (t.program().ranks - 1);
  return w;
}
Work gathered_work(const StepTables& t, const Instance& i, Tiles tiles) {
  Work w = loads(1);
  w.barriers = 1;
  w.fences = t.program().ranks - 1;
  for (int32_t rank = 0; rank < t.program().ranks; ++rank) {
    if (rank == t.program().rank) continue;
    w += at_once(4, share_of_sum(t, i.reduce.elements, rank, tiles));
    w.cycles += 2 * kCall;
  }
  return w;
}

Share share_of(const StepTables& t, const Instance& i, const Lineup& line, int32_t processor) {
  if (t.is_left_out(i)) return {{0, 0}, processor == i.base ? t.machine().processors : 0};
  const Share share = dealt(line, processor, i.base, t.machine().processors);
  return i.messages > 0 && !t.tells_ranks(i) ? Share{share.tiles, 1} : share;
}

Work prepare_work(const StepTables& t, const Instance& i, Tiles tiles) {
  if (is_product(code_of(t, i))) return ProductWork(t, i).prepare_work();
  return code_of(t, i) == OpCode::kAttention && tiles.first < tiles.last ? opened_ahead(t, i, tiles) : Work{};
}

Work instance_work(const StepTables& t, const Instance& i, int32_t processor, int32_t last) {
  const Share part = share_of(t, i, grid_of(t, i), processor);
  Work all = barriers(1);  // at the end: all come there
  if (part.raises == 0) return all;
  const bool multiplies = is_product(code_of(t, i));
  all += prepare_work(t, i, part.tiles);
  const int32_t waits = t.waits(i);
  if (waits > 0) all += loads(1);
  all += barriers(1);
  all.fences += waits + !t.is_quiet(i);
  all.atomics += 1;
  if (t.tells_ranks(i)) {
    // Messages that were left out, which peers are told of before they count others.
    if (i.settles != 0 && processor == i.base) {
      all.fences += 1;
      if (!t.leaves_gpu(i)) all.atomics += i.messages;
    }
    return all += multiplies ? ProductWork(t, i).total(part.tiles, last) : body_work(t, i, part.tiles);
  }
  all.fences += i.messages > 0;
  if (i.readers_period > 0) {  // who is through last with the inboxes returns their credits
    all.loads += 1;
    all.fences += last, all.atomics += 1 + last * i.messages;
  } else if (i.messages > 0) {  // who is the last, too, where they go to other GPUs
    all.atomics += t.leaves_gpu(i) ? 1 : i.messages;
  }
  return all += multiplies ? ProductWork(t, i).total(part.tiles, last) : body_work(t, i, part.tiles);
}

int32_t shared_outputs(const StepTables& t, const Instance& i) {
  if (i.readers_period > 0) return !t.tells_ranks(i);
  if (!is_product(code_of(t, i)) || t.tells_sums(i)) return 0;
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
