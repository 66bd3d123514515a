// Which algorithm an all-reduce runs. All give the same result; docs/algorithms.md tells how each works.
//
//   AllReduceStrategy strategy = Tree{.arity = 4};
//   to_json(strategy);                      // {"Tree": 4}
//   parse_all_reduce_strategy("Tree:4");    // the same, from a command line
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>

namespace tutti {

// Picks one of the others by size, ranks and locality.
struct Auto {
  friend bool operator==(const Auto&, const Auto&) = default;
};

// One rank receives everything, reduces, sends back.
struct Centralized {
  friend bool operator==(const Centralized&, const Centralized&) = default;
};

// Each rank reduces its children into itself and sends to its parent; the root's result travels down.
struct Tree {
  int arity = 2;
  friend bool operator==(const Tree&, const Tree&) = default;
};

// N slices, N-1 steps to reduce, N-1 to gather.
struct Ring {
  friend bool operator==(const Ring&, const Ring&) = default;
};

// Where ranks share memory: each reduces one slice straight out of everybody's buffer and into everybody's buffer.
struct SharedSlices {
  friend bool operator==(const SharedSlices&, const SharedSlices&) = default;
};

// Ranks exchange everything with a partner at distance 1, 2, 4, ...: few steps, for small arrays.
struct RecursiveDoubling {
  friend bool operator==(const RecursiveDoubling&, const RecursiveDoubling&) = default;
};

// Ranks exchange halves, quarters, ... with such partners, and gather the same way back: few steps and few bytes.
struct HalvingDoubling {
  friend bool operator==(const HalvingDoubling&, const HalvingDoubling&) = default;
};

// Where ranks are processes over Gloo: its own all-reduce. No promise on the order of sums.
struct Gloo {
  friend bool operator==(const Gloo&, const Gloo&) = default;
};

using AllReduceStrategy =
    std::variant<Auto, Centralized, Tree, Ring, SharedSlices, RecursiveDoubling, HalvingDoubling, Gloo>;

// One of each, trees at their default arity.
std::vector<AllReduceStrategy> all_reduce_strategies();
// Those that an engine under the transport brings, and those that are tutti's own.
bool is_of_engine(const AllReduceStrategy& strategy);
std::vector<AllReduceStrategy> own_all_reduce_strategies();

// Throws a UsageError for what no call could run: a tree of arity below 1.
void validate(const AllReduceStrategy& strategy);

// "Ring", "Tree:2": as on the command line.
std::string to_string(const AllReduceStrategy& strategy);
AllReduceStrategy parse_all_reduce_strategy(std::string_view text);

// "Ring", {"Tree": 2}.
nlohmann::json to_json(const AllReduceStrategy& strategy);
AllReduceStrategy all_reduce_strategy_from_json(const JsonValue& value);

}  // namespace tutti
