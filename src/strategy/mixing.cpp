#include <tutti/strategy/mixing.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using strategy::Topology;

constexpr std::uint64_t kTopologyDraws = 0x70b0109;

// As square as they get.
std::pair<int, int> grid_of(int replicas) {
  int rows = static_cast<int>(std::sqrt(static_cast<double>(replicas)));
  while (replicas % rows != 0) --rows;
  return {rows, replicas / rows};
}

void sort_apart(std::vector<int>& numbers, int without) {
  std::ranges::sort(numbers);
  const auto [first, last] = std::ranges::unique(numbers);
  numbers.erase(first, last);
  std::erase(numbers, without);
}

std::vector<std::vector<int>> two_circles(int replicas, std::uint64_t seed) {
  std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(replicas));
  for (std::uint64_t circle = 0; circle < 2; ++circle) {
    std::vector<int> order(static_cast<std::size_t>(replicas));
    std::iota(order.begin(), order.end(), 0);
    RandomStream draws({seed, kTopologyDraws, circle});
    draws.shuffle(std::span(order));
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int next = order[(i + 1) % order.size()];
      neighbours[static_cast<std::size_t>(order[i])].push_back(next);
      neighbours[static_cast<std::size_t>(next)].push_back(order[i]);
    }
  }
  for (std::size_t i = 0; i < neighbours.size(); ++i) sort_apart(neighbours[i], static_cast<int>(i));
  return neighbours;
}

}  // namespace

MixingMatrix::MixingMatrix(Topology topology, const MixingOptions& options)
    : topology_(topology), replicas_(options.replicas) {
  if (replicas_ < 1) throw UsageError(fmt::format("expected at least one replica to mix, found {}", replicas_));
  if (topology_ == Topology::torus) grid_ = grid_of(replicas_);
  if (topology_ == Topology::random) random_ = two_circles(replicas_, options.seed);
}

std::vector<int> MixingMatrix::neighbours(int replica) const {
  if (replica < 0 || replica >= replicas_)
    throw UsageError(fmt::format("expected a replica from 0 to {}, found {}", replicas_ - 1, replica));
  const auto around = [](int number, int count) { return (number % count + count) % count; };
  std::vector<int> its;
  switch (topology_) {
    case Topology::ring: its = {around(replica - 1, replicas_), around(replica + 1, replicas_)}; break;
    case Topology::complete:
      its.resize(static_cast<std::size_t>(replicas_));
      std::iota(its.begin(), its.end(), 0);
      break;
    case Topology::exponential:
      for (int distance = 1; distance < replicas_; distance *= 2) its.push_back(around(replica - distance, replicas_));
      break;
    case Topology::torus: {
      const auto [rows, columns] = grid_;
      const int row = replica / columns;
      const int column = replica % columns;
      for (const int step : {-1, 1}) {
        its.push_back(around(row + step, rows) * columns + column);
        its.push_back(row * columns + around(column + step, columns));
      }
      break;
    }
    case Topology::random: return random_[static_cast<std::size_t>(replica)];
  }
  sort_apart(its, replica);
  return its;
}

std::int64_t MixingMatrix::heard() const {
  const std::int64_t n = replicas_;
  if (topology_ == Topology::complete) return n * (n - 1);
  if (topology_ != Topology::random) return n * std::ssize(neighbours(0));  // each looks like the others
  std::int64_t sum = 0;
  for (const std::vector<int>& its : random_) sum += std::ssize(its);
  return sum;
}

std::vector<MixingWeight> MixingMatrix::row(int replica) const {
  const std::vector<int> others = neighbours(replica);
  std::vector<MixingWeight> weights;
  double rest = 1;
  for (const int other : others) {
    const std::size_t most = topology_ == Topology::random
                                 ? std::max(others.size(), random_[static_cast<std::size_t>(other)].size())
                                 : others.size();
    const double weight = 1 / static_cast<double>(most + 1);
    weights.push_back({other, weight});
    rest -= weight;
  }
  const double own = topology_ == Topology::random ? rest : 1 / static_cast<double>(others.size() + 1);
  const auto place = std::ranges::find_if(weights, [&](const MixingWeight& its) { return its.replica > replica; });
  weights.insert(place, {replica, own});
  return weights;
}

// All but random ones look the same from each replica, and waves around the circle or the grid are their eigenvectors:
// what becomes of a wave at replica 0 is its eigenvalue.
double MixingMatrix::second_eigenvalue() const {
  if (replicas_ == 1 || topology_ == Topology::complete) return 0;
  if (topology_ != Topology::random) return second_of_waves(row(0));
  std::vector<std::vector<MixingWeight>> rows;
  for (int i = 0; i < replicas_; ++i) rows.push_back(row(i));
  return second_of_random(rows);
}

// The expected matrix: with each event a share of 1/n of it is the mean of replica i and a neighbour.
double MixingMatrix::gossip_eigenvalue() const {
  if (replicas_ == 1) return 0;
  const double n = replicas_;
  if (topology_ == Topology::complete) return 1 - 1 / (n - 1);
  std::vector<std::vector<MixingWeight>> rows(static_cast<std::size_t>(replicas_));
  const auto add = [&](int i, int j, double weight) {
    std::vector<MixingWeight>& its = rows[static_cast<std::size_t>(i)];
    const auto found = std::ranges::find(its, j, &MixingWeight::replica);
    if (found == its.end())
      its.push_back({j, weight});
    else
      found->weight += weight;
  };
  for (int i = 0; i < replicas_; ++i) add(i, i, 1);
  for (int i = 0; i < replicas_; ++i) {
    const std::vector<int> others = neighbours(i);
    const double share = 1 / (2 * n * static_cast<double>(others.size()));
    for (const int j : others) {
      add(i, i, -share);
      add(j, j, -share);
      add(i, j, share);
      add(j, i, share);
    }
  }
  return topology_ == Topology::random ? second_of_random(rows) : second_of_waves(rows.front());
}

double MixingMatrix::second_of_waves(const std::vector<MixingWeight>& first) const {
  const auto [rows, columns] = topology_ == Topology::torus ? grid_ : std::pair(1, replicas_);
  double second = 0;
  for (int k = 0; k < rows; ++k) {
    for (int l = k == 0 ? 1 : 0; l < columns; ++l) {
      std::complex<double> value;
      for (const MixingWeight& its : first) {
        const double turns = static_cast<double>(k) * (its.replica / columns) / rows +
                             static_cast<double>(l) * (its.replica % columns) / columns;
        value += std::polar(its.weight, 2 * std::numbers::pi * turns);
      }
      second = std::max(second, std::abs(value));
    }
  }
  return second;
}

// Differences from the mean are mixed until their length shrinks by the same factor again and again.
double MixingMatrix::second_of_random(const std::vector<std::vector<MixingWeight>>& rows) const {
  constexpr int kMostSteps = 10'000;
  constexpr double kPrecision = 1e-12;
  const auto n = static_cast<std::size_t>(replicas_);
  std::vector<double> now(n);
  RandomStream draws({kTopologyDraws});
  for (double& value : now) value = draws.uniform() - 0.5;
  std::vector<double> next(n);
  double factor = 0;
  for (int step = 0; step < kMostSteps; ++step) {
    const double mean = std::accumulate(now.begin(), now.end(), 0.0) / replicas_;
    double length = 0;
    for (double& value : now) {
      value -= mean;
      length += value * value;
    }
    length = std::sqrt(length);
    if (!(length > 0)) return 0;
    double mixed = 0;
    for (std::size_t i = 0; i < n; ++i) {
      next[i] = 0;
      for (const MixingWeight& its : rows[i]) next[i] += its.weight * now[static_cast<std::size_t>(its.replica)];
      mixed += next[i] * next[i];
    }
    const double before = std::exchange(factor, std::sqrt(mixed) / length);
    for (std::size_t i = 0; i < n; ++i) now[i] = next[i] / (factor * length);
    if (factor < kPrecision) return 0;
    if (std::abs(factor - before) < kPrecision) break;
  }
  return factor;
}

double spectral_gap_of(const strategy::Decentralized& strategy, const MixingOptions& options) {
  const MixingMatrix mixing(strategy.topology, options);
  return strategy.gossip ? 1 - std::pow(mixing.gossip_eigenvalue(), mixing.size()) : mixing.spectral_gap();
}

}  // namespace tutti
