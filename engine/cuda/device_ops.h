// What the device side knows of each OpCode beside its body: which type of engine/cuda/bodies runs a phase, and what
// the phase's Instance tells it. One row an OpCode; the sizes' meaning stands at the bodies.
#pragma once

#include <vector>

#include "engine/cuda/phase_operands.h"
#include "engine/cuda/variants.h"

namespace ark::cuda {

// What an Instance needs beside the phase itself, as the device sees it.
struct InstancePlaces {
  std::vector<u64> operands;       // by operand; 0: absent, or an inbox
  u64 heads = 0;                   // kAttention: query heads of each KV head
  u64 partials = 0, arrivals = 0;  // kAttention: room for splits
  u64 aux = 0;                     // where `aux_sizes` will lie
  Size* aux_sizes = nullptr;       // [kAuxSizes]
};

struct DeviceOp {
  OpCode code;
  // Throws Error(kUnsupported) naming the node if it has no device code. Null: the type is named like the OpCode.
  DeviceVariant (*name)(const PhaseOperands& phase) = nullptr;
  // Sizes, reals, and operands that are not the phase's own in their order. Null: nothing.
  void (*fill)(const PhaseOperands& phase, const InstancePlaces& places, Instance& to) = nullptr;
  bool orders_operands = false;  // fill() gives all operands their places
};

const DeviceOp& device_op(OpCode code);

// What products do with their tiles instead of the phase, which is kKvAppend or kRotaryAppend.
DeviceVariant appended_variant(const PhaseOperands& append);
// What the Instance of a product says of that.
void fill_appended(const PhaseOperands& append, const InstancePlaces& places, const Appended::Part& part,
                   int32_t variant, Instance& to);

}  // namespace ark::cuda
