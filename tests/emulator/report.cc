// What failures say.
#include <dlfcn.h>

#include <cstdio>
#include <map>

#include "tests/emulator/core.h"

namespace ark::emulator {

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kRace:
      return "race";
    case Fault::kDeadlock:
      return "deadlock";
    case Fault::kBounds:
      return "out of bounds";
    case Fault::kHostMemory:
      return "host memory";
    case Fault::kAlignment:
      return "alignment";
    case Fault::kScope:
      return "scope";
    case Fault::kConstant:
      return "constant memory";
    case Fault::kUninitialised:
      return "uninitialised";
    case Fault::kInFlight:
      return "copy in flight";
    case Fault::kProxy:
      return "proxy fence";
    case Fault::kDivergence:
      return "divergence";
    case Fault::kBarrier:
      return "barrier";
    case Fault::kMbarrier:
      return "mbarrier";
    case Fault::kCopy:
      return "asynchronous copy";
    case Fault::kTrap:
      return "trap";
    case Fault::kPtx:
      return "PTX";
  }
  return "";
}

std::string Core::who(const Fiber& f) const {
  const Grid& grid = *f.warp->block->grid;
  return grid.request.name + ", gpu " + std::to_string(grid.request.gpu) + ", block " +
         std::to_string(f.ids.block) + ", thread " + std::to_string(f.ids.thread);
}

void Core::add_to_trace(const char* what, int64_t a, int64_t b, int64_t c) const {
  std::string text = what;
  for (const int64_t n : {a, b, c}) text.append(1, ' ').append(std::to_string(n));
  options.trace->push_back({fiber->ids.block, fiber->ids.thread, std::move(text)});
}

namespace {

std::string text_of(const Waiting& w, const Memory& memory) {
  std::string text = w.what;
  if (w.word) {
    text += " " + memory.describe(w.word) + ": seen " + std::to_string(w.seen) + ", needed " +
            std::to_string(w.needed);
  }
  if (w.at.line) text += " at " + std::string(w.at.file) + ":" + std::to_string(w.at.line);
  return text;
}

}  // namespace

std::string Core::waiting_report() const {
  std::string report;
  for (const auto& grid : grids) {
    for (const auto& block : grid->blocks) {
      std::map<std::string, std::pair<int, int>> groups;  // text -> threads, first of them
      for (const Fiber& f : block->fibers) {
        if (f.waiting.what == kEnded) continue;
        auto& [threads, first] = groups[text_of(f.waiting, memory)];
        if (!threads++) first = f.ids.thread;
      }
      for (const auto& [text, group] : groups) {
        report += "  " + grid->request.name + ", gpu " + std::to_string(grid->request.gpu) + ", block " +
                  std::to_string(block->index) + ": " + std::to_string(group.first) + " threads, the first " +
                  std::to_string(group.second) + ": " + text + "\n";
      }
      if (!block->bulk_loads.empty()) {
        report += "  block " + std::to_string(block->index) + ": " +
                  std::to_string(block->bulk_loads.size()) + " bulk copies in flight\n";
      }
    }
  }
  return report;
}

// file:line of a return address, the innermost that is not a primitive of ours.
std::string Core::describe(Place place) const {
  const uint64_t pc = (place & ~kAtomic) - 1;
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(pc), &info) || !info.dli_fname) return "?";
  char command[1200];
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%llx 2>/dev/null", info.dli_fname,
                static_cast<unsigned long long>(pc - reinterpret_cast<uint64_t>(info.dli_fbase)));
  std::string best = "?";
  if (FILE* pipe = popen(command, "r")) {
    char line[1024];
    bool found = false;
    while (std::fgets(line, sizeof line, pipe)) {
      std::string text(line);
      text = text.substr(0, text.find_first_of("\n("));
      if (found) continue;
      best = text;
      found = text.find("device_emulated.h") == std::string::npos &&
              text.find("dma/device.h") == std::string::npos;
    }
    pclose(pipe);
  }
  return best;
}

void Core::fail(const Race& race) {
  auto name = [&](ActorId id) {
    if (host && host->id == id) return std::string("the host");
    for (const auto& grid : grids) {
      for (const auto& block : grid->blocks) {
        if (block->engine.id == id) return "copy engine of block " + std::to_string(block->index);
        for (const Fiber& f : block->fibers) {
          if (f.actor.id == id) return who(f);
        }
      }
    }
    return std::string("an ended thread");
  };
  fail(std::string(race.kind).starts_with("bulk") ? Fault::kProxy : Fault::kRace,
       std::string(race.kind) + " of " + memory.describe(race.address) + ": " + name(race.now_actor) +
           " at " + describe(race.now) + (race.now & kAtomic ? " (atomic)" : "") + ", before by " +
           name(race.earlier_actor) + " at " + describe(race.earlier) +
           (race.earlier & kAtomic ? " (atomic)" : ""),
       {});
}

}  // namespace ark::emulator
