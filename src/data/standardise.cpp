#include <tutti/data/standardise.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

bool is_standardised(const ValueSpec& spec) { return spec.type == ValueType::float32; }

// How many numbers that follow one another in a row share a mean: the pixels of a channel.
std::size_t shared_by(const Shape& shape) {
  constexpr std::size_t kImage = 3;
  return shape.size() == kImage ? static_cast<std::size_t>(shape[1] * shape[2]) : 1;
}

// Sums of one input over rows. Each number is counted from the first one of its kind, so that the squares of numbers
// far from 0 do not swallow their differences.
class Sums {
 public:
  explicit Sums(const Shape& shape)
      : shared_(shared_by(shape)),
        sum_(static_cast<std::size_t>(element_count(shape).value())),
        squares_(sum_.size()) {}

  void add(const torch::Tensor& rows) {
    const torch::Tensor values = rows.contiguous();
    const std::size_t width = sum_.size();
    const auto* row = values.data_ptr<float>();
    if (origin_.empty()) {
      origin_.resize(width);
      for (std::size_t i = 0; i < width; ++i) origin_[i] = row[i / shared_ * shared_];
    }
    for (std::int64_t n = 0; n < values.size(0); ++n, row += width) {
      for (std::size_t i = 0; i < width; ++i) {
        const double difference = static_cast<double>(row[i]) - origin_[i];
        sum_[i] += difference;
        squares_[i] += difference * difference;
      }
    }
    rows_ += values.size(0);
  }

  InputMoments moments() const {
    InputMoments moments;
    const double count = static_cast<double>(rows_) * static_cast<double>(shared_);
    for (std::size_t first = 0; first < sum_.size(); first += shared_) {
      const auto begin = static_cast<std::ptrdiff_t>(first);
      const auto end = static_cast<std::ptrdiff_t>(first + shared_);
      const double mean = std::accumulate(sum_.begin() + begin, sum_.begin() + end, 0.0) / count;
      const double square = std::accumulate(squares_.begin() + begin, squares_.begin() + end, 0.0) / count;
      moments.mean.push_back(origin_[first] + mean);
      moments.deviation.push_back(std::sqrt(std::max(0.0, square - mean * mean)));
    }
    return moments;
  }

 private:
  std::size_t shared_;
  std::int64_t rows_ = 0;
  std::vector<double> origin_;
  std::vector<double> sum_;
  std::vector<double> squares_;
};

}  // namespace

std::vector<InputMoments> moments_of(const Dataset& rows, const DataDescription& description) {
  if (rows.size() == 0) throw UsageError("there are no rows to take the mean of");
  std::vector<Sums> sums;
  for (const auto& [name, spec] : description.inputs) sums.emplace_back(is_standardised(spec) ? spec.shape : Shape{0});
  constexpr std::int64_t kAtATime = 256;
  std::vector<std::int64_t> numbers;
  for (std::int64_t first = 0; first < rows.size(); first += kAtATime) {
    numbers.resize(static_cast<std::size_t>(std::min(kAtATime, rows.size() - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    const DataRows some = rows.rows(numbers);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (is_standardised(description.inputs[i].second)) sums[i].add(some.inputs.at(i));
    }
  }
  std::vector<InputMoments> moments;
  for (const Sums& its : sums) moments.push_back(its.moments());
  return moments;
}

StandardisedDataset::StandardisedDataset(std::shared_ptr<const Dataset> plain, const DataDescription& description,
                                         const std::vector<InputMoments>& moments)
    : plain_(std::move(plain)) {
  for (std::size_t i = 0; i < description.inputs.size(); ++i) {
    const std::size_t shared = shared_by(description.inputs[i].second.shape);
    Scale scale;
    for (std::size_t feature = 0; feature < moments.at(i).mean.size(); ++feature) {
      const auto factor = static_cast<float>(1 / moments[i].deviation[feature]);
      scale.mean.insert(scale.mean.end(), shared, static_cast<float>(moments[i].mean[feature]));
      scale.factor.insert(scale.factor.end(), shared, std::isfinite(factor) ? factor : 1.0f);
    }
    scales_.push_back(std::move(scale));
  }
}

DataRows StandardisedDataset::rows(std::span<const std::int64_t> numbers) const {
  DataRows rows = plain_->rows(numbers);
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    const auto& [mean, factor] = scales_[i];
    if (mean.empty()) continue;
    const torch::Tensor input = rows.inputs.at(i).contiguous();  // may be the dataset's own memory
    torch::Tensor output = torch::empty_like(input);
    const auto* from = input.data_ptr<float>();
    auto* to = output.data_ptr<float>();
    for (std::size_t n = 0; n < numbers.size(); ++n, from += mean.size(), to += mean.size()) {
      for (std::size_t j = 0; j < mean.size(); ++j) to[j] = (from[j] - mean[j]) * factor[j];
    }
    rows.inputs[i] = output;
  }
  return rows;
}

}  // namespace tutti
