// The engines of the data-parallel suite that are made of libtorch:
//
//   data_parallel_engines --engine tutti --model mlp-256,cnn --batch 64,512       the time of a step
//   data_parallel_engines --engine tutti,never-talk --model cnn --batch 64        the same, taking turns
//   data_parallel_engines --engine tutti --model mlp-50m --batch 8 --replicas 8 --memory
//   data_parallel_engines --engine tutti --model mlp-256 --batch 64 --losses <folder>
//   data_parallel_engines --engine tutti --model cnn --batch 64 --accuracy TopK:0.01
//   data_parallel_engines --kernels                                               what OPENBLAS_CORETYPE should be
//
// - tutti: tutti::DataParallel, whose replicas are threads.
// - tutti-processes: tutti::DistributedModule on the processes that `tutti launch` has started.
// - single: a plain loop over the whole batch, with the threads for BLAS and OpenMP that the environment says.
// - never-talk: two such loops at once, each over half of the batch; no data-parallel step can be much faster.
//
// All of them keep freed memory, as tutti does by itself.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/c10d/join.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/distributed_module.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/transport/environment.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "data_parallel_accuracy.hpp"
#include "data_parallel_models.hpp"
#include "data_parallel_result.hpp"
#include "step_timer.hpp"

namespace tutti::bench {
namespace {

struct Request {
  std::vector<std::string> engines;
  std::vector<std::string> models;
  std::vector<int> batches;
  int replicas = 2;
  double seconds = 0.5;
  double learning_rate = 0.01;
  bool memory = false;
  std::string losses;    // a folder
  std::string accuracy;  // with this compression
  int epochs = 5;
  bool kernels = false;
};

// What an engine is to train.
struct Work {
  std::string model;
  int batch = 0;
  int replicas = 2;
  double learning_rate = 0;
};

using Parallel = DataParallel<torch::nn::SequentialImpl>;

// Sequential's forward is a template, so the closure names what it takes.
double step(Parallel& parallel, const Batch& rows) {
  return parallel.step(rows, [](torch::nn::SequentialImpl& net, const Batch& mine) { return loss_of(net, mine); });
}

StepCalls tutti_steps(const Work& work) {
  auto parallel = std::make_shared<Parallel>(make_model(work.model).ptr(), torch::optim::SGDOptions(work.learning_rate),
                                             DataParallelOptions{.replicas = work.replicas});
  return {.run = [parallel, rows = make_rows(work.model, work.batch)](std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps; ++i) step(*parallel, rows);
  }};
}

// One rank of a training run.
class ProcessLoop {
 public:
  explicit ProcessLoop(const Work& work)
      : net_(make_model(work.model)),
        model_(net_.ptr(), Communicator(c10d::join())),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(work.learning_rate)),
        rows_(make_rows(work.model, work.batch / model_.size())) {
    if (model_.size() != work.replicas)
      throw UsageError(fmt::format("--replicas: {} processes were started for {}", model_.size(), work.replicas));
  }

  void run(std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps; ++i) {
      net_->zero_grad(/*set_to_none=*/true);
      model_.backward(loss_of(*net_, rows_));
      model_.step(optimizer_);
    }
  }

  std::uint64_t agree(std::uint64_t of_first) {
    std::vector<std::int64_t> value{static_cast<std::int64_t>(of_first)};
    broadcast(model_.world(), value);
    return static_cast<std::uint64_t>(value.front());
  }

 private:
  torch::nn::Sequential net_;
  DistributedModule model_;
  torch::optim::SGD optimizer_;
  Batch rows_;
};

StepCalls process_steps(const Work& work) {
  const auto loop = std::make_shared<ProcessLoop>(work);
  return {.run = [loop](std::uint64_t steps) { loop->run(steps); },
          .agree = [loop](std::uint64_t of_first) { return loop->agree(of_first); }};
}

// What one writes by hand with libtorch.
class PlainLoop {
 public:
  PlainLoop(const Work& work, int rows)
      : net_(make_model(work.model)),
        parameters_(net_->parameters()),
        optimizer_(parameters_, torch::optim::SGDOptions(work.learning_rate)),
        rows_(make_rows(work.model, rows)) {}

  void run(std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps; ++i) step();
  }

 private:
  double step() {
    // As zero_grad(set_to_none=True) in Python: quicker than zeros that gradients are added to.
    for (torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    const torch::Tensor loss = loss_of(*net_, rows_);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

  torch::nn::Sequential net_;
  std::vector<torch::Tensor> parameters_;
  torch::optim::SGD optimizer_;
  Batch rows_;
};

StepCalls single_steps(const Work& work) {
  return {.run = [loop = std::make_shared<PlainLoop>(work, work.batch)](std::uint64_t steps) { loop->run(steps); }};
}

// Loops that run at the same time, on threads that stay, and meet only when all their steps are done.
class LoopsThatNeverTalk {
 public:
  explicit LoopsThatNeverTalk(const Work& work) : work_(work), barrier_(work.replicas + 1) {
    if (work.batch % work.replicas != 0)
      throw UsageError(fmt::format("--batch: expected as many rows for each of {} replicas, found {} in all",
                                   work.replicas, work.batch));
    for (int i = 0; i < work.replicas; ++i) threads_.emplace_back([this] { run_loop(); });
    barrier_.arrive_and_wait();  // all have their networks
  }
  LoopsThatNeverTalk(const LoopsThatNeverTalk&) = delete;
  LoopsThatNeverTalk& operator=(const LoopsThatNeverTalk&) = delete;
  ~LoopsThatNeverTalk() {
    steps_ = 0;
    barrier_.arrive_and_wait();
  }

  void run(std::uint64_t steps) {
    steps_ = steps;
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
  }

 private:
  void run_loop() {
    PlainLoop loop(work_, work_.batch / work_.replicas);
    barrier_.arrive_and_wait();
    while (true) {
      barrier_.arrive_and_wait();
      if (steps_ == 0) return;
      loop.run(steps_);
      barrier_.arrive_and_wait();
    }
  }

  const Work work_;
  std::barrier<> barrier_;
  std::uint64_t steps_ = 0;
  std::vector<std::jthread> threads_;
};

StepCalls never_talk_steps(const Work& work) {
  return {.run = [loops = std::make_shared<LoopsThatNeverTalk>(work)](std::uint64_t steps) { loops->run(steps); }};
}

StepCalls steps_of(const std::string& engine, const Work& work) {
  constexpr std::array<std::string_view, 4> kNames{"tutti", "tutti-processes", "single", "never-talk"};
  constexpr std::array kEngines{tutti_steps, process_steps, single_steps, never_talk_steps};
  return kEngines[cli::parse_choice("--engine", engine, kNames)](work);
}

void tell(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void measure_steps(const Request& request) {
  for (const std::string& model : request.models) {
    for (const int batch : request.batches) {
      std::vector<StepCalls> calls;
      for (const std::string& engine : request.engines) {
        calls.push_back(steps_of(
            engine,
            {.model = model, .batch = batch, .replicas = request.replicas, .learning_rate = request.learning_rate}));
      }
      const std::vector<cli::Timing> timings = time_steps(request.seconds, calls);
      // Of several processes one speaks for all.
      if (const std::optional<ProcessPlace> place = discover_place(); place && place->rank != Rank{0}) continue;
      for (std::size_t i = 0; i < timings.size(); ++i) {
        tell(to_json_line(StepResult{.engine = request.engines[i],
                                     .model = model,
                                     .batch = batch,
                                     .threads = at::get_num_threads(),
                                     .timing = timings[i]}));
      }
    }
  }
}

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  throw Error("/proc/self/status does not say VmRSS");
}

// From now on; what was freed before, malloc_trim(0) gives back, but not at the end of a thread's heap.
void give_back_freed_memory() {
  mallopt(M_TRIM_THRESHOLD, 0);
  mallopt(M_TOP_PAD, 0);
}

// Gradients and activations are freed in every step, and the memory is kept for the next: here the last step gives it
// back. Gradients that somebody still holds are subtracted.
void measure_memory(const Request& request) {
  constexpr int kSteps = 20;
  for (const std::string& model : request.models) {
    for (const int batch : request.batches) {
      Parallel parallel(make_model(model).ptr(), torch::optim::AdamOptions(1e-4),
                        DataParallelOptions{.replicas = request.replicas});
      const Batch rows = make_rows(model, batch);
      for (int i = 0; i < kSteps; ++i) {
        if (i + 1 == kSteps) give_back_freed_memory();
        step(parallel, rows);
      }
      malloc_trim(0);
      std::uint64_t parameters = 0;
      std::uint64_t gradients = 0;
      for (const torch::Tensor& parameter : parallel.module()->parameters()) {
        parameters += parameter.nbytes();
        if (parameter.grad().defined()) gradients += parameter.grad().nbytes();
      }
      tell(to_json_line(MemoryResult{.engine = request.engines.front(),
                                     .model = model,
                                     .replicas = request.replicas,
                                     .batch = batch,
                                     .resident_bytes = resident_bytes() - gradients,
                                     .parameter_bytes = parameters}));
    }
  }
}

template <typename Value>
std::vector<Value> read_values(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("--losses: cannot read {}", path.string()));
  std::vector<Value> values(std::filesystem::file_size(path) / sizeof(Value));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
  return values;
}

void fill(const std::vector<torch::Tensor>& parameters, const std::vector<float>& values) {
  const torch::NoGradGuard guard;
  std::size_t done = 0;
  for (torch::Tensor parameter : parameters) {
    const auto length = static_cast<std::size_t>(parameter.numel());
    if (done + length > values.size()) throw UsageError("--losses: parameters.f32 is too short");
    std::ranges::copy_n(values.begin() + static_cast<std::ptrdiff_t>(done), parameter.numel(),
                        parameter.data_ptr<float>());
    done += length;
  }
  if (done != values.size()) throw UsageError("--losses: parameters.f32 is too long");
}

// The folder's parameters.f32 hold the parameters in their order; rows.f32 and labels.u8 the rows of all steps.
void tell_losses(const Request& request) {
  const std::string& model = request.models.front();
  const int batch = request.batches.front();
  const std::filesystem::path folder = request.losses;
  torch::nn::Sequential net = make_model(model);
  fill(net->parameters(), read_values<float>(folder / "parameters.f32"));
  std::vector<float> values = read_values<float>(folder / "rows.f32");
  std::vector<std::uint8_t> labels = read_values<std::uint8_t>(folder / "labels.u8");
  std::vector<std::int64_t> shape = row_shape(model);
  shape.insert(shape.begin(), {-1, batch});
  const torch::Tensor data = torch::from_blob(values.data(), static_cast<std::int64_t>(values.size())).reshape(shape);
  const torch::Tensor targets =
      torch::from_blob(labels.data(), static_cast<std::int64_t>(labels.size()), torch::kUInt8).to(torch::kLong);

  Parallel parallel(net.ptr(), torch::optim::SGDOptions(request.learning_rate),
                    DataParallelOptions{.replicas = request.replicas});
  for (std::int64_t i = 0; i < data.size(0); ++i) {
    const double loss = step(parallel, {data[i], targets.reshape({-1, batch})[i]});
    const nlohmann::ordered_json line{
        {"engine", request.engines.front()}, {"model", model}, {"batch", batch}, {"step", i + 1}, {"loss", loss}};
    tell(line.dump());
  }
}

void tell_accuracy(const Request& request) {
  tell(to_json_line(measure_accuracy({.model = request.models.front(),
                                      .batch = request.batches.front(),
                                      .replicas = request.replicas,
                                      .epochs = request.epochs,
                                      .compression = parse_compression(request.accuracy)})));
}

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  std::string models = "mlp-256,mlp-1024,mlp-2048,cnn";
  std::string batches = "64,512";
  std::string engines = "tutti";
  cli::CommandLine line("Times training steps; prints one JSON object a line.", "data_parallel_engines");
  line.option("--engine", engines, "tutti, tutti-processes, single, never-talk; with commas between they take turns");
  line.option("--model", models, "networks, with commas between");
  line.option("--batch", batches, "rows of all replicas together, with commas between");
  line.option("--replicas", request.replicas, 1, 1024, "of tutti and never-talk");
  line.option("--learning-rate", request.learning_rate, "of SGD");
  line.seconds(request.seconds);
  line.flag("--memory", request.memory, "of tutti: resident memory after 20 steps of Adam");
  line.option("--losses", request.losses, "of tutti: the loss of each step, from the parameters and rows of a folder");
  line.option("--accuracy", request.accuracy, "of tutti: what is learnt from Fashion-MNIST with this compression");
  line.option("--epochs", request.epochs, 1, 1000, "of --accuracy: passes over the images");
  line.flag("--kernels", request.kernels, "the kernels that tutti chooses for OpenBLAS, and nothing else");
  if (!line.parse(arguments)) return false;
  request.engines = cli::parse_list("--engine", engines);
  request.models = cli::parse_list("--model", models);
  request.batches = cli::parse_counts("--batch", batches, kMostRows);
  if ((request.memory || !request.losses.empty() || !request.accuracy.empty()) &&
      request.engines != std::vector<std::string>{"tutti"})
    throw UsageError("--memory, --losses and --accuracy are for the engine tutti");
  return true;
}

void run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return;
  if (request.kernels) return tell(set_up_blas().kernels);
  keep_freed_memory();
  if (request.memory) return measure_memory(request);
  if (!request.losses.empty()) return tell_losses(request);
  if (!request.accuracy.empty()) return tell_accuracy(request);
  measure_steps(request);
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    tutti::bench::run({argv + 1, argv + argc});
    return 0;
  } catch (const tutti::UsageError& error) {
    fmt::print(stderr, "data_parallel_engines: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_parallel_engines: {}\n", error.what());
    return 1;
  }
}
