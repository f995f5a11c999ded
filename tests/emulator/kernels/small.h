// Kernels of a few lines, each of which shows one rule of the machine; in small_kernel.cc, instrumented.
#pragma once

#include "dma/device.h"

namespace ark::test {

struct Words {
  ark::dev::u32* counter;
  float* data;
  const float* constant;
  int variant;  // what the kernel does, or how it is wrong
};

extern "C" {
void write_then_signal(const Words& p);
void barriers(const Words& p);
void memory_rules(const Words& p);
void collectives(const Words& p);
void copies(const Words& p);
void bulk(const Words& p);
void mbarriers(const Words& p);
void ordering(const Words& p);
void host_words(const Words& p);
void matrices(const Words& p);
void messages(const Words& p);
void registers(const Words& p);
}

}  // namespace ark::test
