// Several datasets as one: their rows one after the other. It knows which of them a row is of.
//
//   JoinedDataset all({of_one_file, of_another});
//   all.file_of_row()[17];      // 0 or 1
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <tutti/data/dataset.hpp>

namespace tutti {

class JoinedDataset : public Dataset {
 public:
  // A UsageError where there are none. Their rows are alike.
  explicit JoinedDataset(std::vector<std::shared_ptr<const Dataset>> parts);

  std::int64_t size() const override { return first_rows_.back(); }
  DataRows rows(std::span<const std::int64_t> numbers) const override;
  DataRows packed_rows(std::span<const std::int64_t> numbers) const override;
  std::vector<std::int64_t> file_of_row() const override;

 private:
  template <typename Read>
  DataRows gather(std::span<const std::int64_t> numbers, Read read) const;

  std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<std::int64_t> first_rows_;  // of each part, and the number of all
};

}  // namespace tutti
