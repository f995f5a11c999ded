// Latency and bandwidth of the transports by message size, for `ark-bench dma`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ark::dma {

struct BenchOptions {
  // Bytes, multiples of 4.
  std::vector<uint64_t> sizes = {4, 64, 1024, 16 << 10, 256 << 10, 4 << 20};
  std::chrono::milliseconds time_per_row{100};  // for each of the two figures
};

struct BenchRow {
  std::string transport;  // as in transports.h
  std::string link;       // "direct", "posted"
  uint64_t bytes = 0;
  double latency_us = 0;  // half of a round trip with the same bytes both ways; median over batches of 16
  double gigabytes_per_second = 0;  // batches of 16 puts, median; 10^9 bytes
};

// All transports that work here and their links in turn, between two threads of this process; one row per size.
// Throws Error.
std::vector<BenchRow> run_bench(const BenchOptions& options);

}  // namespace ark::dma
