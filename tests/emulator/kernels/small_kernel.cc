#include "tests/emulator/kernels/small.h"

namespace ark::test {

using namespace ark::dev;

namespace {

void wait_ge(const u32* word, u32 needed, Site at = Site::here()) {
  for (;;) {
    const u32 seen = ld_acquire<Scope::gpu>(word, at);
    if (static_cast<i32>(seen - needed) >= 0) return;
    pause(word, seen, needed, 20, at);
  }
}

void wait_for(Mbarrier* barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) pause(barrier, 0, parity);
}

}  // namespace

// Block 0 fills data[0..63], block 1 reads it. Wrong: 1 relaxed signal; 2 no barrier before the signal; 3 no
// wait; 4 waits for one signal too many; 5 block-scope release; 6 fences around relaxed words (right); 7 no
// release fence.
extern "C" void write_then_signal(const Words& p) {
  const int v = p.variant, t = thread_id();
  if (block_id() == 0) {
    p.data[t] = static_cast<float>(t);
    if (v != 2) sync();
    if (t != 0) return;
    if (v == 1) {
      st_relaxed<Scope::gpu>(p.counter, u32{1});
    } else if (v == 5) {
      red_release_add<Scope::cta>(p.counter, u32{1});
    } else if (v == 6 || v == 7) {
      if (v == 6) fence<Scope::gpu>();
      st_relaxed<Scope::gpu>(p.counter, u32{1});
    } else {
      red_release_add<Scope::gpu>(p.counter, u32{1});
    }
    return;
  }
  if (t == 0 && v != 3) {
    if (v == 6) {
      while (ld_relaxed<Scope::gpu>(p.counter) == 0) pause(p.counter, 0, 1);
      fence<Scope::gpu>();
    } else {
      wait_ge(p.counter, v == 4 ? 2 : 1);
    }
  }
  sync();
  p.data[64 + t] = p.data[t ^ 1] + 1;
}

// Sums over a block through shared memory. Wrong: 1 no barrier; 2 one thread leaves before; 3 different
// counts; 4 a warp that only arrives (right); 5 the same without the arrival.
extern "C" void barriers(const Words& p) {
  auto* s = reinterpret_cast<float*>(shared());
  const int v = p.variant, t = thread_id();
  if (v == 2 && t == 5) return;
  if (v >= 4) {
    if (warp_id() == 0) {
      s[t] = 1;
      if (v == 4) bar_arrive(1, 64);
    } else {
      bar_sync(1, 64);
      p.data[t] = s[t - 32];
    }
    return;
  }
  s[t] = static_cast<float>(t);
  if (v == 3) {
    bar_sync(1, t < 32 ? 64 : 32);
  } else if (v != 1) {
    sync();
  }
  float sum = 0;
  for (int i = 0; i < block_threads(); i++) sum += s[i];
  p.data[t] = sum;
}

// One thread. 0 right; others break one rule each.
extern "C" void memory_rules(const Words& p) {
  auto* s = reinterpret_cast<float*>(shared());
  float on_stack[2] = {1, 2};
  switch (p.variant) {
    case 0:
      p.data[0] = ld_nc(p.constant) + on_stack[ld_nc(p.constant) > 0];
      break;
    case 1:
      p.data[1024] = 1;
      break;  // past the end
    case 2:
      p.data[0] = s[0];
      break;  // nobody wrote it
    case 3:
      const_cast<float*>(p.constant)[0] = 1;
      break;  // constant
    case 4:
      p.data[0] = ld_nc(static_cast<const float*>(p.data));
      break;  // not constant
    case 5:
      p.data[0] = *reinterpret_cast<const float*>(&p + 100000);
      break;  // memory of the host
    case 6:
      st_global(reinterpret_cast<f32x4*>(p.data + 1), f32x4{});
      break;  // aligned to 4 only
    case 7:
      red_release_add<Scope::gpu>(p.counter, u32{1});
      break;  // of another GPU, see the test
    case 8:
      s[1 << 20] = 1;
      break;  // past the shared memory
    case 9:
      p.data[1] = p.data[0];
      break;  // nobody wrote it
    case 10:
      *reinterpret_cast<double*>(p.data + 1) = 1;
      break;  // aligned to 4 only, plainly
    default:
      trap();
  }
}

// Two warps. Wrong: 1 some lanes skip a shuffle, 2 lanes at different collectives, 3 no sync_warp.
extern "C" void collectives(const Words& p) {
  auto* s = reinterpret_cast<float*>(shared());
  const int v = p.variant, t = thread_id(), lane = lane_id();
  float x = static_cast<float>(lane);
  if (v == 1) {
    if (lane < 16) x = shfl_xor(x, 1);
  } else if (v == 2) {
    x = lane < 16 ? shfl_xor(x, 1) : shfl_down(x, 1);
  }
  s[t] = x;
  if (v != 3) sync_warp();
  x = s[t ^ 1];
  p.data[t] = warp_sum(x) + warp_max(x) * 1000;
  p.data[64 + t] = shfl_down(x, 8);
  p.data[128 + t] = shfl_up(x, 8) + shfl(x, 3);
  p.data[192 + t] = static_cast<float>(popcount(ballot(lane % 3 == 0)));
}

// 64 threads copy 1 KiB. Wrong: 1 no wait, 2 no barrier, 3 waits for one group too few, 4 refills too early;
// 5 unaligned.
extern "C" void copies(const Words& p) {
  auto* s = reinterpret_cast<float*>(shared());
  const int v = p.variant, t = thread_id();
  const int skew = v == 5 ? 1 : 0;
  cp_async16(s + 4 * t + skew, p.constant + 4 * t);
  cp_async_commit();
  cp_async16_fill(s + 256 + 4 * t, p.constant + 4 * t, 4);
  cp_async_commit();
  if (v == 3) {
    cp_async_wait<1>();
  } else if (v != 1) {
    cp_async_wait<0>();
  }
  if (v != 2) sync();
  const float sum = s[255 - t] + s[256 + (4 * t + 4) % 256] + s[256 + (4 * t + 5) % 256];
  if (v != 4) sync();
  cp_async16(s + 4 * t, p.constant + 252 - 4 * t);
  cp_async_commit();
  cp_async_wait<0>();
  sync();
  p.data[t] = sum + s[4 * t];
}

// A ring of two slots that one warp fills ahead and another reads. Wrong: 1 does not wait for `full`; 2 does
// not wait for `empty`; 3 wrong parity; 4 no barrier after init; 5 unaligned; 6 expects too few bytes; 7
// arrives twice; 8 copies what threads wrote, without a proxy fence; 9 the same with it (right); 10 stores
// without a fence.
extern "C" void bulk(const Words& p) {
#if ARK_HAS_BULK
  constexpr int kRounds = 6;
  u8* slots = shared() + 1024;
  auto* full = reinterpret_cast<Mbarrier*>(shared());
  Mbarrier* empty = full + 2;
  const int v = p.variant, t = thread_id(), lane = lane_id();
  const float* source = p.constant;
  if (v == 8 || v == 9) {
    source = p.data;
    for (int i = t; i < 256; i += 64) p.data[i] = static_cast<float>(i);
    sync();
    if (v == 9) fence_proxy_async();
  }
  if (t == 0) {
    for (int i = 0; i < 4; i++) mbarrier_init(full + i, i < 2 ? 1 : 32);
    mbarrier_init_fence();
  }
  if (v != 4) sync();
  if (warp_id() == 0) {
    for (int i = 0; i < kRounds; i++) {
      const int slot = i % 2;
      const u32 lap = static_cast<u32>(i / 2);
      if (i >= 2 && v != 2) wait_for(empty + slot, (lap + 1) & 1);
      if (lane == 0) {
        mbarrier_arrive_expect(full + slot, v == 6 ? 128 : 512);
        bulk_load(slots + slot * 512, reinterpret_cast<const u8*>(source) + i % 2 * 512 + (v == 5 ? 8 : 0),
                  512, full + slot);
        if (v == 7) mbarrier_arrive(full + slot);
      }
      sync_warp();
    }
  } else {
    float sum = 0;
    for (int i = 0; i < kRounds; i++) {
      const int slot = i % 2;
      const u32 lap = static_cast<u32>(i / 2);
      if (v != 1) wait_for(full + slot, v == 3 ? (lap + 1) & 1 : lap & 1);
      sum += reinterpret_cast<const float*>(slots + slot * 512)[lane * 4];
      mbarrier_arrive(empty + slot);
    }
    p.data[300 + lane] = sum;
  }
  sync();
  auto* out = reinterpret_cast<float*>(slots);
  for (int i = t; i < 256; i += 64) out[i] = static_cast<float>(i);
  if (v != 10) fence_proxy_async();
  sync();
  if (t == 0) {
    bulk_store(p.data + 512, out, 1024);
    bulk_commit();
    bulk_wait<0>();
  }
#else
  (void)p;
#endif
}

// copy_ahead, which is cp.async on sm_80.
extern "C" void mbarriers(const Words& p) {
  auto* full = reinterpret_cast<Mbarrier*>(shared());
  u8* to = shared() + 1024;
  if (thread_id() == 0) {
    mbarrier_init(full, kCopyAheadArrivals);
    mbarrier_init_fence();
  }
  sync();
  for (u32 round = 0; round < 3; round++) {
    if (warp_id() == 0) copy_ahead(to, p.constant + 64 * round, 256, full);
    if (p.variant != 1) wait_for(full, round & 1);
    p.data[64 * round + thread_id()] = reinterpret_cast<const float*>(to)[thread_id()] * 2;
    if (p.variant != 4 || round < 2) sync();
  }
  if (p.variant < 2 || thread_id() != 0) return;
  if (p.variant != 3) mbarrier_inval(full);
  mbarrier_init(full, 2);
  if (p.variant != 5) return;
  mbarrier_arrive(full);
  mbarrier_inval(full);
}

// A check and an act that are not one: both blocks may find the counter at 0. Shows only in some schedules.
extern "C" void ordering(const Words& p) {
  if (thread_id() != 0) return;
  if (block_id() == 1) {
    for (int i = 0; i < 4; i++) red_release_add<Scope::gpu>(p.counter + 1, u32{1});
  }
  const u32 seen = ld_acquire<Scope::gpu>(p.counter);
  st_release<Scope::gpu>(p.counter, seen + 1);
}

// Waits for the host's word, answers, and again.
extern "C" void host_words(const Words& p) {
  for (u32 turn = 1; turn <= 3; turn++) {
    if (thread_id() == 0) {
      for (;;) {
        const u32 seen = ld_acquire<Scope::sys>(p.counter);
        if (seen >= turn) break;
        pause(p.counter, seen, turn);
      }
      st_release<Scope::sys>(p.counter + 1, turn);
    }
    sync();
  }
}

// Blocks that talk through words alone, where no race can be seen: block 0 stores a message and a flag behind it, block
// 1 reads the flag and then the message into data[0]. Wrong: 1 no order between the stores; 2 none between the loads; 3
// the fence stands before both stores. 4: fences on both sides (right). 5: a block barrier and another thread's release
// on the one side, an acquire and a block barrier on the other (right).
extern "C" void messages(const Words& p) {
  u32 *const message = p.counter, *const flag = p.counter + 1;
  const int v = p.variant, t = thread_id();
  if (block_id() == 0) {
    if (t == 0) {
      if (v == 3) fence<Scope::gpu>();
      st_relaxed<Scope::gpu>(message, u32{7});
      if (v == 4) fence<Scope::gpu>();
    }
    if (v == 5) sync();
    if (t != (v == 5 ? 32 : 0)) return;
    if (v == 0 || v == 2 || v == 5) {
      st_release<Scope::gpu>(flag, u32{1});
    } else {
      st_relaxed<Scope::gpu>(flag, u32{1});
    }
    return;
  }
  if (t == 0) {
    const bool acquires = v != 2 && v != 4;
    while ((acquires ? ld_acquire<Scope::gpu>(flag) : ld_relaxed<Scope::gpu>(flag)) == 0) pause(flag, 0, 1);
    if (v == 4) fence<Scope::gpu>();
  }
  if (v == 5) sync();
  if (t == (v == 5 ? 33 : 0)) p.data[0] = static_cast<float>(ld_relaxed<Scope::gpu>(message));
}

// A block of 384 threads, which has 168 registers for each: eight warps take what four give. Wrong: 1 they give too
// few.
extern "C" void registers(const Words& p) {
  if (warp_id() < 8) {
    take_registers<208>();
    if (thread_id() == 0) p.data[0] = 1;
  } else if (p.variant == 0) {
    give_registers<88>();
  } else {
    give_registers<96>();
  }
}

// One warp: d = a b for a = data[0..255] (16x16), b = data[256..383] (16x8, as stored), both through
// ldmatrix.
extern "C" void matrices(const Words& p) {
  auto* a16 = reinterpret_cast<f16*>(shared());
  f16* b16 = a16 + 256;
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) a16[i] = to_f16(p.data[i]);
  for (int i = lane; i < 128; i += 32) b16[i] = to_f16(p.data[256 + i]);
  sync_warp();
  u32 a[1][4], b4[4], b[1][2];
  ldmatrix_x4(a[0], a16 + (lane % 16) * 16 + lane / 16 * 8);
  // Matrices 0 and 1 are rows 0..7 and 8..15 of b; the others repeat them.
  ldmatrix_x4_trans(b4, b16 + (lane % 16) * 8);
  b[0][0] = b4[0], b[0][1] = b4[1];
  float d[1][1][4] = {};
  mma_tile<f16>(d, a, b);
  for (int i = 0; i < 4; i++) p.data[384 + (g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = d[0][0][i];
}

}  // namespace ark::test
