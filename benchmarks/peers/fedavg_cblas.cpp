// The limit: FedAvg (McMahan et al., 2017) on MNIST, out of nothing but products of matrices. A few threads, each
// training clients of its own by a forward and a backward that are written out; the mean of them after the round. No
// graph, no autograd, no optimizer, no checks: the product that makes the gradient of weights also subtracts it from
// them.
//
//   fedavg_cblas --data ~/.cache/tutti/mnist --layers 784,200,200,10 --clients 100 --asked 10 --batch 10 --rate 0.1
//                --seed 7 --rounds 12 --threads 2
//
// Rows are dealt out at random, equally many to each client, who trains on them once. Losses and right answers are
// counted at each step, as the others count them. It prints a line of JSON: the local steps and the seconds of all
// rounds but the first, and the share of the test images that is told right after the last.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cblas.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"

namespace tutti::bench {
namespace {

// What draws are for.
enum Draw : std::uint64_t { for_weights, for_rows, for_choice, for_order };

struct Request {
  std::string data;
  std::vector<int> layers;
  int clients = 100;
  int asked = 10;
  int batch = 10;
  double rate = 0.1;
  int seed = 7;
  int rounds = 12;
  int threads = 2;
};

// Rows of floats from 0 to 1, and their labels.
struct Rows {
  std::vector<float> images;
  std::vector<unsigned char> labels;
};

std::vector<unsigned char> read_file(const std::filesystem::path& path, std::size_t header) {
  std::ifstream stream(path, std::ios::binary);
  std::vector<unsigned char> bytes(std::istreambuf_iterator<char>(stream), {});
  if (bytes.size() <= header) throw Error(fmt::format("cannot read {}", path.string()));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header));
  return bytes;
}

// IDX: a word for the type and one for each dimension, then the values, a byte each.
Rows read_rows(const std::filesystem::path& folder, const std::string& part, const std::vector<int>& layers) {
  Rows rows{.images = {}, .labels = read_file(folder / (part + "-labels-idx1-ubyte"), 8)};
  const std::vector<unsigned char> pixels = read_file(folder / (part + "-images-idx3-ubyte"), 16);
  if (pixels.size() != rows.labels.size() * static_cast<std::size_t>(layers.front()))
    throw Error(fmt::format("expected {} images of {} pixels in {}, found {} pixels", rows.labels.size(),
                            layers.front(), folder.string(), pixels.size()));
  if (std::ranges::any_of(rows.labels, [&](unsigned char label) { return label >= layers.back(); }))
    throw Error(fmt::format("expected labels below {} in {}", layers.back(), folder.string()));
  rows.images.resize(pixels.size());
  std::ranges::transform(pixels, rows.images.begin(),
                         [](unsigned char pixel) { return static_cast<float>(pixel) / 255; });
  return rows;
}

// Where the weights of a layer, by inputs and units, and its biases lie among all parameters.
struct Layer {
  int inputs = 0;
  int units = 0;
  std::size_t weights = 0;
  std::size_t biases = 0;
};

std::vector<Layer> layers_of(const std::vector<int>& sizes) {
  std::vector<Layer> layers;
  std::size_t end = 0;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    Layer layer{.inputs = sizes[i - 1], .units = sizes[i], .weights = end};
    layer.biases = end + static_cast<std::size_t>(layer.inputs) * static_cast<std::size_t>(layer.units);
    end = layer.biases + static_cast<std::size_t>(layer.units);
    layers.push_back(layer);
  }
  return layers;
}

// As torch's Linear begins.
std::vector<float> first_parameters(const std::vector<Layer>& layers, int seed) {
  std::vector<float> parameters;
  RandomStream draws({static_cast<std::uint64_t>(seed), for_weights});
  for (const Layer& layer : layers) {
    const float bound = 1 / std::sqrt(static_cast<float>(layer.inputs));
    const std::size_t end = layer.biases + static_cast<std::size_t>(layer.units);
    while (parameters.size() < end) parameters.push_back((2 * draws.uniform_float() - 1) * bound);
  }
  return parameters;
}

// What a step told.
struct Told {
  double losses = 0;
  std::int64_t right = 0;
};

// Parameters, and what a thread needs to train them, for batches of up to some rows.
class Worker {
 public:
  Worker(const std::vector<Layer>& layers, int most_rows) : layers_(layers) {
    const auto rows = static_cast<std::size_t>(most_rows);
    values_.emplace_back(rows * static_cast<std::size_t>(layers.front().inputs));
    for (const Layer& layer : layers) {
      values_.emplace_back(rows * static_cast<std::size_t>(layer.units));
      gradients_.emplace_back(rows * static_cast<std::size_t>(layer.units));
    }
  }

  std::vector<float>& parameters() { return parameters_; }

  // Of rows with these numbers. Those of the outputs are turned into probabilities, less one at the right answer.
  Told forward(const Rows& data, std::span<const std::uint32_t> numbers) {
    const auto rows = static_cast<int>(numbers.size());
    gather(data, numbers);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      float* out = values_[i + 1].data();
      const float* biases = parameters_.data() + layer.biases;
      for (int row = 0; row < rows; ++row) std::copy_n(biases, layer.units, out + std::ptrdiff_t{row} * layer.units);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, layer.units, layer.inputs, 1, values_[i].data(),
                  layer.inputs, parameters_.data() + layer.weights, layer.units, 1, out, layer.units);
      if (i + 1 == layers_.size()) break;
      for (std::size_t j = 0; j < static_cast<std::size_t>(rows * layer.units); ++j) out[j] = std::max(out[j], 0.0F);
    }
    return compare(data, numbers);
  }

  // After a forward of so many rows.
  void backward_and_step(int rows, float rate) {
    const float step = -rate / static_cast<float>(rows);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      const float* gradient = gradients_[i].data();
      float* weights = parameters_.data() + layer.weights;
      if (i > 0) {  // before these weights change
        float* before = gradients_[i - 1].data();
        const float* values = values_[i].data();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, layer.inputs, layer.units, 1, gradient, layer.units,
                    weights, layer.units, 0, before, layer.inputs);
        for (std::size_t j = 0; j < static_cast<std::size_t>(rows * layer.inputs); ++j)
          before[j] = values[j] > 0 ? before[j] : 0;
      }
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, layer.inputs, layer.units, rows, step, values_[i].data(),
                  layer.inputs, gradient, layer.units, 1, weights, layer.units);
      float* biases = parameters_.data() + layer.biases;
      for (int row = 0; row < rows; ++row)
        for (int unit = 0; unit < layer.units; ++unit) biases[unit] += step * gradient[row * layer.units + unit];
    }
  }

 private:
  void gather(const Rows& data, std::span<const std::uint32_t> numbers) {
    const auto pixels = static_cast<std::size_t>(layers_.front().inputs);
    float* to = values_.front().data();
    for (const std::uint32_t number : numbers) to = std::copy_n(data.images.data() + number * pixels, pixels, to);
  }

  Told compare(const Rows& data, std::span<const std::uint32_t> numbers) {
    const auto units = static_cast<std::size_t>(layers_.back().units);
    Told told;
    for (std::size_t row = 0; row < numbers.size(); ++row) {
      const std::span<const float> out(values_.back().data() + row * units, units);
      float* gradient = gradients_.back().data() + row * units;
      const std::size_t label = data.labels[numbers[row]];
      const auto largest = std::ranges::max_element(out);
      float sum = 0;
      for (std::size_t i = 0; i < units; ++i) sum += gradient[i] = std::exp(out[i] - *largest);
      for (std::size_t i = 0; i < units; ++i) gradient[i] /= sum;
      gradient[label] -= 1;
      told.losses += std::log(sum) + *largest - out[label];
      told.right += static_cast<std::size_t>(largest - out.begin()) == label ? 1 : 0;
    }
    return told;
  }

  const std::vector<Layer>& layers_;
  std::vector<float> parameters_;
  std::vector<std::vector<float>> values_;     // the inputs, then what each layer gives
  std::vector<std::vector<float>> gradients_;  // of what each layer gives, before its relu
};

// The server, and the clients of its rounds.
class Federation {
 public:
  Federation(const Request& request, const Rows& data)
      : request_(request),
        data_(data),
        layers_(layers_of(request.layers)),
        server_(first_parameters(layers_, request.seed)),
        answers_(static_cast<std::size_t>(request.asked)) {
    for (int thread = 0; thread < request.threads; ++thread) workers_.emplace_back(layers_, request.batch);
    std::vector<std::uint32_t> numbers(data.labels.size());
    std::iota(numbers.begin(), numbers.end(), 0U);
    RandomStream({static_cast<std::uint64_t>(request.seed), for_rows}).shuffle(std::span(numbers));
    const std::size_t each = numbers.size() / static_cast<std::size_t>(request.clients);
    for (std::size_t first = 0; clients_.size() < static_cast<std::size_t>(request.clients); first += each)
      clients_.emplace_back(numbers.begin() + static_cast<std::ptrdiff_t>(first),
                            numbers.begin() + static_cast<std::ptrdiff_t>(first + each));
  }

  // Gives back how many local steps there were.
  std::int64_t run_round(int round) {
    std::vector<std::size_t> order(clients_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    draws(for_choice, round).shuffle(std::span(order));
    std::atomic<std::size_t> next{0};
    {
      std::vector<std::jthread> threads;
      for (Worker& worker : workers_) {
        threads.emplace_back([&] {
          for (std::size_t i = next++; i < answers_.size(); i = next++) answers_[i] = train(worker, order[i], round);
        });
      }
    }
    // All have equally many rows, so each counts as much as the others.
    std::ranges::fill(server_, 0);
    const float share = 1 / static_cast<float>(answers_.size());
    std::int64_t steps = 0;
    for (const Answer& answer : answers_) {
      cblas_saxpy(static_cast<int>(server_.size()), share, answer.parameters.data(), 1, server_.data(), 1);
      steps += answer.steps;
    }
    return steps;
  }

  double share_of_right(const Rows& test) const {
    constexpr std::size_t kMostRows = 256;
    Worker worker(layers_, kMostRows);
    worker.parameters() = server_;
    std::vector<std::uint32_t> numbers(test.labels.size());
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::int64_t right = 0;
    for (std::size_t first = 0; first < numbers.size(); first += kMostRows)
      right +=
          worker.forward(test, std::span(numbers).subspan(first, std::min(kMostRows, numbers.size() - first))).right;
    return static_cast<double>(right) / static_cast<double>(numbers.size());
  }

 private:
  struct Answer {
    std::vector<float> parameters;
    std::int64_t steps = 0;
    Told told;
  };

  RandomStream draws(Draw what, int round, std::size_t client = 0) const {
    return RandomStream({static_cast<std::uint64_t>(request_.seed), what, static_cast<std::uint64_t>(round), client});
  }

  Answer train(Worker& worker, std::size_t client, int round) {
    std::vector<std::uint32_t> order = clients_[client];
    draws(for_order, round, client).shuffle(std::span(order));
    Answer answer;
    worker.parameters() = server_;
    const auto batch = static_cast<std::size_t>(request_.batch);
    for (std::size_t first = 0; first < order.size(); first += batch, ++answer.steps) {
      const std::span<const std::uint32_t> numbers =
          std::span(order).subspan(first, std::min(batch, order.size() - first));
      const Told told = worker.forward(data_, numbers);
      worker.backward_and_step(static_cast<int>(numbers.size()), static_cast<float>(request_.rate));
      answer.told.losses += told.losses;
      answer.told.right += told.right;
    }
    answer.parameters = worker.parameters();
    return answer;
  }

  const Request& request_;
  const Rows& data_;
  const std::vector<Layer> layers_;
  std::vector<std::vector<std::uint32_t>> clients_;  // the numbers of their rows
  std::vector<float> server_;
  std::vector<Worker> workers_;
  std::vector<Answer> answers_;
};

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  std::string layers = "784,200,200,10";
  cli::CommandLine line("Trains clients out of nothing but products of matrices; prints a line of JSON.",
                        "fedavg_cblas");
  line.option("--data", request.data, "the folder with MNIST's four files");
  line.option("--layers", layers, "how wide each is, with commas between, inputs first");
  line.option("--clients", request.clients, 1, 60000, "how many there are");
  line.option("--asked", request.asked, 1, 60000, "how many are asked in a round");
  line.option("--batch", request.batch, 1, 60000, "rows of a local step");
  line.option("--rate", request.rate, "of SGD");
  line.option("--seed", request.seed, 0, 1 << 30, "of all that is drawn");
  line.option("--rounds", request.rounds, 2, 100000, "of which the first is not timed");
  line.option("--threads", request.threads, 1, 1024, "that train clients");
  if (!line.parse(arguments)) return false;
  request.layers = cli::parse_counts("--layers", layers, 1 << 20);
  if (request.layers.size() < 2) throw UsageError("--layers: expected inputs and outputs");
  if (request.asked > request.clients) throw UsageError("--asked: expected no more than there are clients");
  return true;
}

void run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return;
  const Rows data = read_rows(request.data, "train", request.layers);
  const Rows test = read_rows(request.data, "t10k", request.layers);
  Federation federation(request, data);
  federation.run_round(1);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t steps = 0;
  for (int round = 2; round <= request.rounds; ++round) steps += federation.run_round(round);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  fmt::print("{}\n", nlohmann::ordered_json{{"engine", "cblas"},
                                            {"rounds", request.rounds - 1},
                                            {"steps", steps},
                                            {"seconds", elapsed.count()},
                                            {"accuracy", federation.share_of_right(test)}}
                         .dump());
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    tutti::bench::run({argv + 1, argv + argc});
    return 0;
  } catch (const tutti::UsageError& error) {
    fmt::print(stderr, "fedavg_cblas: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fedavg_cblas: {}\n", error.what());
    return 1;
  }
}
