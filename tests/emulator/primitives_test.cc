// dma/device.h's primitives: the kernel that uses all of them compiles for each architecture, and the PTX that NVRTC
// makes of it does what the emulator's device does: the same results and memory, and thread by thread the same words,
// fences, barriers and copies, with the same scopes, sizes and counts. Faults planted into device_cuda.h must be seen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "engine/cuda/nvrtc.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/kernels/every_parameters.h"
#include "tests/emulator/ptx/ptx.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

using emulator::Failure;
using emulator::Fault;

struct Slot {
  std::string name;
  int ulps = -1;
};
std::vector<Slot> slots(dev::kResults);

std::string read(const std::string& name) {
  std::ifstream file(source_root() / name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

cuda::KernelSource every_source() {
  cuda::KernelSource source{
      "#include \"tests/emulator/kernels/every_primitive.h\"\n", {}, {}, "every_primitive"};
  for (const char* name : {"tests/emulator/kernels/every_primitive.h",
                           "tests/emulator/kernels/every_parameters.h", "dma/device.h", "dma/device_cuda.h"})
    source.headers.push_back({name, read(name)});
  return source;
}

using emulator::KernelFunction;

// As the emulator's device runs it, for sm_80 (800) or sm_90 and later (900).
KernelFunction emulated(int arch) {
  static std::map<int, KernelFunction> all;
  if (!all[arch]) {
    double seconds = 0;
    const std::string library =
        emulator::compile_kernel(every_source(),
                                 {"-DARK_EMULATED_ARCH=" + std::to_string(arch), "-fsanitize=thread",
                                  "--param=tsan-instrument-func-entry-exit=0"},
                                 &seconds);
    all[arch] = emulator::load_kernel(library, "every_primitive");
  }
  return all[arch];
}

// Of each thread of the grid: what it asked of the machine.
using Trace = std::map<int, std::vector<std::string>>;
struct Outcome {
  std::vector<std::byte> results, memory;
  Trace trace;
};

constexpr int kThreads = dev::kEveryBlocks * dev::kEveryThreads;

// Numbers at the borders of functions' cases, and random ones.
std::vector<float> inputs() {
  std::vector<float> v = {0.0f,    -0.0f,      1.0f,      -1.0f,    0.5f,          2.5f,   -2.5f, 1e-40f,
                          3e38f,   INFINITY,   -INFINITY, NAN,      105616.0f,     -1e10f, 88.8f, -88.0f,
                          -104.5f, 0.9999999f, 65504.0f,  65520.0f, 3.0517578e-5f, 1e-8f};
  std::mt19937 random(3);
  for (std::normal_distribution<float> normal; v.size() < kThreads;)
    v.push_back(normal(random) * (v.size() % 3 == 0 ? 30.0f : 1.0f));
  return v;
}

Outcome run(const KernelFunction& kernel, emulator::Options options = {}, bool traps = false) {
  std::vector<emulator::Traced> traced;
  options.detector = true;
  options.trace = &traced;
  emulator::Machine machine(options);
  std::mt19937 random(7);
  const auto allocate = [&](const char* name, std::size_t bytes, auto&& word) {
    std::byte* p = machine.memory().allocate(bytes, 0, name);
    for (std::size_t i = 0; i < bytes; i += 4) {
      const uint32_t v = word(i / 4);
      std::memcpy(p + i, &v, 4);
    }
    machine.memory().initialise(p, bytes);
    return p;
  };
  constexpr int kWords = kThreads / 32 * dev::kWordsOfAWarp;
  const auto zero = [](std::size_t) { return 0u; };
  dev::EveryParameters p{};
  const std::size_t result_bytes = std::size_t{4} * kThreads * dev::kResults;
  // Halves that are ordinary numbers in both formats.
  p.constant = reinterpret_cast<dev::u8*>(
      allocate("constant", 4096, [&](std::size_t) { return 0x3c003c00u | (random() & 0x83ff83ffu); }));
  const std::vector<float> numbers = inputs();
  p.inputs = reinterpret_cast<float*>(
      allocate("inputs", 4 * kThreads, [&](std::size_t i) { return std::bit_cast<uint32_t>(numbers[i]); }));
  p.results = reinterpret_cast<dev::u32*>(allocate("results", result_bytes, zero));
  p.words = reinterpret_cast<dev::u32*>(
      allocate("words", 4 * kWords, [](std::size_t i) { return static_cast<uint32_t>(i % 8); }));
  p.long_words = reinterpret_cast<dev::u64*>(allocate(
      "long words", 8 * kWords, [](std::size_t i) { return i % 2 ? 0u : static_cast<uint32_t>(i / 2 % 8); }));
  p.bytes = reinterpret_cast<dev::u8*>(allocate("bytes", dev::kEveryBlocks * dev::kBytesOfABlock, zero));
  p.traps = traps;
  emulator::LaunchRequest request;
  request.blocks = dev::kEveryBlocks;
  request.threads = dev::kEveryThreads;
  request.shared_bytes = 8192;
  request.kernel = kernel;
  request.parameter.resize(sizeof p);
  std::memcpy(request.parameter.data(), &p, sizeof p);
  machine.launch(std::move(request));
  machine.run();
  Outcome out;
  const auto keep = [](std::vector<std::byte>& to, const void* from, std::size_t bytes) {
    to.insert(to.end(), static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
  };
  keep(out.results, p.results, result_bytes);
  keep(out.memory, p.words, 4 * kWords);
  keep(out.memory, p.long_words, 8 * kWords);
  keep(out.memory, p.bytes, dev::kEveryBlocks * dev::kBytesOfABlock);
  for (emulator::Traced& t : traced) {
    // How often a thread looks in vain is the schedule's affair.
    auto& of_thread = out.trace[t.block * dev::kEveryThreads + t.thread];
    if (!t.what.starts_with("pause") && (of_thread.empty() || of_thread.back() != t.what))
      of_thread.push_back(std::move(t.what));
  }
  return out;
}

// Steps from one float to the other; 0 between NaNs.
int64_t ulps_between(uint32_t a, uint32_t b) {
  const auto place = [](uint32_t bits) {
    return bits >> 31 ? -static_cast<int64_t>(bits & 0x7fffffff) : static_cast<int64_t>(bits);
  };
  const bool a_is_nan = std::isnan(std::bit_cast<float>(a)), b_is_nan = std::isnan(std::bit_cast<float>(b));
  if (a_is_nan || b_is_nan) return a_is_nan == b_is_nan ? 0 : INT64_MAX;
  return std::abs(place(a) - place(b));
}

// The first thing in which they differ; "" if nothing.
std::string difference(const Outcome& expected, const Outcome& got) {
  for (int slot = 0; slot < dev::kResults; slot++) {
    for (int thread = 0; thread < kThreads; thread++) {
      uint32_t a, b;
      const std::size_t at =
          static_cast<std::size_t>(4) * (static_cast<std::size_t>(slot) * kThreads + thread);
      std::memcpy(&a, expected.results.data() + at, 4);
      std::memcpy(&b, got.results.data() + at, 4);
      const Slot& s = slots[static_cast<std::size_t>(slot)];
      if (s.ulps >= 0 ? ulps_between(a, b) <= s.ulps : a == b) continue;
      std::ostringstream text;
      text << s.name << " of thread " << thread << " (" << inputs()[static_cast<std::size_t>(thread)]
           << "): " << std::hex << b << ", not " << a;
      return text.str();
    }
  }
  for (std::size_t i = 0; i < expected.memory.size(); i++) {
    if (expected.memory[i] != got.memory[i]) return "memory at byte " + std::to_string(i);
  }
  for (const auto& [thread, events] : expected.trace) {
    const auto& others = got.trace.at(thread);
    for (std::size_t i = 0; i < std::max(events.size(), others.size()); i++) {
      const std::string a = i < events.size() ? events[i] : "nothing",
                        b = i < others.size() ? others[i] : "nothing";
      if (a != b) return "thread " + std::to_string(thread) + " asks for " + b + ", not " + a;
    }
  }
  return "";
}

TEST(Primitives, CompileForEachArchitecture) {
  std::string why;
  const auto compiler = cuda::open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"})
    EXPECT_GT(compiler->compile(every_source(), arch).cubin.size(), 1000u) << arch;
}

TEST(Primitives, RunInTheEmulator) {
  const Outcome first = run(emulated(900));
  for (uint64_t seed = 1; seed <= 5; seed++) {
    const Outcome other =
        run(emulated(900),
            {.schedule = emulator::Schedule::kRandom, .landing = emulator::Landing::kRandom, .seed = seed});
    EXPECT_EQ(difference(first, other), "");
  }
}

// Each function of the headers, if only through those of device.h.
TEST(Primitives, AreAllUsed) {
  const std::string kernel = read("tests/emulator/kernels/every_primitive.h"), shared = read("dma/device.h");
  const auto check = [](const std::string& functions, const std::string& users) {
    static const std::regex kFunction(R"(\nARK_DEVICE [^;{]*?(\w+)\()");
    int found = 0;
    for (std::sregex_iterator i(functions.begin(), functions.end(), kFunction), end; i != end; ++i, ++found) {
      const std::regex use("\\b" + (*i)[1].str() + "(<[^;]*>)?\\(");
      EXPECT_TRUE(std::regex_search(users, use) || (*i)[1] == "shared_address") << (*i)[1];
    }
    EXPECT_GT(found, 5);
  };
  check(read("dma/device_cuda.h"), kernel + shared);
  // Halves of pairs are unpack's.
  check(std::regex_replace(shared, std::regex("ARK_DEVICE b?f16 (low|high)"), ""), kernel);
}

class PtxOfPrimitives : public ::testing::TestWithParam<std::tuple<const char*, int>> {};
TEST_P(PtxOfPrimitives, DoesAsTheEmulator) {
  const auto [arch, emulated_arch] = GetParam();
  if (!cuda::open_nvrtc()) GTEST_SKIP() << "no NVRTC";
  std::shared_ptr<const emulator::ptx::Module> module;
  const KernelFunction ptx = emulator::load_ptx(every_source(), arch, &module);
  Outcome expected = run(emulated(emulated_arch));
  if (emulated_arch < 900) {  // bulk copies alone need that fence
    for (auto& [thread, events] : expected.trace) std::erase(events, "mbarrier_init_fence 0 0 0");
  }
  EXPECT_EQ(difference(expected, run(ptx)), "");
  EXPECT_EQ(difference(expected, run(ptx, {.schedule = emulator::Schedule::kRandom,
                                           .landing = emulator::Landing::kRandom,
                                           .seed = 2})),
            "");
  try {
    run(ptx, {}, true);
    ADD_FAILURE() << "no trap";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.fault(), Fault::kTrap) << failure.what();
  }
  EXPECT_EQ(emulator::ptx::never_run(*module), std::vector<std::string>{});
}
INSTANTIATE_TEST_SUITE_P(, PtxOfPrimitives,
                         ::testing::Values(std::tuple{"compute_80", 800}, std::tuple{"compute_90a", 900},
                                           std::tuple{"compute_100a", 900}),
                         [](const auto& test) { return std::string(std::get<0>(test.param)); });

// Wrong variants of device_cuda.h that compile.
struct Planted {
  const char* name;
  const char* right;
  const char* wrong;
};
[[maybe_unused]] void PrintTo(const Planted& fault, std::ostream* out) { *out << fault.name; }

class PlantedFault : public ::testing::TestWithParam<Planted> {};
TEST_P(PlantedFault, IsSeen) {
  if (!cuda::open_nvrtc()) GTEST_SKIP() << "no NVRTC";
  const Planted& fault = GetParam();
  cuda::KernelSource source = every_source();
  std::string& text = source.headers.back().text;
  const auto at = text.find(fault.right);
  ASSERT_NE(at, std::string::npos) << "device_cuda.h no longer says " << fault.right;
  text.replace(at, std::strlen(fault.right), fault.wrong);
  std::string seen;
  try {
    static const Outcome expected = run(emulated(900));
    seen = difference(expected, run(emulator::load_ptx(source, "compute_90a")));
  } catch (const Failure& failure) {
    seen = std::string(failure.what()).substr(0, std::string(failure.what()).find('\n'));
  } catch (const Error& error) {
    seen = error.what();
  }
  EXPECT_NE(seen, "");
  std::printf("%s: %s\n", fault.name, seen.c_str());
}
INSTANTIATE_TEST_SUITE_P(
    , PlantedFault,
    ::testing::Values(
        Planted{"pack_bf16_halves_swapped", R"("=r"(r) : "f"(hi), "f"(lo))", R"("=r"(r) : "f"(lo), "f"(hi))"},
        Planted{"add_bf16x2_subtracts", "0x3f803f80u", "0xbf803f80u"},
        Planted{"masked_or_without_mask", "%3, 0xea;", "%3, 0xfa;"},
        Planted{"masked_or_operands_swapped", R"("r"(v), "r"(mask), "r"(bits))",
                R"("r"(v), "r"(bits), "r"(mask))"},
        Planted{"bytes_permuted_of_the_other_word", "__byte_perm(a, b,", "__byte_perm(b, a,"},
        Planted{"to_f16_rounds_to_zero", "cvt.rn.f16.f32", "cvt.rz.f16.f32"},
        Planted{"bf16_for_f16", "cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"},
        Planted{"bar_sync_operands_swapped", R"("bar.sync %0, %1;")", R"("bar.sync %1, %0;")"},
        Planted{"registers_taken_given", "setmaxnreg.inc", "setmaxnreg.dec"},
        Planted{"bar_arrive_waits", "bar.arrive", "bar.sync"},
        Planted{"vote_negated", "setp.ne.u32 p, %3, 0", "setp.eq.u32 p, %3, 0"},
        Planted{"vote_ignored", "selp.u32 %0, 1, 0, q", "selp.u32 %0, 0, 0, q"},
        Planted{"shfl_down_goes_up", "__shfl_down_sync", "__shfl_up_sync"},
        Planted{"shfl_xor_by_index", "__shfl_xor_sync", "__shfl_sync"},
        Planted{"ldmatrix_not_transposed", "m8n8.x4.trans", "m8n8.x4"},
        Planted{"ldmatrix_registers_swapped", R"("=r"(r[0]), "=r"(r[1]), "=r"(r[2]))",
                R"("=r"(r[0]), "=r"(r[2]), "=r"(r[1]))"},
        Planted{"mma_fragments_of_a_swapped", R"("r"(a[1]), "r"(a[2]))", R"("r"(a[2]), "r"(a[1]))"},
        Planted{"mma_fragments_of_b_swapped", R"("r"(b[0]), "r"(b[1]))", R"("r"(b[1]), "r"(b[0]))"},
        Planted{"mma_does_not_add_up", R"("+f"(d[0]), "+f"(d[1]))", R"("+f"(d[1]), "+f"(d[0]))"},
        Planted{"mma_of_the_other_type", "f32.bf16.bf16.f32", "f32.f16.f16.f32"},
        Planted{"ld_nc_elements_swapped", R"({%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y))",
                R"({%0,%1,%2,%3}, [%4];" : "=r"(x.y), "=r"(x.x))"},
        Planted{"ld_global_elements_swapped", R"(: "=r"(x.x), "=r"(x.y) : "l"(p) : "memory")",
                R"(: "=r"(x.y), "=r"(x.x) : "l"(p) : "memory")"},
        Planted{"ld_global_read_only", "ld.global.cg.u32", "ld.global.nc.u32"},
        Planted{"ld_global_from_l1", "ld.global.cg.v4.u32", "ld.global.v4.u32"},
        Planted{"ld_words_swapped", R"(ld.relaxed.gpu.global.v2.u32 {%0,%1})",
                R"(ld.relaxed.gpu.global.v2.u32 {%1,%0})"},
        Planted{"ld_words_not_relaxed", "ld.relaxed.gpu.global.v4.u32", "ld.global.v4.u32"},
        Planted{"ld_words_pair_not_relaxed", "ld.relaxed.gpu.global.v2.u32", "ld.global.v2.u32"},
        Planted{"ld_words_of_the_block", "ld.relaxed.gpu.global.u32", "ld.relaxed.cta.global.u32"},
        Planted{"st_words_not_relaxed", "st.relaxed.gpu.global.v2.u32", "st.global.v2.u32"},
        Planted{"st_words_swapped", "st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4}",
                "st.relaxed.gpu.global.v4.u32 [%0], {%2,%1,%3,%4}"},
        Planted{"ld_words_of_sys_of_the_gpu", "ld.relaxed.sys.global.v4.u32", "ld.relaxed.gpu.global.v4.u32"},
        Planted{"st_words_of_sys_swapped", "st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4}",
                "st.relaxed.sys.global.v4.u32 [%0], {%1,%3,%2,%4}"},
        Planted{"acquire_is_relaxed", "ld.acquire.", "ld.relaxed."},
        Planted{"release_is_relaxed", "st.release.", "st.relaxed."},
        Planted{"relaxed_releases", "st.relaxed.\" scope", "st.release.\" scope"},
        Planted{"scope_gpu_is_block", R"(ARK_SCOPED_##instruction("gpu")",
                R"(ARK_SCOPED_##instruction("cta")"},
        Planted{"scope_sys_is_gpu", R"(ARK_SCOPED_##instruction("sys")", R"(ARK_SCOPED_##instruction("gpu")"},
        Planted{"red_is_relaxed", "red.release.", "red.relaxed."},
        Planted{"relaxed_red_releases", "red.relaxed.", "red.release."},
        Planted{"atom_adds_the_address", R"("atom.acq_rel." scope ".global.add." type " %0, [%1], %2;")",
                R"("atom.acq_rel." scope ".global.add." type " %0, [%1], %1;")"},
        Planted{"cas_operands_swapped", R"( %0, [%1], %2, %3;")", R"( %0, [%1], %3, %2;")"},
        Planted{"word_too_short", R"(letter "64", "l")", R"(letter "32", "l")"},
        Planted{"fence_of_the_block", "fence.acq_rel.gpu", "fence.acq_rel.cta"},
        Planted{"fence_missing", R"(asm volatile("fence.acq_rel.sys;" ::: "memory"))", ""},
        Planted{"shared_word_at_a_generic_address", R"("=r"(v) : "r"(shared_address(p)) : "memory");
  return v)",
                R"("=r"(v) : "r"(static_cast<u32>(reinterpret_cast<u64>(p))) : "memory");
  return v)"},
        Planted{"cp_async_fill_copies_all", "[%0], [%1], 16, %2;", "[%0], [%1], 16, 16;"},
        Planted{"cp_async_group_never_closed", R"("cp.async.commit_group;")", R"("")"},
        Planted{"cp_async_waits_for_none", R"("cp.async.wait_group %0;" ::"n"(kPending))",
                R"("cp.async.wait_group %0;" ::"n"(kPending + 2))"},
        Planted{"mbarrier_of_other_arrivals", "mbarrier.init.shared.b64 [%0], %1;",
                "mbarrier.init.shared.b64 [%0], 3;"},
        Planted{"mbarrier_never_invalidated", "mbarrier.inval.shared.b64 [%0];", ""},
        Planted{"mbarrier_init_not_fenced", "fence.mbarrier_init.release.cluster;", ""},
        Planted{"mbarrier_arrives_twice", "mbarrier.arrive.shared.b64 t, [%0]; }",
                "mbarrier.arrive.shared.b64 t, [%0]; mbarrier.arrive.shared.b64 t, [%0]; }"},
        Planted{"mbarrier_wrong_parity",
                "mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;",
                "mbarrier.try_wait.parity.shared.b64 p, [%1], 1; selp.u32 %0, 1, 0, p;"},
        Planted{"mbarrier_wait_negated", "selp.u32 %0, 1, 0, p; }\"\n               : \"=r\"(done)\n",
                "selp.u32 %0, 0, 1, p; }\"\n               : \"=r\"(done)\n"},
        Planted{"mbarrier_test_of_another_phase",
                "mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;",
                "mbarrier.test_wait.parity.shared.b64 p, [%1], 1; selp.u32 %0, 1, 0, p;"},
        Planted{"expected_bytes_missing", "mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1;",
                "mbarrier.arrive.shared.b64 t, [%0];"},
        Planted{"proxy_fence_missing", "fence.proxy.async;", ""},
        Planted{"bulk_load_ends_swapped", R"("l"(global), "r"(bytes), "r"(shared_address(barrier)))",
                R"("l"(global), "r"(shared_address(barrier)), "r"(bytes))"},
        Planted{"bulk_load_of_fewer_bytes", R"("l"(global), "r"(bytes), "r"(shared_address(barrier)))",
                R"("l"(global), "r"(bytes / 2), "r"(shared_address(barrier)))"},
        Planted{"bulk_load_without_a_policy", R"("l"(policy)
      : "memory")",
                R"("l"(u64{0})
      : "memory")"},
        Planted{"bulk_group_never_closed", R"("cp.async.bulk.commit_group;")", R"("")"},
        Planted{"bulk_wait_reads_only", "cp.async.bulk.wait_group %0", "cp.async.bulk.wait_group.read %0"},
        Planted{"bulk_prefetch_of_other_bytes", R"("l"(global), "r"(bytes));)", R"("l"(global), "r"(16));)"},
        Planted{"prefetch_missing", "prefetch.global.L2 [%0];", ""},
        Planted{"nc_of_other_width", "ld.global.nc.u16", "ld.global.nc.u8"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ark::test

extern "C" void ark_every_result(int slot, const char* name, int ulps) {
  ark::test::slots.at(static_cast<std::size_t>(slot)) = {name, ulps};
}
