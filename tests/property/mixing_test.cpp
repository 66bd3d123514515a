// Mixing matrices over topologies x replicas: doubly stochastic, and differences shrink as their second eigenvalue
// says.
#include <tutti/strategy/mixing.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using strategy::Topology;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Topology kTopologies[] = {Topology::ring, Topology::complete, Topology::exponential, Topology::torus,
                                    Topology::random};
constexpr int kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 30};

using Dense = std::vector<std::vector<double>>;

Dense dense(const MixingMatrix& mixing) {
  const auto n = static_cast<std::size_t>(mixing.size());
  Dense all(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (const MixingWeight& its : mixing.row(static_cast<int>(i)))
      all[i][static_cast<std::size_t>(its.replica)] += its.weight;
  }
  return all;
}

Dense product(const Dense& a, const Dense& b) {
  Dense result(a.size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a.size(); ++k) {
      for (std::size_t j = 0; j < a.size(); ++j) result[i][j] += a[i][k] * b[k][j];
    }
  }
  return result;
}

double trace(const Dense& a) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i][i];
  return sum;
}

// Of D = W - 1/n: the largest eigenvalue of its square D'D is what the trace of high powers grows by.
double second_eigenvalue_by_powers(Dense d) {
  const double n = static_cast<double>(d.size());
  for (auto& row : d) {
    for (double& value : row) value -= 1 / n;
  }
  Dense transposed = d;
  for (std::size_t i = 0; i < d.size(); ++i) {
    for (std::size_t j = 0; j < d.size(); ++j) transposed[j][i] = d[i][j];
  }
  Dense power = product(transposed, d);
  double logarithm = 0;  // of what the power was divided by
  double exponent = 1;
  for (int i = 0; i < 24; ++i) {
    const double scale = trace(power);
    if (!(scale > 1e-200)) return 0;
    for (auto& row : power) {
      for (double& value : row) value /= scale;
    }
    logarithm += std::log(scale);
    power = product(power, power);
    logarithm *= 2;
    exponent *= 2;
  }
  return std::sqrt(std::exp((logarithm + std::log(trace(power))) / exponent));
}

template <typename Check>
void for_each_matrix(const Check& check) {
  for (const Topology topology : kTopologies) {
    for (const int size : kSizes) {
      for (const std::uint64_t seed : {0u, 7u}) {
        SCOPED_TRACE(std::string(strategy::topology_name(topology)) + ", " + std::to_string(size) + " replicas, seed " +
                     std::to_string(seed));
        check(MixingMatrix(topology, {.replicas = size, .seed = seed}));
        if (topology != Topology::random) break;
      }
    }
  }
}

TEST(MixingMatrix, CountsWhomAllHear) {
  for (const Topology topology : kTopologies) {
    for (const int n : kSizes) {
      const MixingMatrix mixing(topology, {.replicas = n, .seed = 5});
      std::int64_t sum = 0;
      for (int i = 0; i < n; ++i) sum += std::ssize(mixing.neighbours(i));
      EXPECT_EQ(mixing.heard(), sum) << strategy::topology_name(topology) << " of " << n;
    }
  }
  // In a moment, where each hears all others.
  EXPECT_EQ(MixingMatrix(Topology::complete, {.replicas = 65536}).heard(), std::int64_t{65536} * 65535);
}

TEST(MixingMatrix, HasRowsAndColumnsThatAddUpToOne) {
  for_each_matrix([](const MixingMatrix& mixing) {
    const Dense all = dense(mixing);
    for (std::size_t i = 0; i < all.size(); ++i) {
      double row = 0;
      double column = 0;
      for (std::size_t j = 0; j < all.size(); ++j) {
        EXPECT_GE(all[i][j], 0);
        row += all[i][j];
        column += all[j][i];
      }
      EXPECT_NEAR(row, 1, 1e-12);
      EXPECT_NEAR(column, 1, 1e-12);
      EXPECT_GT(all[i][i], 0);
    }
  });
}

TEST(MixingMatrix, NamesNeighboursByNumberAndOnce) {
  for_each_matrix([](const MixingMatrix& mixing) {
    for (int i = 0; i < mixing.size(); ++i) {
      const std::vector<MixingWeight> row = mixing.row(i);
      std::vector<int> others;
      for (std::size_t k = 0; k < row.size(); ++k) {
        if (k > 0) {
          EXPECT_LT(row[k - 1].replica, row[k].replica);
        }
        if (row[k].replica != i) others.push_back(row[k].replica);
      }
      EXPECT_EQ(others, mixing.neighbours(i));
    }
  });
}

TEST(MixingMatrix, KnowsItsSecondEigenvalue) {
  for_each_matrix([](const MixingMatrix& mixing) {
    EXPECT_NEAR(mixing.second_eigenvalue(), second_eigenvalue_by_powers(dense(mixing)), 1e-4);
    EXPECT_GT(mixing.spectral_gap(), 0.01);  // nobody is left out
  });
}

// From any start, step by step; and the mean stays.
TEST(MixingMatrix, BringsReplicasTogetherAtThatRate) {
  for_each_matrix([](const MixingMatrix& mixing) {
    const auto n = static_cast<std::size_t>(mixing.size());
    RandomStream draws({11});
    std::vector<double> values(n);
    double mean = 0;
    for (double& value : values) mean += (value = draws.uniform()) / static_cast<double>(n);
    const auto distance = [&] {
      double sum = 0;
      for (const double value : values) sum += (value - mean) * (value - mean);
      return std::sqrt(sum);
    };
    double bound = distance();
    for (int step = 0; step < 40; ++step) {
      std::vector<double> mixed(n);
      for (std::size_t i = 0; i < n; ++i) {
        for (const MixingWeight& its : mixing.row(static_cast<int>(i)))
          mixed[i] += its.weight * values[static_cast<std::size_t>(its.replica)];
      }
      values = mixed;
      bound *= mixing.second_eigenvalue() + 1e-9;
      ASSERT_LE(distance(), bound + 1e-12) << "step " << step;
    }
  });
}

// On the average over many runs the square of the distance shrinks as the expected matrix says, or faster.
TEST(Gossip, BringsReplicasTogetherAtTheRateOfItsExpectedMatrix) {
  for_each_matrix([](const MixingMatrix& mixing) {
    const auto n = static_cast<std::size_t>(mixing.size());
    if (n == 1) return;
    constexpr int kRuns = 200;
    const int events = 6 * mixing.size();
    RandomStream draws({17});
    double before = 0;
    double after = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<double> values(n);
      double mean = 0;
      for (double& value : values) mean += (value = draws.uniform()) / static_cast<double>(n);
      const auto square = [&] {
        double sum = 0;
        for (const double value : values) sum += (value - mean) * (value - mean);
        return sum;
      };
      before += square();
      for (int event = 0; event < events; ++event) {
        const auto i = static_cast<std::size_t>(draws.below(n));
        const std::vector<int> others = mixing.neighbours(static_cast<int>(i));
        const auto j = static_cast<std::size_t>(others[draws.below(others.size())]);
        values[i] = values[j] = (values[i] + values[j]) / 2;
      }
      after += square();
    }
    const double bound = std::pow(mixing.gossip_eigenvalue(), events);
    EXPECT_LE(after / before, 1.5 * bound + 1e-12);
    EXPECT_LT(mixing.gossip_eigenvalue(), 1);
  });
}

TEST(Gossip, KnowsTheEigenvalueOfItsExpectedMatrix) {
  // Of a pair one event makes both alike; of n that all meet each other it is 1 - 1 / (n - 1).
  EXPECT_NEAR(MixingMatrix(Topology::ring, {.replicas = 2}).gossip_eigenvalue(), 0, 1e-12);
  EXPECT_NEAR(MixingMatrix(Topology::complete, {.replicas = 5}).gossip_eigenvalue(), 0.75, 1e-12);
  EXPECT_NEAR(MixingMatrix(Topology::exponential, {.replicas = 3}).gossip_eigenvalue(), 0.5, 1e-12);
  // 1 - (2 - 2 cos(2 pi / n)) / (2 n)
  EXPECT_NEAR(MixingMatrix(Topology::ring, {.replicas = 6}).gossip_eigenvalue(), 1 - 1.0 / 12, 1e-12);
}

// What differs least between neighbours is what stays longest.
TEST(MixingMatrix, TakesThatLongWhereDifferencesAreAWave) {
  const MixingMatrix ring(Topology::ring, {.replicas = 12});
  std::vector<double> values(12);
  for (std::size_t i = 0; i < 12; ++i) values[i] = std::cos(2 * 3.14159265358979 * static_cast<double>(i) / 12);
  std::vector<double> mixed(12);
  for (std::size_t i = 0; i < 12; ++i) {
    for (const MixingWeight& its : ring.row(static_cast<int>(i)))
      mixed[i] += its.weight * values[static_cast<std::size_t>(its.replica)];
  }
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(mixed[i], ring.second_eigenvalue() * values[i], 1e-12);
  EXPECT_NEAR(ring.second_eigenvalue(), (1 + 2 * std::cos(2 * 3.14159265358979 / 12)) / 3, 1e-12);
}

TEST(MixingMatrix, IsAsTheTopologySays) {
  const auto neighbours = [](Topology topology, int replicas, int replica) {
    return MixingMatrix(topology, {.replicas = replicas}).neighbours(replica);
  };
  EXPECT_THAT(neighbours(Topology::ring, 1, 0), IsEmpty());
  EXPECT_THAT(neighbours(Topology::ring, 2, 0), ElementsAre(1));
  EXPECT_THAT(neighbours(Topology::ring, 5, 0), ElementsAre(1, 4));
  EXPECT_THAT(neighbours(Topology::complete, 4, 2), ElementsAre(0, 1, 3));
  EXPECT_THAT(neighbours(Topology::exponential, 9, 0), ElementsAre(1, 5, 7, 8));
  EXPECT_THAT(neighbours(Topology::torus, 12, 0), ElementsAre(1, 3, 4, 8));
  EXPECT_THAT(neighbours(Topology::torus, 4, 0), ElementsAre(1, 2));
  EXPECT_THAT(neighbours(Topology::torus, 7, 0), ElementsAre(1, 6));
  EXPECT_EQ(MixingMatrix(Topology::random, {.replicas = 20, .seed = 1}).neighbours(3),
            MixingMatrix(Topology::random, {.replicas = 20, .seed = 1}).neighbours(3));
  EXPECT_NE(dense(MixingMatrix(Topology::random, {.replicas = 20, .seed = 1})),
            dense(MixingMatrix(Topology::random, {.replicas = 20, .seed = 2})));
}

TEST(MixingMatrix, RefusesWhatCannotBe) {
  EXPECT_EQ(testing::usage_error([] { MixingMatrix(Topology::ring, {.replicas = 0}); }),
            "expected at least one replica to mix, found 0");
  EXPECT_EQ(testing::usage_error([] { (void)MixingMatrix(Topology::ring, {.replicas = 3}).row(3); }),
            "expected a replica from 0 to 2, found 3");
}

}  // namespace
}  // namespace tutti
