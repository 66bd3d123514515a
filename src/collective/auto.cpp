#include <tutti/collective/auto.hpp>

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>
#include <tutti/transport/shared_board.hpp>

namespace tutti {
namespace {

// What a message costs, in seconds: to begin with, per byte moved, and per byte reduced. Round figures for a loopback
// socket and for a 10 Gbit/s network; only their proportions decide.
struct Link {
  double per_message;
  double per_byte;
  double per_byte_reduced;
};

constexpr Link kSameHost{35e-6, 1 / 2.5e9, 1 / 8e9};
constexpr Link kRemote{50e-6, 1 / 1.2e9, 1 / 8e9};

struct Estimate {
  AllReduceStrategy strategy;
  double seconds;
};

// As in docs/algorithms.md. Ranks beyond a power of two hand over and get back the whole array.
std::array<Estimate, 3> estimates(double bytes, int ranks, const Link& link) {
  const auto power = std::bit_floor(static_cast<unsigned>(ranks));
  const double steps = std::countr_zero(power);
  const double whole = link.per_message + bytes * link.per_byte;
  const double reduce_all = bytes * link.per_byte_reduced;
  const double extra = power == static_cast<unsigned>(ranks) ? 0 : 2 * whole + reduce_all;
  const double halves = (power - 1.0) / power;
  const double share = (ranks - 1.0) / ranks;
  return {{
      {RecursiveDoubling{}, steps * (whole + reduce_all) + extra},
      {HalvingDoubling{},
       2 * steps * link.per_message + 2 * halves * bytes * link.per_byte + halves * reduce_all + extra},
      {Ring{}, 2 * (ranks - 1) * link.per_message + 2 * share * bytes * link.per_byte + share * reduce_all},
  }};
}

std::array<Estimate, 3> estimates(Bytes size, const WorldShape& shape) {
  return estimates(static_cast<double>(size.value), shape.ranks,
                   shape.locality == Locality::remote ? kRemote : kSameHost);
}

const Estimate& cheapest(const std::array<Estimate, 3>& all) {
  return *std::ranges::min_element(all, {}, &Estimate::seconds);
}

}  // namespace

AllReduceStrategy choose_all_reduce(Bytes size, const WorldShape& shape) {
  if (shape.shared_memory) return SharedSlices{};
  return cheapest(estimates(size, shape)).strategy;
}

std::string explain_all_reduce(Bytes size, const WorldShape& shape) {
  const int ranks = shape.ranks;
  if (shape.shared_memory) {
    if (ranks == 1) return "SharedSlices: a rank alone has nothing to do";
    if (size.value <= SharedBoard::kSlotBytes) {
      return fmt::format(
          "SharedSlices: the ranks share memory, and up to {} each folds all {} arrays itself: they meet "
          "once and send nothing",
          to_string(Bytes{SharedBoard::kSlotBytes}), ranks);
    }
    if (shape.locality != Locality::same_address_space) {
      return fmt::format(
          "SharedSlices: the ranks share memory of their host: block by block through it, each folds 1/{} of all {} "
          "arrays",
          ranks, ranks);
    }
    return fmt::format(
        "SharedSlices: the ranks share memory: each folds 1/{} of all {} arrays in place and sends nothing", ranks,
        ranks);
  }
  const std::array<Estimate, 3> all = estimates(size, shape);
  const Estimate& best = cheapest(all);
  std::string others;
  for (const Estimate& other : all) {
    if (&other == &best) continue;
    others +=
        fmt::format("{}{} {:.0f} us", others.empty() ? "" : " and ", to_string(other.strategy), other.seconds * 1e6);
  }
  return fmt::format("{}: by messages ({}) about {:.0f} us, against {}", to_string(best.strategy),
                     to_string(shape.locality), best.seconds * 1e6, others);
}

}  // namespace tutti
