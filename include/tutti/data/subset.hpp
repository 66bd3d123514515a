// Some of the rows of a dataset, as a dataset.
//
//   SubsetDataset part(all, {4, 8, 15});
//   part.rows(numbers);                      // 0, 1 and 2 are rows 4, 8 and 15
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <tutti/data/dataset.hpp>

namespace tutti {

class SubsetDataset : public Dataset {
 public:
  // A UsageError where one is not there.
  SubsetDataset(std::shared_ptr<const Dataset> all, std::vector<std::int64_t> numbers);

  std::int64_t size() const override { return static_cast<std::int64_t>(numbers_.size()); }
  DataRows rows(std::span<const std::int64_t> numbers) const override;
  DataRows packed_rows(std::span<const std::int64_t> numbers) const override;
  std::vector<std::int64_t> file_of_row() const override;

 private:
  std::vector<std::int64_t> numbers_in_all(std::span<const std::int64_t> numbers) const;

  std::shared_ptr<const Dataset> all_;
  std::vector<std::int64_t> numbers_;
};

}  // namespace tutti
