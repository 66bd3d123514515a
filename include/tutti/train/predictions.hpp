// What a network says of rows, for people and for other programs.
//
//   std::string table = prediction_table(run, net, *data.test, {.has_target = true});
//   // row,class,probability,target
//   // 0,Ankle boot,0.9973,Ankle boot
//   std::string npy = prediction_npy(run, net, *data.test);      // the first output as it is, as numpy reads it
#pragma once

#include <memory>
#include <string>

#include <tutti/data/dataset.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

struct PredictionOptions {
  bool has_target = true;  // rows have one, which becomes a column
};

// A line of CSV for each row: of classes the likeliest and how likely it is, of numbers these. A UsageError where the
// first output of a row is no list of numbers.
std::string prediction_table(const std::shared_ptr<const Run>& run, const std::shared_ptr<GraphModule>& net,
                             const Dataset& rows, const PredictionOptions& options);

std::string prediction_npy(const std::shared_ptr<const Run>& run, const std::shared_ptr<GraphModule>& net,
                           const Dataset& rows);

}  // namespace tutti
