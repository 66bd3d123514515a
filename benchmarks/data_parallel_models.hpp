// The networks of the data-parallel suite, and rows for them. peers/ddp_peer.py has the same in Python.
//
//   torch::nn::Sequential net = make_model("mlp-256");
//   Batch rows = make_rows("mlp-256", 64);
//   loss_of(*net, rows).backward();
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <torch/data/example.h>
#include <torch/nn/modules/container/sequential.h>

namespace tutti::bench {

using Batch = torch::data::Example<>;

// With the same initial parameters each time. "mlp-256", "mlp-1024", "mlp-2048", "mlp-50m", "cnn"; otherwise a
// UsageError.
torch::nn::Sequential make_model(std::string_view name);

// The shape of one row of the model's input.
std::vector<std::int64_t> row_shape(std::string_view model);

// The same random rows each time.
Batch make_rows(std::string_view model, int count);

torch::Tensor loss_of(torch::nn::SequentialImpl& net, const Batch& rows);

}  // namespace tutti::bench
