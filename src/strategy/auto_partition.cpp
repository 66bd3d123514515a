#include <tutti/strategy/auto_partition.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

constexpr int kNobody = -1;

// What each worker has to do, while nodes come and go. A node that is nobody's costs nobody anything.
class Loads {
 public:
  explicit Loads(const PartitionProblem& problem)
      : problem_(problem),
        worker_of_(problem.costs.size(), kNobody),
        loads_(static_cast<std::size_t>(problem.workers)),
        values_of_(problem.costs.size()),
        users_(problem.values.size(), std::vector<int>(static_cast<std::size_t>(problem.workers))) {
    for (std::size_t v = 0; v < problem.values.size(); ++v) {
      values_of_[problem.values[v].of].push_back(v);
      for (const std::size_t node : problem.values[v].to) values_of_[node].push_back(v);
    }
    for (std::vector<std::size_t>& values : values_of_) {
      std::ranges::sort(values);
      values.erase(std::unique(values.begin(), values.end()), values.end());
    }
  }

  void move(std::size_t node, int worker) {
    for (const std::size_t value : values_of_[node]) count(value, -1);
    if (worker_of_[node] != kNobody) loads_[at(worker_of_[node])] -= problem_.costs[node];
    for (const std::size_t value : values_of_[node]) {
      const PartitionValue& its = problem_.values[value];
      const auto times = static_cast<int>(std::ranges::count(its.to, node));
      if (worker_of_[node] != kNobody) users_[value][at(worker_of_[node])] -= times;
      if (worker != kNobody) users_[value][at(worker)] += times;
    }
    worker_of_[node] = worker;
    if (worker != kNobody) loads_[at(worker)] += problem_.costs[node];
    for (const std::size_t value : values_of_[node]) count(value, 1);
  }

  const std::vector<int>& worker_of() const { return worker_of_; }
  double busiest() const { return *std::ranges::max_element(loads_); }
  // All that is moved counts at both ends, so that the rest of it is a matter of traffic.
  double all() const { return std::accumulate(loads_.begin(), loads_.end(), 0.0); }
  // The less, the better: first what the busiest has to do, then how evenly the rest is shared out.
  std::pair<double, double> score() const {
    const double squares = std::inner_product(loads_.begin(), loads_.end(), loads_.begin(), 0.0);
    return {busiest(), squares};
  }

 private:
  static std::size_t at(int worker) { return static_cast<std::size_t>(worker); }

  // The moves of a value, with this sign.
  void count(std::size_t value, int sign) {
    const PartitionValue& its = problem_.values[value];
    const int from = worker_of_[its.of];
    if (from == kNobody) return;
    for (std::size_t w = 0; w < loads_.size(); ++w) {
      if (w == at(from) || users_[value][w] == 0) continue;
      loads_[w] += sign * its.cost;
      loads_[at(from)] += sign * its.cost;
    }
  }

  const PartitionProblem& problem_;
  std::vector<int> worker_of_;
  std::vector<double> loads_;
  std::vector<std::vector<std::size_t>> values_of_;  // that a node gives or takes
  std::vector<std::vector<int>> users_;              // by value and worker: how often it is used there
};

// Workers are alike, so a node goes to one that has some already, or to the next that has none.
class Exhaustive {
 public:
  explicit Exhaustive(const PartitionProblem& problem) : problem_(problem), loads_(problem) {}

  std::vector<int> search() {
    place(0, 0);
    return best_;
  }

 private:
  void place(std::size_t node, int used) {
    if (loads_.busiest() > bound_) return;  // more nodes only add to it
    if (node == problem_.costs.size()) {
      if (loads_.busiest() == bound_ && loads_.all() >= least_) return;
      bound_ = loads_.busiest();
      least_ = loads_.all();
      best_ = loads_.worker_of();
      return;
    }
    for (int worker = 0; worker < std::min(used + 1, problem_.workers); ++worker) {
      loads_.move(node, worker);
      place(node + 1, std::max(used, worker + 1));
      loads_.move(node, kNobody);
    }
  }

  const PartitionProblem& problem_;
  Loads loads_;
  double bound_ = std::numeric_limits<double>::infinity();
  double least_ = std::numeric_limits<double>::infinity();
  std::vector<int> best_;
};

// Node after node, to the next worker where this one has its share.
void cut_in_order(const PartitionProblem& problem, double share, Loads& loads) {
  int worker = 0;
  double its = 0;
  for (std::size_t node = 0; node < problem.costs.size(); ++node) {
    if (its > 0 && its + problem.costs[node] / 2 > share && worker + 1 < problem.workers) {
      ++worker;
      its = 0;
    }
    its += problem.costs[node];
    loads.move(node, worker);
  }
}

// One by one to where it is better, until no move and no exchange of two helps.
void improve(const PartitionProblem& problem, Loads& loads) {
  const std::size_t nodes = problem.costs.size();
  constexpr std::size_t kMostExchanged = 400;  // of more nodes there are too many pairs
  constexpr int kMostRounds = 50;
  // What a move costs grows with the workers. So many of them take about a second.
  constexpr std::int64_t kMostWork = 50'000'000;
  std::int64_t left = kMostWork / problem.workers;
  auto score = loads.score();
  const auto is_better = [](const std::pair<double, double>& one, const std::pair<double, double>& other) {
    const double least = other.first * (1 - 1e-9);
    return one.first < least || (one.first <= other.first && one.second < other.second * (1 - 1e-9));
  };
  bool goes_on = true;
  for (int round = 0; round < kMostRounds && goes_on; ++round) {
    goes_on = false;
    for (std::size_t node = 0; node < nodes; ++node) {
      for (int worker = 0; worker < problem.workers && left-- > 0; ++worker) {
        const int before = loads.worker_of()[node];
        if (worker == before) continue;
        loads.move(node, worker);
        if (is_better(loads.score(), score)) {
          score = loads.score();
          goes_on = true;
        } else {
          loads.move(node, before);
        }
      }
    }
    if (goes_on || nodes > kMostExchanged || left <= 0) continue;
    for (std::size_t a = 0; a < nodes; ++a) {
      for (std::size_t b = a + 1; b < nodes && left-- > 0; ++b) {
        const int of_a = loads.worker_of()[a];
        const int of_b = loads.worker_of()[b];
        if (of_a == of_b) continue;
        loads.move(a, of_b);
        loads.move(b, of_a);
        if (is_better(loads.score(), score)) {
          score = loads.score();
          goes_on = true;
        } else {
          loads.move(b, of_b);
          loads.move(a, of_a);
        }
      }
    }
  }
}

}  // namespace

std::vector<int> partition_nodes(const PartitionProblem& problem, const PartitionOptions& options) {
  if (problem.workers < 1) throw UsageError(fmt::format("expected at least 1 worker, found {}", problem.workers));
  if (problem.costs.size() <= options.exhaustive_up_to) return Exhaustive(problem).search();
  const double all = std::accumulate(problem.costs.begin(), problem.costs.end(), 0.0);
  std::vector<int> best;
  double least = std::numeric_limits<double>::infinity();
  // From even shares, and from some that are not, so that not all end in the same place.
  for (const double factor : {1.0, 0.9, 0.8, 1.1, 1.25, 1.5, 2.0}) {
    Loads loads(problem);
    cut_in_order(problem, factor * all / problem.workers, loads);
    improve(problem, loads);
    if (loads.busiest() >= least) continue;
    least = loads.busiest();
    best = loads.worker_of();
  }
  return best;
}

std::vector<int> cut_nodes_in_order(const PartitionProblem& problem) {
  if (problem.workers < 1) throw UsageError(fmt::format("expected at least 1 worker, found {}", problem.workers));
  const std::size_t nodes = problem.costs.size();
  std::vector<double> sums(nodes + 1);  // of the nodes before each
  for (std::size_t n = 0; n < nodes; ++n) sums[n + 1] = sums[n] + problem.costs[n];
  std::vector<double> moved(nodes + 1);  // what goes on from the nodes before each to those from it on
  for (const PartitionValue& value : problem.values) {
    const auto [first, last] = std::ranges::minmax_element(value.to);
    const std::size_t begin = std::min(value.of, value.to.empty() ? value.of : *first);
    const std::size_t end = std::max(value.of, value.to.empty() ? value.of : *last);
    for (std::size_t n = begin + 1; n <= end; ++n) moved[n] += value.cost;
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto workers = static_cast<std::size_t>(problem.workers);
  // By how many workers have something, and by where what they have ends: what the busiest has, and where the last
  // one's begins.
  std::vector<std::vector<double>> busiest(workers + 1, std::vector<double>(nodes + 1, kNever));
  std::vector<std::vector<std::size_t>> begins(workers + 1, std::vector<std::size_t>(nodes + 1));
  busiest[0][0] = 0;
  for (std::size_t w = 1; w <= workers; ++w) {
    for (std::size_t end = 1; end <= nodes; ++end) {
      for (std::size_t begin = end; begin-- > 0;) {
        const double its = sums[end] - sums[begin];
        if (its >= busiest[w][end]) break;  // more nodes only add to it
        const double all = std::max(busiest[w - 1][begin], its + moved[begin] + moved[end]);
        if (all >= busiest[w][end]) continue;
        busiest[w][end] = all;
        begins[w][end] = begin;
      }
    }
  }
  std::size_t used = 1;
  for (std::size_t w = 1; w <= workers; ++w) {
    if (busiest[w][nodes] < busiest[used][nodes]) used = w;
  }
  std::vector<int> worker_of(nodes);
  for (std::size_t end = nodes; used > 0 && end > 0; end = begins[used--][end]) {
    for (std::size_t n = begins[used][end]; n < end; ++n) worker_of[n] = static_cast<int>(used) - 1;
  }
  return worker_of;
}

double busiest_worker(const PartitionProblem& problem, const std::vector<int>& worker_of) {
  Loads loads(problem);
  for (std::size_t node = 0; node < worker_of.size(); ++node) loads.move(node, worker_of[node]);
  return loads.busiest();
}

}  // namespace tutti
