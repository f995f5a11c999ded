// What a processor does of attention: bodies/attention.h.
#include <algorithm>
#include <vector>

#include "base/index.h"
#include "engine/cuda/cost/work_parts.h"

namespace ark::cuda::cost {
namespace {

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

// Some rows of a tile, for which a block reads the split's keys once.
struct AttentionPass {
  const AttentionShape& shape;
  int32_t rows;
  int32_t keys;               // of all warps, by 32
  int32_t blocks, last_keys;  // of keys, the warp's that has the most; of its last 32
  bool is_far;  // keys and values: they come from memory; but where a page is known, the first block's
  bool has_slopes, has_sinks;
  bool knows_heads, knows_page;  // from when the tile is opened; the latter of the first block
  int64_t key_bytes() const { return int64_t{keys} * (shape.key + shape.value) * shape.format.bits / 8; }
};

AttentionTile tile_of(const StepTables& t, int64_t tile) {
  return {static_cast<i32>(tile), static_cast<i32>(std::ssize(t.items())), t.splits()};
}

// open_ahead(): the item and what heads it has; behind these the heads, and pages.
int32_t opening_of(const StepTables& t, const Instance& i, int64_t number) {
  const AttentionTile tile = tile_of(t, number);
  return 1 + ItemSplits(t.items()[at(tile.item)], t.size(i.attention.window), t.splits()).has(tile.split);
}
// Whether the item before it is of the same sequence, so that L2 has its keys.
bool is_behind_another(const StepTables& t, int32_t item) {
  if (item == 0) return false;
  const AttentionItem &before = t.items()[at(item - 1)], &own = t.items()[at(item)];
  return before.position + before.count == own.position && before.first + before.count == own.first &&
         before.slot == own.slot;
}

// By multiply-adds: what a row takes of a warp's 32 keys, one after the other.
Work fma_rows(const AttentionPass& a) {
  const AttentionShape& s = a.shape;
  Work w = loads((2 - a.knows_heads) * turns(int64_t{a.rows} * s.key));
  w += barriers(3);
  for (int32_t n = 0; n < a.blocks; ++n) {
    const int32_t keys = n + 1 < a.blocks ? 32 : a.last_keys,
                  rounds = up(keys, s.keys_at_once) + up(keys, s.values_at_once);
    const int32_t page = n > 0 || !a.knows_page;
    w += a.is_far && !(n == 0 && a.knows_page) ? loads(page, rounds) : loads(page + rounds);
    if (a.has_slopes) w += loads((2 - a.knows_heads) * a.rows);
    w.beside += a.rows * (up(keys, 4) * 30.0 + 2 * kWarpSum + 100 + keys * 6.0) + 200;
  }
  const int32_t each = turns(int64_t{a.rows} * s.value / 4);
  w += loads(each * (a.knows_heads ? a.has_sinks : 1 + 2 * a.has_sinks));
  w.cycles += each * 550.0;
  if (!a.is_far) w.streamed = a.key_bytes();
  return w;
}

// A block's keys of a tile's rows: what each warp has of them.
struct KeysOfRows {
  int32_t end = 0, oldest = 0;
  int32_t turns[kConsumerWarps] = {};  // of each warp, 32 keys each
  int32_t runs = 0;                    // warps that have any
  int32_t all = 0;                     // keys, by 32
  int32_t first = 0;                   // of the warp that has the most
  int32_t blocks = 0;                  // its turns
};
KeysOfRows keys_of(const AttentionItem& item, int32_t split, int32_t group, int32_t window, int32_t row0,
                   int32_t rows) {
  const int32_t keys = split_keys(item.position), begin = split * keys;
  KeysOfRows to;
  to.oldest = window > 0 ? item.position + row0 / group - window + 1 : 0;
  to.end = std::min(begin + keys, item.position + (row0 + rows - 1) / group + 1);
  to.first = begin;
  for (int32_t w = 0; w < kConsumerWarps; ++w) {
    int32_t from = begin + w * 32;
    while (from + 32 <= to.oldest) from += kAttentionBlock;
    to.turns[w] = up(std::max(0, to.end - from), kAttentionBlock);
    if (to.turns[w] > to.blocks) to.first = from, to.blocks = to.turns[w];
    to.runs += to.turns[w] > 0, to.all += to.turns[w] * 32;
  }
  return to;
}

// 32 keys at a time: those that come from memory, or from L2, and pages that are looked up first.
struct TurnsOfWarp {
  int32_t far = 0, near = 0, pages = 0;
  int32_t all() const { return far + near; }
  TurnsOfWarp& operator+=(const TurnsOfWarp& b) {
    far += b.far, near += b.near, pages += b.pages;
    return *this;
  }
};
// Some rows of tiles, for which a block reads keys once, on tensor cores.
struct BundlePass {
  const AttentionShape& shape;
  int32_t rows;           // of the strip: tiles' slots
  int32_t halves_of_run;  // eights of rows that a run has
  TurnsOfWarp turns;      // of the warp that has the most
  int32_t keys;           // that come from L2: those of all warps, by 32
  bool knows_heads;
  int32_t looks;  // rounds of loads in which a warp opens a tile before it takes keys
};

// Two warps share a quarter of the processor: a block of keys takes what one has to wait for, its loads from L2, too,
// or what both give to it, whatever is more. Instructions as SASS for sm_90a has them (64 elements: 530 of a warp with
// sixteen rows).
Work bundle_rows(const BundlePass& a, bool moves_registers) {
  const AttentionShape& s = a.shape;
  const int32_t parts = up(s.value, 128), chunks = value_chunks(s.value), pairs = up(s.key, 32);
  Work all = loads(a.knows_heads ? 1 : 2);  // heads; q, slopes and sinks
  all += barriers(1);
  all += loads(a.looks);
  all.cycles = 3 * kCall + kWarpSum + 100;
  const double products = 16.0 * pairs + 32 * chunks,
               issued = products + 40 * pairs + 90 * chunks + a.halves_of_run * 150,
               waited = products * kMmaIssue + 4 * kMmaLatency + 120 + a.halves_of_run * 150;
  const int32_t rounds = pairs + 2 * chunks / values_at_once(moves_registers, s.key, s.value);
  for (int32_t part = 0; part < parts; ++part) {
    if (part > 0) all += barriers(1);
    all += loads(a.turns.pages + a.turns.near * rounds, a.turns.far * rounds);
    all.covered += a.turns.near * rounds;
    for (int32_t turn = 0; turn < a.turns.all(); ++turn)
      all.beside += std::max(waited + (turn < a.turns.far ? 0 : rounds * kRound),
                             2 * std::max(products * kMmaIssue, issued));
    all.cycles += 3 * kCall;
    const int32_t pieces = chunks * kValueChunk / 4;
    all += barriers(1);
    // Sums of all warps through shared memory, 128 bytes a cycle, by eights of rows there, and by rows back; factors;
    // the division.
    all.cycles += kConsumerWarps * (up(a.rows, 8) * 8 + a.rows) * pieces * 16 / 128.0 +
                  turns(int64_t{a.rows} * pieces) * 500;
  }
  all.streamed = int64_t{parts} * a.keys * (s.key + s.value) * s.format.bits / 8;
  return all;
}

// By strips: all warps take 32 keys between two barriers, which are copied, and whose pages are looked up, meanwhile.
// Instructions as SASS for sm_90a has them: with half a merge 580 of a turn of 64 elements, 670 of a part of 128.
Work strip_rows(const AttentionPass& a) {
  const AttentionShape& s = a.shape;
  const int32_t parts = strip_parts(s.value), sixteens = s.value / parts / 16, pairs = up(s.key, 32),
                strips = up(a.rows, kStripRows), turns_of = a.keys / 32,
                runs = std::min(kConsumerWarps, turns_of);      // whose sums are merged
  const int32_t sharing = strips > kConsumerWarps / 2 ? 2 : 1;  // warps of a processor's quarter
  const double products = 16.0 * pairs + 8 * sixteens, issued = products + 30 * pairs + 330 + 12 * sixteens,
               waited = products * kMmaIssue + 4 * kMmaLatency + 120 + 2 * 150;
  Work all;
  for (int32_t part = 0; part < parts; ++part) {
    all += barriers(2 + turns_of);
    all += loads(2);  // the first pages; the last ones, which are looked up for nothing
    // q, slopes and sinks: by eight rows.
    if (part == 0) all += loads((a.knows_heads ? 1 : 2) * 2);
    // Of memory's keys each warp's first 32 have been asked for before; others' copies, which begin a turn ahead, take
    // longer than a turn.
    const int32_t far = a.is_far ? std::max(0, turns_of - a.knows_page * kConsumerWarps) : 0;
    all += loads(turns_of - far, far);
    all.covered += turns_of - far;
    all.beside += (turns_of - far) * std::max(waited, sharing * std::max(products * kMmaIssue, issued)) +
                  runs * sharing * (60 + 24.0 * sixteens);
    all.cycles += 5 * kCall + kWarpSum + sixteens * 60.0;
  }
  all.streamed =
      int64_t{a.keys} * ((parts - a.is_far) * s.key + (a.is_far ? 0 : s.value)) * s.format.bits / 8;
  return all;
}

// What attention is in a step: heads, and how a tile's rows are taken.
struct AttentionStep {
  const StepTables& t;
  const Instance& i;
  AttentionShape shape = attention_shape(t, i);
  int32_t heads = t.size(i.attention.kv_heads), group = t.size(i.attention.heads) / heads,
          window = t.size(i.attention.window), page_size = t.size(i.attention.page_size);
  bool is_mma = attends_on_tensor_cores(shape.format, shape.key, shape.value),
       has_slopes = i.attention.slopes != 0, has_sinks = i.attention.sinks != 0,
       is_capped = i.attention.softcap != 0, has_all_scratch = t.stages() <= t.machine().stages;
  bool has_strips = attends_by_strips(t.machine().moves_registers(), shape.format, shape.key, shape.value) &&
                    !is_capped && has_all_scratch;

  const AttentionItem& item_of(int64_t number) const { return t.items()[at(tile_of(t, number).item)]; }
  bool has_rows(int64_t number) const {
    return ItemSplits(item_of(number), window, t.splits()).has(tile_of(t, number).split);
  }
  int32_t rows_of(int64_t number) const { return has_rows(number) ? item_of(number).count * group : 0; }
  bool by_strips(int64_t number) const {
    return has_strips && has_rows(number) && has_many_rows(rows_of(number));
  }
  // A sequence's keys come from memory for its first rows, and from L2 for others.
  bool is_far(int64_t number, int32_t row0) const {
    return row0 == 0 && !is_behind_another(t, tile_of(t, number).item);
  }
  bool knows_page(int32_t first, int32_t row0) const {
    return row0 == 0 && (first + 31) / page_size - first / page_size < kKnownPages;
  }
  KeysOfRows keys_of_rows(int64_t number, int32_t row0, int32_t rows) const {
    return keys_of(item_of(number), tile_of(t, number).split, group, window, row0, rows);
  }
  // Of keys that come from memory.
  int64_t bytes_of(int64_t number, const KeysOfRows& keys) const {
    const int32_t begin = tile_of(t, number).split * split_keys(item_of(number).position);
    return int64_t{std::max(0, keys.end - std::max(begin, keys.oldest))} * (shape.key + shape.value) *
           shape.format.bits / 8;
  }
};

// Of tiles that are splits, the splits of a row, by the last tile of an item and KV head: most often the one with the
// last split, which the same processor has.
Work join_splits(const AttentionStep& s, int64_t first, int32_t count) {
  Work w;
  for (int32_t k = 0; k < count; ++k) {
    const AttentionTile tile = tile_of(s.t, first + k);
    const ItemSplits splits(s.item_of(first + k), s.window, s.t.splits());
    if (!s.has_rows(first + k) || splits.count() == 1) continue;
    if (w.fences == 0) {
      w = loads(1);
      w += barriers(2);
      w.fences = w.atomics = 1;
    }
    if (tile.split != splits.last) continue;
    const int32_t rows = s.rows_of(first + k), each = turns(int64_t{rows} * s.shape.value / 4);
    w += loads(each * (3 + 2 * s.has_sinks));
    w.cycles += each * 550.0;
    w.shared += int64_t{rows} * splits.count() * (s.shape.value + 4) * 4;
  }
  return w;
}

// bundle_from(), of the tiles up to `last`: tiles, and the rows that each has of the strip.
struct Bundle {
  int32_t tiles, slot;
};
Bundle bundle_from(const AttentionStep& s, int64_t first, int64_t last, int32_t row0) {
  const uint32_t scratch = s.t.machine().tiles.scratch,
                 bytes = s.has_all_scratch ? scratch : few_scratch(scratch);
  const int32_t most = tiles_ahead(scratch) / 2,
                rooms = attention_rooms(s.shape.key, s.shape.value,
                                        static_cast<int32_t>(bytes - open_bytes(scratch)));
  const auto follow = [&](int32_t rows) {
    int32_t n = 0;
    while (n < most && first + n < last && s.rows_of(first + n) <= rows) ++n;
    return n;
  };
  const int32_t fours = follow(4), eights = follow(8);
  Bundle to{row0 > 0 || s.is_capped ? 1 : bundle_tiles(fours, eights), 0};
  to.slot = bundle_slot(to.tiles, fours);
  for (;;) {
    int32_t runs = 0;
    for (int32_t k = 0; k < to.tiles; ++k) {
      const int32_t rows = std::min(to.slot, s.rows_of(first + k) - row0);
      if (rows > 0) runs += s.keys_of_rows(first + k, row0, rows).runs;
    }
    if (runs * to.slot <= rooms) return to;
    if (to.tiles > 1)
      to.slot = bundle_slot(--to.tiles, fours);
    else
      to.slot /= 2;
  }
}

// A bundle's tiles, of one tile its rows from `row0` on. `opens`: tiles that warps open meanwhile, in so many rounds of
// loads.
Work bundle(const AttentionStep& s, int64_t number, const Bundle& of, int32_t row0, int32_t opens,
            int32_t opening) {
  std::vector<TurnsOfWarp> runs;
  Work all;
  int32_t rows = 0, keys = 0;
  for (int32_t k = 0; k < of.tiles; ++k) {
    const int32_t own = std::min(of.slot, s.rows_of(number + k) - row0);
    if (own <= 0) continue;
    rows = of.tiles > 1 ? of.tiles * of.slot : own;
    const KeysOfRows tile = s.keys_of_rows(number + k, row0, own);
    const bool is_far = s.is_far(number + k, row0), knows = s.knows_page(tile.first, row0);
    for (const int32_t turns_of : tile.turns) {
      if (turns_of > 0) runs.push_back({is_far && !knows, turns_of - (is_far && !knows), !knows});
    }
    if (is_far) all.bytes += s.bytes_of(number + k, tile);
    if (!is_far) keys += tile.all;
  }
  if (rows == 0) return (all += loads(opening)) += barriers(2 * up(s.shape.value, 128));
  // Of the warp that has the most to take; whether one that opens a tile has as much.
  TurnsOfWarp most;
  bool is_opener = false;
  for (int32_t w = 0; w < kConsumerWarps; ++w) {
    TurnsOfWarp own;
    for (std::size_t r = at(w); r < runs.size(); r += kConsumerWarps) own += runs[r];
    if (own.all() > most.all()) most = own;
    is_opener |= w >= kConsumerWarps - opens && own.all() == most.all();
  }
  const BundlePass pass{.shape = s.shape,
                        .rows = rows,
                        .halves_of_run = of.tiles == 1 && rows > 8 ? 2 : 1,
                        .turns = most,
                        .keys = keys,
                        .knows_heads = s.group <= kKnownHeads,
                        .looks = is_opener ? opening : 0};
  return all += bundle_rows(pass, s.t.machine().moves_registers());
}

}  // namespace

// Before the wait: a warp takes a tile, which may have nothing to do. ask_ahead(): each warp's keys of a tile after the
// other.
Work opened_ahead(const StepTables& t, const Instance& i, Tiles tiles) {
  const int64_t end = std::min<int64_t>(tiles.last, tiles.first + tiles_ahead(t.machine().tiles.scratch));
  int32_t opening = 0;
  for (int64_t number = tiles.first; number < end; ++number)
    opening = std::max(opening, opening_of(t, i, number));
  Work w = loads(opening);
  w += barriers(1);
  w.cycles = 3 * kCall + static_cast<double>(end - tiles.first) * 3 * kLoopTurn;
  return w;
}

Work attention(const StepTables& t, const Instance& i, Tiles tiles) {
  const AttentionStep s{t, i};
  const int32_t ahead = tiles_ahead(t.machine().tiles.scratch);
  Work all;
  int64_t before = tiles.first;
  for (int64_t number = tiles.first; number < tiles.last;) {
    // In the places of the tiles before, warps open others.
    int32_t opening = 0, opens = 0, count = 1;
    for (int64_t next = before + ahead; next < std::min<int64_t>(number + ahead, tiles.last); ++next)
      opening = std::max(opening, opening_of(t, i, next)), ++opens;
    before = number;
    all.cycles += 2 * kCall + (opens > 0) * 3 * kLoopTurn;
    const bool by_strips = s.by_strips(number);
    if (s.is_mma && !by_strips) {
      for (int32_t row0 = 0; row0 == 0 || (count == 1 && row0 < s.rows_of(number));) {
        const Bundle of = bundle_from(s, number, tiles.last, row0);
        if (number > tiles.first || row0 > 0)
          all.cycles += 3 * kCall + 150;  // found now, not before the wait
        all += bundle(s, number, of, row0, row0 == 0 ? opens : 0, row0 == 0 ? opening : 0);
        count = of.tiles, row0 += of.slot;
      }
    } else if (!s.has_rows(number)) {
      (all += loads(opening)) += barriers(1);
    } else {
      const int32_t rows = s.rows_of(number), at_once = by_strips ? kRowsOfStrips : 4;
      // Fewer threads than all have the last of some rows' queries.
      const int64_t queries = std::min(at_once, rows) * int64_t{s.shape.key};
      const int32_t idle = by_strips ? 0 : turns(queries) - turns(queries - (kConsumers - 32)),
                    each = s.group <= kKnownHeads ? 1 : 2;
      all += loads(std::max(0, opening - idle * each));
      for (int32_t row0 = 0; row0 < rows; row0 += at_once) {
        const int32_t count_of = std::min(at_once, rows - row0);
        const KeysOfRows keys = s.keys_of_rows(number, row0, count_of);
        const int32_t last_keys = std::min(32, keys.end - keys.first - (keys.blocks - 1) * kAttentionBlock);
        const bool is_far = s.is_far(number, row0);
        const AttentionPass pass{s.shape,
                                 count_of,
                                 keys.all,
                                 keys.blocks,
                                 last_keys,
                                 is_far,
                                 s.has_slopes,
                                 s.has_sinks,
                                 s.group <= kKnownHeads,
                                 s.knows_page(keys.first, row0)};
        all += by_strips ? strip_rows(pass) : fma_rows(pass);
        if (is_far) all.bytes += s.bytes_of(number, keys);
      }
      if (by_strips) all += barriers(1);
    }
    all += join_splits(s, number, count);
    number += count;
  }
  return all;
}

}  // namespace ark::cuda::cost
