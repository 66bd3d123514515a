#include "named_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/transport/threads.hpp>

namespace tutti::detail {

NamedExchange::NamedExchange(const Replicas& replicas, const NamedExchangeOptions& options) : options_(options) {
  const std::vector<DataType>& types = replicas.types();
  if (std::ranges::adjacent_find(types, std::not_equal_to{}) != types.end())
    throw UsageError("a named algorithm or compression needs parameters of one type, found float32 and float64");
  std::vector<NamedShape> shapes;
  for (std::size_t i = 0; i < replicas.parameters().size(); ++i) {
    const ModuleParameter& parameter = replicas.parameters()[i];
    names_.push_back(parameter.name());
    // One that each replica has to itself has no elements here.
    shapes.push_back(
        {parameter.name(), replicas.is_private(i) ? std::vector<std::int64_t>{0} : parameter.tensor().sizes().vec()});
  }
  is_taken_.resize(names_.size());
  for (std::unique_ptr<Transport>& transport : make_threads_world(static_cast<int>(replicas.size()))) {
    Seat& seat =
        seats_.emplace_back(Seat{Communicator(std::move(transport), CommunicatorOptions{.deadline = options.deadline}),
                                 GradientBuffers(shapes, types.front()), std::nullopt});
    if (!std::holds_alternative<NoCompression>(options.compression)) {
      seat.compressor.emplace(options.compression,
                              GradientCompressorOptions{.algorithm = options.algorithm, .seed = options.seed});
    }
  }
}

std::string NamedExchange::put(int worker, const ShardGradients& gradients, double weight) {
  Seat& seat = seats_[static_cast<std::size_t>(worker)];
  std::string not_finite;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const Array array = seat.gradients[i];
    const torch::Tensor gradient = gradients.first_of(i);
    if (!gradient.defined() || array.length() == 0) {
      std::fill_n(array.data(), array.bytes(), std::byte{0});
      continue;
    }
    if (not_finite.empty() && !all_finite(array.type(), gradient.data_ptr(), array.length())) not_finite = names_[i];
    // A mean of what is scaled so is that of the whole batch; without a compression sums are as good.
    if (seat.compressor) gradient.mul_(static_cast<double>(seats_.size()) / weight);
    std::memcpy(array.data(), gradient.data_ptr(), array.bytes());
  }
  return not_finite;
}

void NamedExchange::run(int worker) {
  Seat& seat = seats_[static_cast<std::size_t>(worker)];
  if (seat.compressor) {
    seat.compressor->exchange(seat.world, seat.gradients);
  } else {
    all_reduce(seat.world, seat.gradients.all(), {.algorithm = options_.algorithm, .op = ReduceOp::sum});
  }
}

void NamedExchange::keep() {
  for (Seat& seat : seats_) {
    if (!seat.compressor) continue;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!is_taken_[i]) seat.compressor->forget(names_[i]);
    }
    seat.compressor->keep();
  }
  is_taken_.assign(names_.size(), false);
}

void NamedExchange::forget() {
  for (Seat& seat : seats_) {
    if (seat.compressor) seat.compressor->forget();
  }
  is_taken_.assign(names_.size(), false);
}

void NamedExchange::take(std::size_t parameter, const torch::Tensor& sum, double weight) {
  is_taken_[parameter] = true;
  const Seat& first = seats_.front();
  const ConstArray array = first.gradients[parameter];
  std::memcpy(sum.data_ptr(), array.data(), array.bytes());
  if (first.compressor) sum.mul_(weight);
}

std::vector<GradientCompressor*> NamedExchange::compressors() {
  std::vector<GradientCompressor*> all;
  for (Seat& seat : seats_) {
    if (seat.compressor) all.push_back(&*seat.compressor);
  }
  return all;
}

CompressionTally NamedExchange::tally() const {
  CompressionTally all{options_.compression, {}, {}};
  for (const Seat& seat : seats_) {
    if (!seat.compressor) continue;
    all.gradients.value += seat.compressor->tally().gradients.value;
    all.sent.value += seat.compressor->tally().sent.value;
  }
  return all;
}

}  // namespace tutti::detail
