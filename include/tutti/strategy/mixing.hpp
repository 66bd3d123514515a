// With whom replicas average their parameters after each step, and how much each counts: a matrix whose rows and
// columns add up to 1, so that the mean over all replicas stays what it is.
//
//   const MixingMatrix mixing(strategy::Topology::ring, {.replicas = 8});
//   for (const MixingWeight& its : mixing.row(3)) mixed += its.weight * parameters[its.replica];
//   mixing.spectral_gap();                     // by which share differences shrink in a step, at least
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/strategy/data_parallel.hpp>

namespace tutti {

struct MixingWeight {
  int replica = 0;
  double weight = 0;
  friend bool operator==(const MixingWeight&, const MixingWeight&) = default;
};

struct MixingOptions {
  int replicas = 1;
  std::uint64_t seed = 0;  // of the topology random
};

// Neighbours of replica i, of n:
//   ring          i - 1 and i + 1
//   complete      all
//   exponential   i - 1, i - 2, i - 4, ...: whom it hears, and not who hears it
//   torus         four, in a grid as square as n allows; a ring where n is prime
//   random        before and behind it in two circles that the seed draws
// All count alike; where they have neighbours of different numbers (random), as Metropolis and Hastings weigh them.
class MixingMatrix {
 public:
  // A UsageError where there is no replica.
  MixingMatrix(strategy::Topology topology, const MixingOptions& options);

  int size() const { return replicas_; }
  // What a replica's parameters become: by number, itself among them.
  std::vector<MixingWeight> row(int replica) const;
  // Whom it hears, without itself, by number.
  std::vector<int> neighbours(int replica) const;
  // How many all replicas hear, together.
  std::int64_t heard() const;

  // The norm of what the matrix does to differences from the mean: for a matrix as these, the absolute value of its
  // second eigenvalue. 0 where one step makes all alike.
  double second_eigenvalue() const;
  double spectral_gap() const { return 1 - second_eigenvalue(); }

  // Of gossip, where a replica that all are as likely to be takes the mean with a neighbour that all of its are as
  // likely to be: the expected square of the distance from the mean is multiplied by no more than this with each. 1
  // where not everybody is reached; 0 where there is nobody else.
  double gossip_eigenvalue() const;

 private:
  // The largest of those that a wave, or what differs from the mean, has where rows are these.
  double second_of_waves(const std::vector<MixingWeight>& first_row) const;
  double second_of_random(const std::vector<std::vector<MixingWeight>>& rows) const;

  strategy::Topology topology_;
  int replicas_;
  std::pair<int, int> grid_ = {1, 1};     // of a torus: rows and columns
  std::vector<std::vector<int>> random_;  // neighbours, by replica
};

// By which share differences between replicas shrink at least: in a step, or where they gossip for a gradient of each,
// of what is left of the square of the distance from the mean.
double spectral_gap_of(const strategy::Decentralized& strategy, const MixingOptions& options);

}  // namespace tutti
