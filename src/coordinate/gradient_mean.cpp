#include "gradient_mean.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/update_check.hpp>
#include <tutti/kernels/fold.hpp>

#include "multiples.hpp"

namespace tutti::detail {
namespace {

// As many numbers as all fit into a cache.
constexpr std::size_t kBlock = 2048;

template <Element T>
void fold_shares(std::span<const GoodGradients> gradients, std::span<const double> shares, std::size_t array,
                 std::span<T> sum) {
  std::vector<std::vector<T>> scaled(gradients.size());
  for (std::size_t first = 0; first < sum.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, sum.size() - first);
    std::vector<const void*> sources;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::span<const T> its = (*gradients[i].values)[array].template values<T>().subspan(first, count);
      if (shares[i] == 1) {
        sources.push_back(its.data());
        continue;
      }
      scaled[i].resize(kBlock);
      for (std::size_t j = 0; j < count; ++j) scaled[i][j] = multiple(its[j], shares[i]);
      sources.push_back(scaled[i].data());
    }
    void* const destination = sum.data() + first;
    fold_all(ReduceOp::sum, data_type_of<T>, sources, {&destination, 1}, count);
  }
}

}  // namespace

std::optional<GoodGradients> GradientMean::of(std::vector<GoodGradients> gradients) {
  std::erase_if(gradients, [](const GoodGradients& its) { return its.weight == 0; });
  if (gradients.empty()) return std::nullopt;
  const double most = std::ranges::max(gradients, {}, &GoodGradients::weight).weight;
  std::vector<double> shares;
  GoodGradients mean{.rate_factor = 0};
  double total = 0;
  for (const GoodGradients& its : gradients) {
    shares.push_back(its.weight / most);
    total += shares.back();
    mean.rate_factor = std::max(mean.rate_factor, its.rate_factor);
    for (const auto& [version, count] : its.versions) mean.versions[version] += count;
  }
  mean.weight = 1 / total;
  if (gradients.size() == 1) {
    mean.values = std::move(gradients[0].values);
    return mean;
  }
  if (!sum_) sum_ = std::make_shared<ParameterSet>(set_with_layouts(layout_words(*gradients[0].values)));
  for (std::size_t i = 0; i < sum_->size(); ++i) {
    dispatch((*sum_)[i].type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (!std::is_integral_v<T>) fold_shares<T>(gradients, shares, i, (*sum_)[i].template values<T>());
    });
    if (!has_finite_numbers((*sum_)[i]))
      throw Error(fmt::format("\"{}\": the gradients of a round add up to more than numbers of their type can be",
                              (*sum_)[i].name()));
  }
  mean.values = sum_;
  return mean;
}

}  // namespace tutti::detail
