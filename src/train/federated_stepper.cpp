// Federated runs: a step is a round, and clients are simulated in this process.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tutti/coordinate/federated_rounds.hpp>
#include <tutti/coordinate/simulated_clients.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "client_ground.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

constexpr const char* kPersonal = "personal/";

// Of clients with a file each: what it is called, with its folders where that alone does not tell them apart.
std::vector<std::string> client_names(const RunData& data) {
  std::vector<std::string> names;
  if (!std::holds_alternative<Files>(data.client_split)) return names;
  for (const std::filesystem::path& file : data.opened_by.files) names.push_back(file.filename().string());
  if (std::set(names.begin(), names.end()).size() == names.size()) return names;
  names.clear();
  for (const std::filesystem::path& file : data.opened_by.files) names.push_back(file.string());
  return names;
}

class FederatedStepper final : public Stepper {
 public:
  explicit FederatedStepper(const Training& training)
      : run_(training.run),
        strategy_(std::get<strategy::Federated>(run_->graph.effective_strategy())),
        net_(make_net(training)),
        ground_(make_client_ground(run_, training.data.train, *net_, warnings_)),
        seats_(std::make_shared<ClientSeats>(ground_)),
        threads_(clients_at_a_time()),
        clients_(options_of_clients()),
        rounds_(ground_->shared, clients_,
                {.strategy = strategy_, .seed = run_->seed, .is_trained = ground_->is_trained}),
        evaluator_(run_, {.threads = threads_}) {
    if (run_->train.early_stopping && training.is_judged_by_clients() && clients_that_evaluate().empty())
      throw UsageError(
          "train.early_stopping: nothing that tells the best is ever evaluated, because no client has rows left to "
          "evaluate with");
    set_up_blas();
    if (training.options.trace)
      warnings_.emplace_back("--trace: what clients do is not traced; the timeline stays empty");
  }

  std::string describe() const override {
    const auto kilobytes = [](const ParameterSet& set) { return static_cast<double>(set.bytes()) / 1000; };
    return fmt::format(
        "clients on {} thread{}{}, {:.1f} kB to each in a round, where it works for {}{}", threads_,
        threads_ == 1 ? "" : "s",
        std::holds_alternative<strategy::Local>(strategy_.inner) ? "" : ", with replicas on more",
        kilobytes(ground_->shared), times_of_clients(),
        ground_->personal.empty() ? "" : fmt::format("; {:.1f} kB stay on each", kilobytes(ground_->personal)));
  }

  std::vector<std::string> notes() const override {
    const std::string summary = summarise_clients(
        ground_->train, ground_->labels, run_->data.opened_by.description.class_names, client_names(run_->data));
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < summary.size();) {
      const std::size_t end = summary.find('\n', begin);
      lines.push_back(summary.substr(begin, end - begin));
      begin = end == std::string::npos ? summary.size() : end + 1;
    }
    return lines;
  }

  void begin(std::int64_t) override {}

  std::vector<std::string> warnings() const override { return warnings_; }

  double set_rate(double factor) override {
    rate_factor_ = factor;
    return torch_options(run_->optimizer)->get_lr() * factor;
  }

  StepResult step(bool is_interrupted) override {
    const auto began = std::chrono::steady_clock::now();
    const double clock = clients_.now();
    RoundReport report = rounds_.run(rate_factor_);
    StepResult result;
    result.loss = report.loss;
    result.rows = report.rows;
    result.metrics = std::move(report.metrics);
    result.is_interrupted = is_interrupted;
    result.problems = std::move(report.problems);
    result.times.compute = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const auto count = [&](const char* name, auto number) {
      result.counts.push_back({name, static_cast<double>(number)});
    };
    count("asked", report.asked);
    count("updates", report.updates);
    count("late", report.late);
    count("dropped", report.dropped);
    count("refused", report.refused);
    count("failed", report.failed);
    count("repeats", report.repeats);
    count("bytes_down", report.bytes_down);
    count("bytes_up", report.bytes_up);
    count("clock", report.seconds - clock);
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    fill_net();
    return evaluator_.evaluate(net_, rows);
  }

  std::optional<Evaluation> evaluate_clients(std::vector<std::string>& problems) override {
    const std::vector<std::int64_t> clients = clients_that_evaluate();
    if (clients.empty()) return std::nullopt;
    ClientEvaluation its = rounds_.evaluate(clients, &problems);
    return Evaluation{.rows = its.rows, .loss = its.loss, .metrics = std::move(its.metrics)};
  }

  void save(ParameterSet& arrays) override {
    fill_net();
    rounds_.save(arrays);
    ParameterSet all;
    add_module(all, *net_);
    for (const NamedArray& array : all) {
      if (arrays.find(array.name()) == nullptr) arrays.add(array.layout(), array.bytes());
    }
    // What a client begins with that was never asked.
    for (const NamedArray& array : ground_->personal) {
      ParameterLayout layout = array.layout();
      layout.name.insert(0, kPersonal);
      arrays.add(std::move(layout), array.bytes());
    }
    clients_.save(arrays);
  }
  std::vector<ArrayOnDemand> save_clients() override { return clients_.save_kept(); }
  void restore_client(const ParameterLayout& layout, std::span<const std::byte> bytes) override {
    clients_.restore_kept(layout, bytes);
  }

  void restore(const ParameterSet& arrays) override {
    std::ranges::move(rounds_.restore(arrays), std::back_inserter(warnings_));
    copy_named(arrays, ground_->personal, kPersonal);
    copy_named(arrays, ground_->fixed);
    fill_named(ground_->fixed, *net_);
    clients_.restore(arrays, rounds_.parameters());
  }

 private:
  static std::shared_ptr<GraphModule> make_net(const Training& training) {
    return made_net(*training.run, training.weights, training.options.from);
  }

  // Those that keep rows for it.
  std::vector<std::int64_t> clients_that_evaluate() const {
    std::vector<std::int64_t> clients;
    for (std::size_t client = 0; client < ground_->test.size(); ++client) {
      if (!ground_->test[client].empty()) clients.push_back(static_cast<std::int64_t>(client));
    }
    return clients;
  }

  // Where nobody says, as many as there are cores for all of their replicas.
  int clients_at_a_time() const {
    const auto* inner = std::get_if<strategy::DataParallel>(&strategy_.inner);
    const std::int64_t replicas = inner == nullptr ? 1 : inner->num_replicas;
    const std::int64_t wanted = strategy_.threads > 0 ? strategy_.threads : usable_core_count() / replicas;
    return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, strategy_.num_clients));
  }

  // "0.12 to 3.4 s of the clock", so that a deadline can be chosen.
  std::string times_of_clients() const {
    std::vector<ClientInfo> clients;
    std::vector<ClientBehaviour> behaviour;
    describe_clients(*ground_, clients, behaviour);
    const auto [least, most] = std::ranges::minmax(behaviour, {}, &ClientBehaviour::fit_seconds);
    const std::string first = least.fit_seconds == most.fit_seconds ? "" : fmt::format("{:.3g} to ", least.fit_seconds);
    return fmt::format("{}{:.3g} s of the clock", first, most.fit_seconds);
  }

  SimulatedClientsOptions options_of_clients() const {
    SimulatedClientsOptions options{.make = [seats = seats_](std::int64_t client) { return seats->seat(client); },
                                    .compression = strategy_.compression,
                                    .is_trained = ground_->is_trained,
                                    .threads = threads_,
                                    .seed = run_->seed,
                                    .deadline = run_->train.deadline,
                                    .folder = run_->output,
                                    .prepare_thread = use_one_thread};
    describe_clients(*ground_, options.clients, options.behaviour);
    return options;
  }

  // The server's model, with the layers of its own that the first client has.
  void fill_net() {
    ParameterSet all;
    for (const NamedArray& array : rounds_.parameters()) all.add(array.layout(), array.bytes());
    const ParameterSet first = clients_.state_of(0);
    for (const NamedArray& array : ground_->personal) {
      const NamedArray* own = first.find("state/" + array.name());
      all.add(array.layout(), own != nullptr ? own->bytes() : array.bytes());
    }
    fill_named(all, *net_);
  }

  static void fill_named(const ParameterSet& set, const GraphModule& net) {
    const torch::NoGradGuard no_gradients;
    auto parameters = net.named_parameters();
    auto buffers = net.named_buffers();
    for (const NamedArray& array : set) {
      torch::Tensor* parameter = parameters.find(array.name());
      copy_to_tensor(array, parameter != nullptr ? *parameter : buffers[array.name()]);
    }
  }

  std::shared_ptr<const Run> run_;
  strategy::Federated strategy_;
  std::shared_ptr<GraphModule> net_;
  std::vector<std::string> warnings_;
  std::shared_ptr<ClientGround> ground_;
  std::shared_ptr<ClientSeats> seats_;
  int threads_;
  SimulatedClients clients_;
  FederatedRounds rounds_;
  Evaluator evaluator_;
  double rate_factor_ = 1;
};

}  // namespace

std::unique_ptr<Stepper> make_federated_stepper(const Training& training) {
  return std::make_unique<FederatedStepper>(training);
}

}  // namespace tutti::detail
