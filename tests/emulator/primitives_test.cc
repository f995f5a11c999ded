// device.h compiles for each architecture with nothing but its own headers, and runs in the emulator.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/cuda/nvrtc.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/kernels/every_parameters.h"
#include "tests/fixtures.h"

namespace ark::dev {
extern "C" void every_primitive(const EveryParameters& p);
}

namespace ark::test {
namespace {

std::string read(const char* name) {
  std::ifstream file(source_root() / name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Primitives, CompileForEachArchitecture) {
  std::string why;
  const auto compiler = cuda::open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  const cuda::KernelSource source{
      "#include \"every_primitive.h\"\n",
      {{"every_primitive.h", read("tests/emulator/kernels/every_primitive.h")},
       {"tests/emulator/kernels/every_parameters.h", read("tests/emulator/kernels/every_parameters.h")},
       {"dma/device.h", read("dma/device.h")},
       {"dma/device_cuda.h", read("dma/device_cuda.h")}},
      {},
      "every_primitive"};
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100"}) {
    const cuda::CompiledCode code = compiler->compile(source, arch);
    EXPECT_GT(code.cubin.size(), 1000u) << arch;
  }
}

TEST(Primitives, RunInTheEmulator) {
  for (uint64_t seed = 1; seed <= 5; seed++) {
    emulator::Machine machine({.schedule = emulator::Schedule::kRandom,
                               .landing = emulator::Landing::kRandom,
                               .seed = seed,
                               .detector = true});
    auto allocate = [&](const char* name, uint8_t state = 0) {
      std::byte* p = machine.memory().allocate(8192, 0, name, state);
      std::memset(p, 0, 8192);
      machine.memory().initialise(p, 8192);
      return p;
    };
    dev::EveryParameters p{};
    p.constant = reinterpret_cast<dev::f32x4*>(allocate("constant", emulator::Memory::kConstant));
    p.floats = reinterpret_cast<float*>(allocate("floats"));
    p.words = reinterpret_cast<dev::u32*>(allocate("words"));
    p.long_words = reinterpret_cast<dev::u64*>(allocate("long words"));
    p.bytes = reinterpret_cast<dev::u8*>(allocate("bytes"));
    emulator::LaunchRequest request;
    request.threads = 64;
    request.shared_bytes = 8192;
    request.kernel = [](const void* q) { every_primitive(*static_cast<const dev::EveryParameters*>(q)); };
    request.parameter.resize(sizeof p);
    std::memcpy(request.parameter.data(), &p, sizeof p);
    machine.launch(std::move(request));
    machine.run();
    EXPECT_EQ(p.words[6], 1u);  // compared and swapped by the first scope, found changed by the others
    EXPECT_EQ(p.words[7], 1u);
  }
}

}  // namespace
}  // namespace ark::test
