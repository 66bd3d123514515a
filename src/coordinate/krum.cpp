// Krum looks for the update that lies most among others: its score is the sum of squared distances to its nearest
// neighbours, n - f - 2 of n where f may be hostile. Whoever is hostile and far away has a high score; who is hostile
// and has a low one does little harm.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include <tutti/coordinate/aggregation.hpp>
#include <tutti/kernels/inspect.hpp>

#include "changes.hpp"

namespace tutti {
namespace {

struct Neighbour {
  double squared_distance = 0;
  std::size_t update = 0;
};

// Of each update all others, the nearest first.
class Neighbours {
 public:
  Neighbours(std::span<const ClientUpdate> updates, const std::vector<bool>& is_trained) : of_(updates.size()) {
    const std::size_t n = updates.size();
    std::vector<double> squares(n * n);
    std::vector<double> difference;
    detail::for_each_block(updates, is_trained, [&](const detail::ChangeRows& rows) {
      difference.resize(rows.count);
      for (std::size_t a = 0; a < n; ++a) {
        for (std::size_t b = a + 1; b < n; ++b) {
          const double* ours = rows[a].data();
          const double* theirs = rows[b].data();
          for (std::size_t i = 0; i < rows.count; ++i) difference[i] = ours[i] - theirs[i];
          squares[a * n + b] += sum_of_squares(DataType::float64, difference.data(), difference.size());
        }
      }
    });
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = a + 1; b < n; ++b) {
        double square = squares[a * n + b];
        // Two that both left the range of a double are not near each other.
        if (std::isnan(square)) square = std::numeric_limits<double>::infinity();
        of_[a].push_back({square, b});
        of_[b].push_back({square, a});
      }
    }
    for (std::vector<Neighbour>& its : of_) std::ranges::sort(its, {}, &Neighbour::squared_distance);
  }

  // The sum of the `nearest` squared distances to updates that are not `gone`, or of all where there are fewer.
  double score(std::size_t update, std::size_t nearest, const std::vector<bool>& gone) const {
    double sum = 0;
    for (const Neighbour& its : of_[update]) {
      if (nearest == 0) break;
      if (gone[its.update]) continue;
      sum += its.squared_distance;
      --nearest;
    }
    return sum;
  }

 private:
  std::vector<std::vector<Neighbour>> of_;
};

// How many neighbours count among so many updates.
std::size_t krum_neighbours(std::size_t updates, std::int64_t byzantine) {
  const std::int64_t surely_honest = static_cast<std::int64_t>(updates) - byzantine - 2;
  return static_cast<std::size_t>(std::max<std::int64_t>(surely_honest, 1));
}

}  // namespace

std::vector<std::size_t> krum_order(std::span<const ClientUpdate> updates, std::int64_t byzantine,
                                    const std::vector<bool>& is_trained) {
  const std::size_t n = updates.size();
  refuse_too_few(strategy::Krum{byzantine}, static_cast<std::int64_t>(n));
  detail::refuse_unless_updates_fit(updates, is_trained);
  const Neighbours neighbours(updates, is_trained);
  std::vector<double> scores;
  for (std::size_t i = 0; i < n; ++i)
    scores.push_back(neighbours.score(i, krum_neighbours(n, byzantine), std::vector<bool>(n)));
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::tuple(scores[i], updates[i].client, i); });
  return order;
}

std::vector<std::size_t> detail::bulyan_selection(std::span<const ClientUpdate> updates, std::int64_t byzantine,
                                                  const std::vector<bool>& is_trained) {
  const std::size_t n = updates.size();
  const std::size_t wanted = n - 2 * static_cast<std::size_t>(byzantine);
  const Neighbours neighbours(updates, is_trained);
  std::vector<bool> selected(n);
  for (std::size_t rest = n; rest > n - wanted; --rest) {
    std::size_t best = n;
    double lowest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (selected[i]) continue;
      const double score = neighbours.score(i, krum_neighbours(rest, byzantine), selected);
      if (best != n && score >= lowest) continue;
      best = i;
      lowest = score;
    }
    selected[best] = true;
  }
  std::vector<std::size_t> selection;
  for (std::size_t i = 0; i < n; ++i) {
    if (selected[i]) selection.push_back(i);
  }
  return selection;
}

}  // namespace tutti
