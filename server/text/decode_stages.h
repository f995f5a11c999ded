// The stages that decoders are made of; see decoder.h.
#pragma once

#include "server/text/decoder.h"

namespace ark::text {

// `fused`: the stage's input is one token that comes in fragments.
Decoder::Step parse_decode_step(const JsonView& json, std::string_view type, bool fused);

// What a tokenizer without a decoder does.
std::unique_ptr<DecodeStage> join_with_spaces();

// The byte of a token "<0xNN>", or -1.
int fallback_byte(std::string_view token);

}  // namespace ark::text
