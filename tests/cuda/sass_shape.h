// What the machine code of a loop kernel is made of, function by function: nvdisasm's text of a cubin, counted.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ark::test {

// ARK_NVDISASM, the toolkit's, or that of the wheel nvidia-cuda-nvdisasm in the active virtual environment.
inline std::optional<std::filesystem::path> find_nvdisasm() {
  namespace fs = std::filesystem;
  if (const char* variable = std::getenv("ARK_NVDISASM")) return variable;
  std::error_code error;
  if (const fs::path toolkit = "/usr/local/cuda/bin/nvdisasm"; fs::exists(toolkit, error)) return toolkit;
  const char* environment = std::getenv("VIRTUAL_ENV");
  if (!environment) return {};
  for (const fs::directory_entry& python : fs::directory_iterator(fs::path(environment) / "lib", error)) {
    const fs::path wheel = python.path() / "site-packages/nvidia/cu13/bin/nvdisasm";
    if (fs::exists(wheel, error)) return wheel;
  }
  return {};
}

// Of one function. Loops are innermost ones.
struct SassShape {
  int local = 0;         // loads and stores of local memory: spilled registers, arrays that found none
  int generic = 0;       // loads and stores of an address whose memory the compiler does not know
  int system = 0;        // fences that wait for the host's memory and other GPUs'
  int rolled = 0;        // loops that load one or two numbers from memory and store, then load the next
  int products = 0;      // on tensor cores
  int bulk_copies = 0;   // by the copy engine
  int async_copies = 0;  // of single threads
  int moves = 0;         // of registers to other warps
};

// "MatMul<ark::dev::f16, 64, (MatMulPath)2>" of a case's function, "divide" of another.
inline std::string function_name(std::string symbol) {
  if (const auto at = symbol.find("_Z"); at != std::string::npos) symbol = symbol.substr(at);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : symbol;
  for (const std::string_view prefix : {"ark::cuda::", "ark::"}) {
    for (auto at = name.find(prefix); at != std::string::npos; at = name.find(prefix, at))
      name.erase(at, prefix.size());
  }
  if (const auto begin = name.find("run_case<"), end = name.rfind(">("); begin != std::string::npos)
    return name.substr(begin + 9, name.find_last_not_of(' ', end - 1) - begin - 8);
  if (const auto type = name.find(' '); type < name.find_first_of("<("))
    name = name.substr(type + 1);  // what it returns
  return name.substr(0, name.find_first_of("<("));
}

// Counts instructions of a function, in order.
class ShapeCounter {
 public:
  void label(const std::string& name) { labels_[name] = lines_.size(); }
  // `opcode`: with its modifiers.
  void instruction(std::string_view opcode, std::string_view operands) {
    const auto is = [&](std::string_view name) {
      return opcode == name || (opcode.starts_with(name) && opcode[name.size()] == '.');
    };
    shape_.local += is("LDL") || is("STL");
    shape_.generic += is("LD") || is("ST");
    shape_.system += is("MEMBAR") && opcode.find(".SYS") != std::string_view::npos;
    shape_.products += is("HMMA");
    shape_.bulk_copies += is("UBLKCP");
    shape_.async_copies += is("LDGSTS");
    shape_.moves += is("USETMAXREG");
    lines_.push_back({is("LD") || is("LDG"), is("ST") || is("STG") || is("STS")});
    const auto begin = is("BRA") ? operands.find(".L") : std::string_view::npos;
    if (begin == std::string_view::npos) return;
    const auto found = labels_.find(std::string(operands.substr(begin, operands.find(')', begin) - begin)));
    if (found != labels_.end()) loops_.push_back({found->second, lines_.size()});
  }
  SassShape shape() const {
    SassShape all = shape_;
    // End, by first line: behind the last branch back, `continue` or not.
    std::map<std::size_t, std::size_t> innermost;
    for (const Loop& loop : loops_) {
      const bool holds_other = std::any_of(loops_.begin(), loops_.end(), [&](const Loop& other) {
        return other.first > loop.first && other.end < loop.end;
      });
      if (!holds_other) innermost[loop.first] = std::max(innermost[loop.first], loop.end);
    }
    for (const auto& [first, end] : innermost) {
      int loads = 0, stores = 0;
      for (std::size_t i = first; i < end; ++i) loads += lines_[i].loads, stores += lines_[i].stores;
      all.rolled += loads > 0 && loads < 3 && stores > 0;
    }
    return all;
  }

 private:
  struct Line {
    bool loads, stores;  // loads: from memory; stores: there, or to shared memory
  };
  struct Loop {
    std::size_t first, end;  // lines from a label to a branch back to it
  };
  SassShape shape_;
  std::vector<Line> lines_;
  std::vector<Loop> loops_;
  std::map<std::string, std::size_t> labels_;
};

// nvdisasm's text, line by line: the shape of each function.
class SassText {
 public:
  void read(std::string_view line) {
    const auto type = line.find(".type"), end = line.find(",@function");
    if (type != std::string_view::npos && end != std::string_view::npos) {
      const auto begin = line.find_first_not_of(" \t", type + 5);
      function_ = &functions_[function_name(std::string(line.substr(begin, end - begin)))];
    } else if (const auto size = line.find(",(.L"); line.find(".size") < size && size != line.npos) {
      end_ = line.substr(size + 2, line.find(' ', size) - size - 2);
    } else if (!end_.empty() && line.starts_with(end_ + ":")) {
      function_ = &functions_["behind all"];
    } else if (function_ && line.starts_with(".L")) {
      function_->label(std::string(line.substr(0, line.find(':'))));
    } else if (function_) {
      read_instruction(line);
    }
  }
  std::map<std::string, SassShape> shapes() const {
    std::map<std::string, SassShape> all;
    for (const auto& [name, counter] : functions_) all[name] = counter.shape();
    return all;
  }

 private:
  // "  /*0a10*/  @!P0 LDG.E.64.STRONG.GPU R4, [R4] ;"
  void read_instruction(std::string_view line) {
    auto at = line.find("*/");
    if (at == std::string_view::npos || line.find("/*") > at) return;
    at = line.find_first_not_of(" \t", at + 2);
    if (at != std::string_view::npos && line[at] == '@')
      at = line.find_first_not_of(" \t", line.find(' ', at));
    if (at == std::string_view::npos || line[at] < 'A' || line[at] > 'Z') return;
    const auto after = std::min(line.find_first_of(" ;\n", at), line.size());
    function_->instruction(line.substr(at, after - at), line.substr(after));
  }
  std::map<std::string, ShapeCounter> functions_;
  std::string end_;  // the label at which the last one ends; seldom run parts of others are behind it
  ShapeCounter* function_ = nullptr;
};

// By function. Throws Error where nvdisasm does not run.
inline std::map<std::string, SassShape> shapes_of(const std::vector<std::byte>& cubin,
                                                  const std::filesystem::path& nvdisasm,
                                                  const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "loop.cubin";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(cubin.data()), static_cast<std::streamsize>(cubin.size()));
  // Without its analysis of control flow, which takes a third of its time, and what it says of jump tables then.
  const std::string command = "'" + nvdisasm.string() + "' -c -ndf '" + file.string() + "' 2>/dev/null";
  FILE* const lines = ::popen(command.c_str(), "r");
  if (!lines) throw Error(Code::kUnavailable, nvdisasm.string() + " cannot be run");
  SassText text;
  for (char line[4096]; std::fgets(line, sizeof line, lines);) text.read(line);
  if (::pclose(lines) != 0)
    throw Error(Code::kUnavailable, nvdisasm.string() + " does not disassemble the loop's cubin");
  return text.shapes();
}

}  // namespace ark::test
