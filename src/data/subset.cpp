#include <tutti/data/subset.hpp>

#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> all, std::vector<std::int64_t> numbers)
    : all_(std::move(all)), numbers_(std::move(numbers)) {
  for (const std::int64_t number : numbers_) {
    if (number < 0 || number >= all_->size())
      throw UsageError(fmt::format("there is no row {}: there are {}", number, all_->size()));
  }
}

DataRows SubsetDataset::rows(std::span<const std::int64_t> numbers) const {
  return all_->rows(numbers_in_all(numbers));
}

DataRows SubsetDataset::packed_rows(std::span<const std::int64_t> numbers) const {
  return all_->packed_rows(numbers_in_all(numbers));
}

std::vector<std::int64_t> SubsetDataset::file_of_row() const {
  const std::vector<std::int64_t> of_all = all_->file_of_row();
  std::vector<std::int64_t> files;
  if (of_all.empty()) return files;
  for (const std::int64_t number : numbers_) files.push_back(of_all[static_cast<std::size_t>(number)]);
  return files;
}

std::vector<std::int64_t> SubsetDataset::numbers_in_all(std::span<const std::int64_t> numbers) const {
  std::vector<std::int64_t> of_all;
  of_all.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= size())
      throw UsageError(fmt::format("there is no row {}: there are {}", number, size()));
    of_all.push_back(numbers_[static_cast<std::size_t>(number)]);
  }
  return of_all;
}

}  // namespace tutti
