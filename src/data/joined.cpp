#include <tutti/data/joined.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

// Where in the result the rows of a part belong.
void put_rows(const torch::Tensor& some, std::span<const std::size_t> places, torch::Tensor& all) {
  const torch::Tensor from = some.contiguous();
  const std::size_t row_bytes = places.empty() ? 0 : from.nbytes() / places.size();
  const auto* source = static_cast<const std::byte*>(from.data_ptr());
  auto* target = static_cast<std::byte*>(all.data_ptr());
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(target + places[i] * row_bytes, source + i * row_bytes, row_bytes);
}

torch::Tensor room_for(const torch::Tensor& like, std::size_t rows) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.front() = static_cast<std::int64_t>(rows);
  return torch::empty(sizes, like.options());
}

}  // namespace

JoinedDataset::JoinedDataset(std::vector<std::shared_ptr<const Dataset>> parts)
    : parts_(std::move(parts)), first_rows_{0} {
  if (parts_.empty()) throw UsageError("expected at least one dataset to join, found none");
  for (const auto& part : parts_) first_rows_.push_back(first_rows_.back() + part->size());
}

DataRows JoinedDataset::rows(std::span<const std::int64_t> numbers) const {
  return gather(numbers, [](const Dataset& part, const auto& its) { return part.rows(its); });
}

DataRows JoinedDataset::packed_rows(std::span<const std::int64_t> numbers) const {
  return gather(numbers, [](const Dataset& part, const auto& its) { return part.packed_rows(its); });
}

template <typename Read>
DataRows JoinedDataset::gather(std::span<const std::int64_t> numbers, Read read) const {
  struct Wanted {
    std::vector<std::int64_t> numbers;
    std::vector<std::size_t> places;
  };
  std::vector<std::pair<std::size_t, Wanted>> wanted;       // by part, in the order in which they come
  std::vector<std::size_t> found(parts_.size(), SIZE_MAX);  // in it
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0 || numbers[i] >= size())
      throw UsageError(fmt::format("there is no row {}: there are {}", numbers[i], size()));
    const auto after = std::ranges::upper_bound(first_rows_, numbers[i]);
    const auto part = static_cast<std::size_t>(after - first_rows_.begin()) - 1;
    if (found[part] == SIZE_MAX) {
      found[part] = wanted.size();
      wanted.push_back({part, {}});
    }
    Wanted& its = wanted[found[part]].second;
    its.numbers.push_back(numbers[i] - first_rows_[part]);
    its.places.push_back(i);
  }
  if (wanted.empty()) return read(*parts_.front(), numbers);
  if (wanted.size() == 1)
    return read(*parts_[wanted.front().first], std::span<const std::int64_t>(wanted.front().second.numbers));
  DataRows all;
  for (const auto& [part, its] : wanted) {
    const DataRows some = read(*parts_[part], std::span<const std::int64_t>(its.numbers));
    if (!all.target.defined()) {
      for (const torch::Tensor& input : some.inputs) all.inputs.push_back(room_for(input, numbers.size()));
      all.target = room_for(some.target, numbers.size());
    }
    for (std::size_t i = 0; i < some.inputs.size(); ++i) put_rows(some.inputs[i], its.places, all.inputs[i]);
    put_rows(some.target, its.places, all.target);
  }
  return all;
}

std::vector<std::int64_t> JoinedDataset::file_of_row() const {
  std::vector<std::int64_t> files;
  files.reserve(static_cast<std::size_t>(size()));
  for (std::size_t part = 0; part < parts_.size(); ++part)
    files.insert(files.end(), static_cast<std::size_t>(parts_[part]->size()), static_cast<std::int64_t>(part));
  return files;
}

}  // namespace tutti
