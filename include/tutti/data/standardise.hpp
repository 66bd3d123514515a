// Inputs brought to mean 0 and standard deviation 1: each feature by itself, of images (rows of three dimensions) each
// channel. What is taken as mean and deviation is that of the training rows, for all rows: those to test with stay
// unseen.
//
//   std::vector<InputMoments> moments = moments_of(*data.train, description);
//   data.train = std::make_shared<StandardisedDataset>(data.train, description, moments);
//   data.test = std::make_shared<StandardisedDataset>(data.test, description, moments);
//
// A feature that is the same in all training rows has no deviation: of it only the mean is taken away.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <tutti/data/dataset.hpp>

namespace tutti {

// Of an input of float32, a number for each feature or channel; of others both are empty, and they stay as they are.
struct InputMoments {
  std::vector<double> mean;
  std::vector<double> deviation;
};

// For each input of the description. A UsageError where there is no row.
std::vector<InputMoments> moments_of(const Dataset& rows, const DataDescription& description);

class StandardisedDataset : public Dataset {
 public:
  StandardisedDataset(std::shared_ptr<const Dataset> plain, const DataDescription& description,
                      const std::vector<InputMoments>& moments);

  std::int64_t size() const override { return plain_->size(); }
  DataRows rows(std::span<const std::int64_t> numbers) const override;
  std::vector<std::int64_t> file_of_row() const override { return plain_->file_of_row(); }

 private:
  // For each number of a row.
  struct Scale {
    std::vector<float> mean;
    std::vector<float> factor;
  };

  std::shared_ptr<const Dataset> plain_;
  std::vector<Scale> scales_;
};

}  // namespace tutti
