// A client of a federated run: it trains the run's graph on its own rows.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <tutti/base/random.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>

#include "client_ground.hpp"
#include "client_trainer.hpp"
#include "evaluation_rows.hpp"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kLocalOrderDraws = 0x10ca1;

// An array of a set and the tensor of a network that it goes to and comes from. Both are contiguous.
struct ArrayPlace {
  std::string name;
  torch::Tensor tensor;
};

std::vector<ArrayPlace> places_of(const ParameterSet& set, const GraphModule& net) {
  const auto parameters = net.named_parameters();
  const auto buffers = net.named_buffers();
  std::vector<ArrayPlace> places;
  for (const NamedArray& array : set) {
    const torch::Tensor* parameter = parameters.find(array.name());
    places.push_back({array.name(), parameter != nullptr ? *parameter : buffers[array.name()]});
  }
  return places;
}

void fill_places(const ParameterSet& from, const std::vector<ArrayPlace>& to) {
  const torch::NoGradGuard no_gradients;
  for (const ArrayPlace& place : to) copy_to_tensor(from.at(place.name), place.tensor);
}

ParameterSet read_places(const std::vector<ArrayPlace>& from) {
  ParameterSet set;
  for (const ArrayPlace& place : from) add_tensor(set, place.name, place.tensor.detach());
  return set;
}

DataRows narrow_rows(const DataRows& rows, std::int64_t first, std::int64_t count) {
  DataRows some;
  for (const torch::Tensor& input : rows.inputs) some.inputs.push_back(input.narrow(0, first, count));
  some.target = rows.target.narrow(0, first, count);
  return some;
}

}  // namespace

struct ClientSeats::Seat {
  explicit Seat(const ClientGround& ground)
      : net(std::make_shared<GraphModule>(ground.run->graph, ground.run->seed)),
        shared(places_of(ground.shared, *net)),
        personal(places_of(ground.personal, *net)),
        trainer(make_client_trainer(ground.run, net)) {
    fill_places(ground.fixed, places_of(ground.fixed, *net));
  }

  std::shared_ptr<GraphModule> net;
  std::vector<ArrayPlace> shared;
  std::vector<ArrayPlace> personal;
  std::unique_ptr<ClientTrainer> trainer;
};

struct ClientSeats::Free {
  std::mutex mutex;
  std::vector<std::unique_ptr<Seat>> seats;
};

class ClientSeats::GraphClient final : public FederatedClient {
 public:
  GraphClient(std::shared_ptr<const ClientGround> ground, std::shared_ptr<Free> free, std::unique_ptr<Seat> seat,
              std::int64_t client)
      : ground_(std::move(ground)), free_(std::move(free)), seat_(std::move(seat)), client_(client) {
    fill_places(ground_->personal, seat_->personal);
  }
  ~GraphClient() override {
    const std::lock_guard lock(free_->mutex);
    free_->seats.push_back(std::move(seat_));
  }
  GraphClient(const GraphClient&) = delete;
  GraphClient& operator=(const GraphClient&) = delete;

  FitResult fit(const ParameterSet& parameters, const FitInstructions& instructions) override;
  ClientEvaluation evaluate(const ParameterSet& parameters) override;
  ParameterSet state() const override { return read_places(seat_->personal); }
  void restore(const ParameterSet& state) override { fill_places(state, seat_->personal); }

 private:
  const std::vector<std::int64_t>& rows() const { return ground_->train[static_cast<std::size_t>(client_)]; }
  // The client's rows in the order of an epoch.
  std::vector<std::int64_t> order_of(std::int64_t draw, std::int64_t epoch) const {
    std::vector<std::int64_t> order = rows();
    if (ground_->run->data.options.shuffle) {
      RandomStream draws({ground_->run->seed, kLocalOrderDraws, static_cast<std::uint64_t>(client_),
                          static_cast<std::uint64_t>(draw), static_cast<std::uint64_t>(epoch)});
      draws.shuffle(std::span(order));
    }
    order.resize(static_cast<std::size_t>(ground_->settings_of(client_).rows_per_epoch(std::ssize(order))));
    return order;
  }
  // Some batches are read at a time: few calls, and little memory.
  std::int64_t rows_to_read(std::int64_t batch_size) const {
    constexpr std::int64_t kElements = 1 << 19;
    std::int64_t elements = 1;
    for (const auto& [name, spec] : ground_->run->data.opened_by.description.inputs)
      elements += element_count(spec.shape).value_or(kElements);
    return std::max<std::int64_t>(kElements / elements / batch_size, 1) * batch_size;
  }

  std::shared_ptr<const ClientGround> ground_;
  std::shared_ptr<Free> free_;
  std::unique_ptr<Seat> seat_;
  std::int64_t client_;
};

FitResult ClientSeats::GraphClient::fit(const ParameterSet& parameters, const FitInstructions& instructions) {
  const Run& run = *ground_->run;
  const ClientSettings& settings = ground_->settings_of(client_);
  fill_places(parameters, seat_->shared);
  seat_->net->train();
  seat_->trainer->begin(
      {.rule = settings.optimizer, .mu = instructions.mu, .client = client_, .draw = instructions.draw});
  const std::int64_t steps = settings.steps(std::ssize(rows()));
  const std::int64_t steps_per_epoch = settings.steps_per_epoch(std::ssize(rows()));
  const std::int64_t read_at_once = rows_to_read(settings.batch_size);
  double loss = 0;
  double weight = 0;
  std::int64_t trained = 0;
  std::vector<MetricSum> metrics(run.metrics.size());
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < steps; ++epoch) {
    const std::vector<std::int64_t> order = order_of(instructions.draw, epoch);
    DataRows read;
    std::int64_t read_from = 0;
    std::int64_t read_to = 0;
    for (std::int64_t first = 0; first < std::ssize(order) && step < steps; first += settings.batch_size, ++step) {
      if (first >= read_to) {
        read_from = first;
        read_to = std::min(first + read_at_once, std::ssize(order));
        const std::span<const std::int64_t> numbers =
            std::span(order).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(read_to - first));
        read = ground_->rows->rows(numbers);
        if (run.data.options.augment)
          read = augment_rows(std::move(read), *run.data.options.augment,
                              {.seed = run.seed,
                               .epoch = instructions.draw * (steps / steps_per_epoch + 1) + epoch,
                               .numbers = numbers});
      }
      const DataRows batch =
          narrow_rows(read, first - read_from, std::min(settings.batch_size, std::ssize(order) - first));
      const double factor =
          instructions.rate_factor *
          (settings.schedule
               ? rate_factor(*settings.schedule, {.step = step, .steps = steps, .steps_per_epoch = steps_per_epoch})
               : 1);
      const ClientStepNumbers numbers = seat_->trainer->step(batch, factor);
      trained += batch.target.size(0);
      loss += numbers.weight * numbers.loss;
      weight += numbers.weight;
      for (std::size_t m = 0; m < metrics.size(); ++m) {
        metrics[m].sum += numbers.metrics[m].sum;
        metrics[m].count += numbers.metrics[m].count;
      }
    }
  }
  FitResult result{.parameters = read_places(seat_->shared),
                   .rows = std::ssize(rows()),
                   .trained = trained,
                   .loss = weight > 0 ? loss / weight : 0,
                   .metrics = {}};
  for (std::size_t m = 0; m < metrics.size(); ++m) {
    if (metrics[m].count > 0)
      result.metrics.push_back({run.metrics[m].name, value_of(run.metrics[m].metric, metrics[m])});
  }
  return result;
}

ClientEvaluation ClientSeats::GraphClient::evaluate(const ParameterSet& parameters) {
  const Run& run = *ground_->run;
  fill_places(parameters, seat_->shared);
  const bool has_own = !ground_->test.empty() && !ground_->test[static_cast<std::size_t>(client_)].empty();
  const std::vector<std::int64_t>& numbers = has_own ? ground_->test[static_cast<std::size_t>(client_)] : rows();
  const c10::InferenceMode no_gradients;
  seat_->net->eval();
  const std::int64_t at_once = rows_at_once(run);
  const std::size_t width = evaluation_width(run);
  std::vector<double> sums;
  for (std::int64_t first = 0; first < std::ssize(numbers); first += at_once) {
    const DataRows batch = ground_->rows->rows(std::span(numbers).subspan(
        static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(at_once, std::ssize(numbers) - first))));
    const torch::Tensor output = seat_->net->forward(graph_inputs(run, batch)).front();
    sums.resize(sums.size() + width);
    measure(run, output, batch.target, std::span(sums).last(width));
  }
  Evaluation evaluation = evaluation_of(run, std::ssize(numbers), sums);
  return {.rows = evaluation.rows, .loss = evaluation.loss, .metrics = std::move(evaluation.metrics)};
}

ClientSeats::ClientSeats(std::shared_ptr<const ClientGround> ground)
    : ground_(std::move(ground)), free_(std::make_shared<Free>()) {}

ClientSeats::~ClientSeats() = default;

std::unique_ptr<FederatedClient> ClientSeats::seat(std::int64_t client) {
  std::unique_ptr<Seat> seat;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->seats.empty()) {
      seat = std::move(free_->seats.back());
      free_->seats.pop_back();
    }
  }
  if (!seat) seat = std::make_unique<Seat>(*ground_);
  return std::make_unique<GraphClient>(ground_, free_, std::move(seat), client);
}

}  // namespace tutti::detail
