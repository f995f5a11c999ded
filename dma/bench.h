// What the transports take, for `ark-bench dma`: latency and bandwidth by message size, and the latency of what is
// urgent beside a stream of bulk.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ark::dma {

struct TransportKind;

struct BenchOptions {
  // Bytes, multiples of 4.
  std::vector<uint64_t> sizes = {4, 64, 1024, 16 << 10, 256 << 10, 4 << 20};
  std::chrono::milliseconds time_per_row{100};  // for each figure
  int busy_threads = 2;   // of this machine, by which SpinPolicy is adapted where two threads are measured
  std::string transport;  // the one to measure, as in transports.h; "": all that work here
};

struct Percentiles {
  double p50 = 0, p99 = 0;
  double p10 = 0;  // what it takes where nobody else wants the processors; of BenchRow alone
};

// Of some values, each times `scale`.
Percentiles percentiles_of(std::vector<double> values, double scale = 1);

struct BenchRow {
  static constexpr int kBatch = 16;
  std::string transport;  // as in transports.h
  std::string link;       // "direct", "posted"
  uint64_t bytes = 0;
  Percentiles latency_us;           // half of a round trip with the same bytes both ways
  double gigabytes_per_second = 0;  // batches of kBatch puts and an answer, median; 10^9 bytes
  double messages_per_second = 0;   // of the same batches
};

// Posted links: `bytes` there and back as decode, alone and while a stream of puts of `bulk_bytes` goes the same way.
struct LoadRow {
  static constexpr uint64_t kBytes = 4 << 10, kBulkBytes = 4 << 20;
  std::string transport;
  Percentiles alone_us;             // half of a round trip
  Percentiles beside_us;            // with the stream as bulk
  Percentiles one_queue_us;         // with the stream as decode: the plain twin, where nothing overtakes
  double gigabytes_per_second = 0;  // of the stream as bulk
  double one_queue_gigabytes_per_second = 0;
};

// Messages of kBytes (dma/message.h) from one thread to another, as fast as both can.
struct MessageRow {
  static constexpr uint64_t kBytes = 64;
  static constexpr uint32_t kSlots = 64;
  std::string transport;
  std::string link;
  double per_second = 0;
  double wakes_per_message = 0;  // of all threads that have to do with it
};

// The sum of all ranks' `bytes` of f32 to each, as programs make it: each sends its part to all others, and adds up all
// in rank order.
struct ReduceRow {
  std::string transport;
  std::string link;
  int ranks = 0;
  uint64_t bytes = 0;
  Percentiles latency_us;  // of one, while they follow one another
};

// Those that the options ask for, of those that work here.
std::vector<const TransportKind*> measured_transports(const BenchOptions& options);
// These and their links in turn, between two threads of this process; one row per size.
// Throws Error.
std::vector<BenchRow> run_bench(const BenchOptions& options);
// Of one of them: a row per size; none where it has no direct links and `posted` is false.
std::vector<BenchRow> bench_link(const std::string& transport, bool posted, const BenchOptions& options);
// One row a transport; the three take turns.
std::vector<LoadRow> run_load_bench(const BenchOptions& options);
// One row a transport and link; last the plain twin, "socketpair": each message is two system calls and wakes who
// waits.
std::vector<MessageRow> run_message_bench(const BenchOptions& options);
// Transports, links and sizes, by number of ranks, which are threads of this process.
std::vector<ReduceRow> run_reduce_bench(const BenchOptions& options, const std::vector<int32_t>& ranks);

}  // namespace ark::dma
