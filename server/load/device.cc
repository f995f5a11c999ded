#include "server/load/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/lamport_plan.h"
#include "engine/cuda/rank_ways.h"
#include "engine/program/kv_codec.h"
#include "engine/ragged_runner.h"
#include "engine/run/weight_store.h"
#include "server/command_line.h"

namespace ark {

void add_device_options(CommandLine& line, DeviceChoice& choice) {
  line.choice<Device>("--device", choice.device,
                      {{"auto", Device::kAuto}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
                      "auto takes a GPU if there is one, and one for each of several processes; cuda lets "
                      "these share what CUDA_VISIBLE_DEVICES leaves");
  add_numerics_option(line, choice);
  add_arithmetic_options(line, choice);
}

void add_numerics_option(CommandLine& line, DeviceChoice& choice) {
  line.choice<cuda::Numerics>(
      "--numerics", choice.numerics, {{"exact", cuda::Numerics::kExact}, {"fast", cuda::Numerics::kFast}},
      "on a GPU: with exact what a row comes to does not depend on what runs beside it; with fast steps of "
      "more than eight rows, as prompts and batches are, may round what meets weights of 16 bits to these, "
      "and what meets codes to bf16, in still larger tiles: up to twice as fast");
}

void add_weights_option(CommandLine& line, const std::string& name, WeightPolicy& weights,
                        const std::string& help) {
  line.choice<WeightPolicy>(name, weights,
                            {{"exact", WeightPolicy::kExact},
                             {"f32", WeightPolicy::kF32},
                             {"bf16", WeightPolicy::kBF16},
                             {"f16", WeightPolicy::kF16},
                             {"int8", WeightPolicy::kInt8},
                             {"int4", WeightPolicy::kInt4}},
                            help);
}

void add_arithmetic_options(CommandLine& line, DeviceChoice& choice) {
  add_weights_option(
      line, "--weights", choice.weights,
      "how matrices are kept: exact takes the fewest bits that change no number, f32 changes none and looks "
      "for none; the others round, int8 and int4 by blocks of 32, int4 with 8 bits for tables and head");
  line.choice<Activations>(
      "--activations", choice.activations,
      {{"auto", Activations::kAuto},
       {"f32", Activations::kF32},
       {"bf16", Activations::kBF16},
       {"int8", Activations::kInt8}},
      "what weights on a CPU are multiplied with: auto does each product as the file asks "
      "for, or as goes with weights that --weights rounds; f32 is the most exact; bf16 rounds to 8 bits what "
      "meets bf16 weights, int8 "
      "quantizes what meets integer codes: faster, with other last digits");
  std::vector<std::pair<std::string, DType>> types = {{"auto", DType::kUndefined}};
  for (const KvCodec& codec : kv_codecs()) types.emplace_back(codec.name, codec.type);
  line.choice<DType>(
      "--kv-dtype", choice.kv_dtype, types,
      "how keys and values are cached: fewer bits hold more tokens, and round; int8 and "
      "fp8_e4m3 with a scale "
      "a token and head; auto is f32, but on a GPU the 16-bit type of weights, of what --weights "
      "rounds to codes, or of codes' scales, on a "
      "CPU with AMX bf16 where rows are rounded as well");
}

std::shared_ptr<cuda::Gpu> choose_gpu(Device device, std::string* why,
                                      std::shared_ptr<const DiskCache> cache) {
  if (device == Device::kCpu) {
    *why = "asked for";
    return nullptr;
  }
  try {
    return cuda::open_gpu(0, std::move(cache));
  } catch (const Error& error) {
    if (device == Device::kCuda) throw;
    *why = error.what();
    return nullptr;
  }
}

bool wants_peer_links() {
  const char* links = std::getenv("ARK_GPU_LINKS");
  const std::string_view asked = links == nullptr ? "auto" : links;
  if (asked != "auto" && asked != "host")
    throw Error(Code::kUsage, "ARK_GPU_LINKS=" + escaped(asked) + ": give auto or host");
  return asked == "auto";
}

std::vector<cuda::PairWay> ways_between_gpus(int ranks) {
  std::vector<cuda::PairWay> ways;
  try {
    const int gpus = cuda::count_gpus();
    const bool is_wanted = wants_peer_links();
    for (int b = 0; b < ranks; ++b) {
      for (int a = 0; a < b; ++a)
        ways.push_back({a, b,
                        is_wanted ? cuda::why_unreachable(gpu_of_rank(a, gpus), gpu_of_rank(b, gpus))
                                  : cuda::kHostLinksAskedFor});
    }
    return ways;
  } catch (const Error&) {
    return {};
  }
}

std::string way_by_nic() {
  try {
    const int gpus = cuda::count_gpus();
    std::string why = wants_peer_links() ? "" : cuda::kHostLinksAskedFor;
    for (int gpu = 0; gpu < gpus && why.empty(); ++gpu) why = cuda::why_not_by_nic(gpu);
    return why.empty() ? "by a NIC that reads and writes GPU memory, if it takes a dma-buf of it"
                       : "through memory of the host (" + why + ")";
  } catch (const Error&) {
    return {};
  }
}

cuda::VariantSet variants_of(const std::vector<Program>& programs, cuda::Numerics numerics) {
  std::vector<const Program*> all;
  for (const Program& program : programs) all.push_back(&program);
  return {all, numerics};
}

std::string why_not_on_gpu(const std::vector<Program>& programs, cuda::Numerics numerics) {
  try {
    variants_of(programs, numerics);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

int64_t weight_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const WeightUse& use : program.weights) bytes += packed_bytes(use);
  return bytes;
}

int64_t pages_with_room(const Compiled& compiled, std::span<const int64_t> free, bool processes) {
  constexpr int64_t kContextBytes = int64_t{512} << 20;  // the driver's, of a process
  const auto gpus = static_cast<int>(free.size());
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int g = 0; g < gpus; ++g) {
    int64_t room = free[g] / 10 * 9, page = 0, ranks = 0;
    for (std::size_t r = 0; r < compiled.programs.size(); ++r) {
      if (gpu_of_rank(static_cast<int>(r), gpus) != g) continue;
      room -= weight_bytes(compiled.programs[r]) +
              static_cast<int64_t>(cuda::exchanged_bytes(compiled.programs[r])) +
              cuda::most_told_bytes(compiled.programs[r]) +
              2 * (compiled.bindings[r].act_bytes + compiled.bindings[r].inbox_bytes);
      page += page_bytes({compiled.programs[r]});
      ++ranks;
    }
    if (processes) room -= (ranks - 1) * kContextBytes;
    if (ranks > 0) least = std::min(least, room / std::max<int64_t>(1, page));
  }
  return least;
}

std::string describe(const cuda::DeviceExecutor& executor, const cuda::Gpu& gpu) {
  const cuda::KernelFacts& facts = executor.kernel_facts();
  char compiled[48];
  std::snprintf(compiled, sizeof compiled, "compiled in %.2f s", facts.compile_seconds);
  return cuda::describe(gpu.info()) + ", " + std::to_string(executor.processors()) + " processors a rank, " +
         std::to_string(facts.registers) + " registers, " +
         (facts.compile_seconds > 0 ? compiled : "from the cache");
}

}  // namespace ark
