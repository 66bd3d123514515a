// A client's change of the parameters in fewer bytes, on its way to the server. What is left out of one round is added
// to the client's next.
//
//   ParameterSet remains;                                                   // the client's, kept between rounds
//   const std::vector<std::byte> message = encode_change(change, TopK{.fraction = 0.01}, {.remains = &remains});
//   const ParameterSet arrived = decode_change(message, model);             // on the server
//
// A message has the arrays in the order of the set. Float16 and BFloat16 send 2 bytes for each number; TopK of each
// array the numbers of the largest magnitude, with their places. Arrays that are not trained, and integers, go as they
// are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/strategy/compression.hpp>

namespace tutti {

inline constexpr const char* kPowerSgdIsForReplicas =
    "PowerSgd is for replicas that exchange factors in every step, not for the change of a client";

struct EncodeOptions {
  ParameterSet* remains = nullptr;    // added to the change; afterwards what the message has not of it: the arrays that
                                      // are compressed. Empty at first
  std::vector<bool> is_trained = {};  // by array; all where empty
};

// A UsageError for a compression that is not of one client alone (PowerSgd), and remains of another layout.
std::vector<std::byte> encode_change(const ParameterSet& change, const Compression& compression,
                                     const EncodeOptions& options = {});

// How many bytes of a message an array takes.
std::size_t encoded_bytes(const ParameterLayout& array, const Compression& compression, bool is_trained = true);

// A change of this layout. A UsageError says what is wrong with a message that is none.
ParameterSet decode_change(std::span<const std::byte> message, const ParameterSet& layout);

}  // namespace tutti
