// What travels in a gradient's stead. What a compression leaves out is not lost: it is added to the next step's
// gradient (sync/gradient_compressor.hpp). docs/compression.md tells when to use which.
//
//   Compression compression = TopK{.fraction = 0.01};
//   to_json(compression);              // {"TopK": 0.01}
//   parse_compression("TopK:0.01");    // the same, from a command line
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>

namespace tutti {

// Gradients travel as they are.
struct NoCompression {
  friend bool operator==(const NoCompression&, const NoCompression&) = default;
};

// Of each gradient this share of its values, those of the largest magnitude; at least one.
struct TopK {
  double fraction = 0.01;
  friend bool operator==(const TopK&, const TopK&) = default;
};

// Half the bytes of float32: 11 bits that count, up to 65504.
struct Float16 {
  friend bool operator==(const Float16&, const Float16&) = default;
};

// The same bytes: 8 bits that count, and the range of float32.
struct BFloat16 {
  friend bool operator==(const BFloat16&, const BFloat16&) = default;
};

// A matrix as the product of two narrow ones, so many columns wide (Vogels, Karimireddy, Jaggi: "PowerSGD", 2019).
struct PowerSgd {
  int rank = 2;
  friend bool operator==(const PowerSgd&, const PowerSgd&) = default;
};

using Compression = std::variant<NoCompression, TopK, Float16, BFloat16, PowerSgd>;

// One of each, with their defaults.
std::vector<Compression> compressions();

// Throws a UsageError for what cannot be: a fraction outside (0, 1], a rank below 1.
void validate(const Compression& compression);

// "Float16", "TopK:0.01", "PowerSgd:2": as on the command line.
std::string to_string(const Compression& compression);
Compression parse_compression(std::string_view text);

// "Float16", {"TopK": 0.01}, {"PowerSgd": 2}.
nlohmann::json to_json(const Compression& compression);
// Where it is none, the error lists `choices`.
Compression compression_from_json(const JsonValue& value, const std::vector<Compression>& choices = compressions());

}  // namespace tutti
