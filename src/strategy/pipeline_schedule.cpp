#include <tutti/strategy/pipeline_schedule.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Which stages take values of each.
std::vector<std::vector<std::size_t>> followers_of(const StageGraph& graph) {
  std::vector<std::vector<std::size_t>> followers(graph.stages.size());
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    for (const std::size_t before : graph.stages[s].after) followers[before].push_back(s);
  }
  return followers;
}

// How many stages there are from each to the end, along the longest way.
std::vector<std::int64_t> stages_to_the_end(const StageGraph& graph) {
  std::vector<std::int64_t> count(graph.stages.size(), 1);
  for (std::size_t s = graph.stages.size(); s-- > 0;) {
    for (const std::size_t before : graph.stages[s].after) count[before] = std::max(count[before], count[s] + 1);
  }
  return count;
}

// When each task of a run is done; never, where it has not begun.
class Progress {
 public:
  Progress(const StageGraph& graph, std::int64_t micro_batches, const std::vector<StageCost>& costs)
      : graph_(graph),
        followers_(followers_of(graph)),
        costs_(costs),
        micro_batches_(micro_batches),
        done_(2 * graph.stages.size() * static_cast<std::size_t>(micro_batches), kNever) {}

  double done(const StageTask& task) const { return done_[index(task)]; }

  // When all that a task needs is there.
  double ready(const StageTask& task) const {
    const Stage& stage = graph_.stages[task.stage];
    double ready = 0;
    if (task.pass == Pass::forward) {
      for (std::size_t i = 0; i < stage.after.size(); ++i)
        ready = std::max(ready, done({stage.after[i], task.micro_batch, Pass::forward}) + transfer(task.stage, i));
      return ready;
    }
    ready = done({task.stage, task.micro_batch, Pass::forward});
    for (const std::size_t follower : followers_[task.stage]) {
      if (!graph_.stages[follower].has_backward) continue;
      const std::vector<std::size_t>& after = graph_.stages[follower].after;
      const auto place = static_cast<std::size_t>(std::ranges::find(after, task.stage) - after.begin());
      ready = std::max(ready, done({follower, task.micro_batch, Pass::backward}) + transfer(follower, place));
    }
    return ready;
  }

  double cost(const StageTask& task) const {
    return task.pass == Pass::forward ? costs_[task.stage].forward : costs_[task.stage].backward;
  }
  // Returns when it ends.
  double begin(const StageTask& task, double when) { return done_[index(task)] = when + cost(task); }

 private:
  std::size_t index(const StageTask& task) const {
    const std::size_t of_stage = task.stage * static_cast<std::size_t>(micro_batches_);
    return 2 * (of_stage + static_cast<std::size_t>(task.micro_batch)) + (task.pass == Pass::backward ? 1 : 0);
  }
  double transfer(std::size_t stage, std::size_t place) const {
    const std::vector<double>& transfers = costs_[stage].transfers;
    return transfers.empty() ? 0 : transfers[place];
  }

  const StageGraph& graph_;
  std::vector<std::vector<std::size_t>> followers_;
  const std::vector<StageCost>& costs_;
  std::int64_t micro_batches_;
  std::vector<double> done_;
};

// What comes first where two can begin at once: micro-batches in groups, and of a group first those that are further
// along.
using Preference = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
Preference preference_of(const StageTask& task, std::int64_t group) {
  const auto stage = static_cast<std::int64_t>(task.stage);
  return {task.micro_batch / group, task.pass == Pass::forward ? stage : -stage, task.micro_batch};
}

// Carries out a run in which each worker, whenever it is free, takes what the schedule prefers of what it can do.
class Simulation {
 public:
  Simulation(const StageGraph& graph, std::int64_t micro_batches, strategy::Schedule schedule)
      : graph_(graph),
        micro_batches_(micro_batches),
        schedule_(schedule),
        costs_(graph.stages.size()),
        progress_(graph, micro_batches, costs_),
        most_of_stage_(stages_to_the_end(graph)),
        stages_(graph.stages.size()),
        workers_(static_cast<std::size_t>(graph.workers)),
        order_(static_cast<std::size_t>(graph.workers)) {
    for (std::size_t s = 0; s < graph.stages.size(); ++s) worker_of(s).stages.push_back(s);
  }

  WorkOrder run() {
    while (take_next()) {
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      TUTTI_ASSERT(!next_of(s, Pass::forward) && !next_of(s, Pass::backward));
    return std::move(order_);
  }

 private:
  struct StageState {
    std::int64_t forwards = 0;  // begun
    std::int64_t backwards = 0;
  };
  struct Worker {
    std::vector<std::size_t> stages = {};
    double is_free = 0;
  };
  struct Choice {
    double begin = kNever;
    Preference preference = {};
    StageTask task = {};
  };

  Worker& worker_of(std::size_t stage) { return workers_[static_cast<std::size_t>(graph_.stages[stage].worker)]; }

  // A stage takes its micro-batches in their order.
  std::optional<StageTask> next_of(std::size_t stage, Pass pass) const {
    const StageState& its = stages_[stage];
    if (pass == Pass::backward && !graph_.stages[stage].has_backward) return std::nullopt;
    const std::int64_t next = pass == Pass::forward ? its.forwards : its.backwards;
    if (next == micro_batches_) return std::nullopt;
    return StageTask{stage, next, pass};
  }

  // There is always one within: of the oldest micro-batch that is under way, or the next.
  bool is_within_bounds(const StageTask& task) const {
    if (schedule_ == strategy::Schedule::gpipe || task.pass == Pass::backward) return true;
    const StageState& its = stages_[task.stage];
    return !graph_.stages[task.stage].has_backward || its.forwards - its.backwards < most_of_stage_[task.stage];
  }

  // What the worker would begin next, and when. It does not wait for something while it could do something else.
  Choice choose(const Worker& worker) const {
    const auto first_of = [&](Pass pass) {
      Choice best;
      for (const std::size_t stage : worker.stages) {
        const std::optional<StageTask> task = next_of(stage, pass);
        if (!task || !is_within_bounds(*task)) continue;
        const Choice one{std::max(worker.is_free, progress_.ready(*task)), preference_of(*task, /*group=*/1), *task};
        if (std::tie(one.begin, one.preference) < std::tie(best.begin, best.preference)) best = one;
      }
      return best;
    };
    const Choice forward = first_of(Pass::forward);
    if (schedule_ == strategy::Schedule::gpipe) {
      const bool has_more = std::ranges::any_of(
          worker.stages, [&](std::size_t stage) { return next_of(stage, Pass::forward).has_value(); });
      return has_more ? forward : first_of(Pass::backward);
    }
    const Choice backward = first_of(Pass::backward);
    return forward.begin < backward.begin ? forward : backward;
  }

  // The task that begins first, of all workers'. False where nobody can begin anything.
  bool take_next() {
    Choice first;
    for (const Worker& worker : workers_) {
      const Choice its = choose(worker);
      if (its.begin < first.begin) first = its;
    }
    if (first.begin == kNever) return false;
    const StageTask& task = first.task;
    Worker& worker = worker_of(task.stage);
    worker.is_free = progress_.begin(task, first.begin);
    order_[static_cast<std::size_t>(graph_.stages[task.stage].worker)].push_back(task);
    StageState& its = stages_[task.stage];
    ++(task.pass == Pass::forward ? its.forwards : its.backwards);
    return true;
  }

  const StageGraph& graph_;
  std::int64_t micro_batches_;
  strategy::Schedule schedule_;
  std::vector<StageCost> costs_;
  Progress progress_;
  std::vector<std::int64_t> most_of_stage_;
  std::vector<StageState> stages_;
  std::vector<Worker> workers_;
  WorkOrder order_;
};

// Nothing where somebody waits for himself.
std::optional<WorkForecast> carry_out(const StageGraph& graph, const WorkOrder& order,
                                      const std::vector<StageCost>& costs) {
  std::int64_t micro_batches = 0;
  std::size_t left = 0;
  for (const std::vector<StageTask>& tasks : order) {
    left += tasks.size();
    for (const StageTask& task : tasks) micro_batches = std::max(micro_batches, task.micro_batch + 1);
  }
  Progress progress(graph, micro_batches, costs);
  WorkForecast forecast{.busy = std::vector<double>(order.size()),
                        .live = std::vector<std::int64_t>(graph.stages.size())};
  std::vector<std::size_t> next(order.size());
  std::vector<double> is_free(order.size());
  std::vector<std::int64_t> live(graph.stages.size());
  while (left > 0) {
    const std::size_t before = left;
    for (std::size_t w = 0; w < order.size(); ++w) {
      for (; next[w] < order[w].size(); ++next[w], --left) {
        const StageTask& task = order[w][next[w]];
        const double ready = progress.ready(task);
        if (ready == kNever) break;
        is_free[w] = progress.begin(task, std::max(is_free[w], ready));
        forecast.busy[w] += progress.cost(task);
        if (!graph.stages[task.stage].has_backward) continue;
        live[task.stage] += task.pass == Pass::forward ? 1 : -1;
        forecast.live[task.stage] = std::max(forecast.live[task.stage], live[task.stage]);
      }
    }
    if (left == before) return std::nullopt;
  }
  forecast.seconds = *std::ranges::max_element(is_free);
  const double all = forecast.seconds * static_cast<double>(order.size());
  if (all > 0) forecast.bubble = 1 - std::accumulate(forecast.busy.begin(), forecast.busy.end(), 0.0) / all;
  return forecast;
}

// Groups of as many micro-batches as there are workers go through all stages of a worker in turn. At first it takes up
// as many as it needs under way so that its first backward task finds all workers busy; then it alternates (Narayanan
// et al.: "Efficient Large-Scale Language Model Training on GPU Clusters", 2021).
WorkOrder interleaved_order(const StageGraph& graph, std::int64_t micro_batches) {
  WorkOrder order(static_cast<std::size_t>(graph.workers));
  for (int w = 0; w < graph.workers; ++w) {
    std::vector<StageTask> forward;
    std::vector<StageTask> backward;
    std::int64_t first = graph.workers - 1;
    std::int64_t stages = 0;
    for (std::size_t s = 0; s < graph.stages.size(); ++s) {
      if (graph.stages[s].worker != w) continue;
      first = std::min(first, static_cast<std::int64_t>(s));
      ++stages;
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        forward.push_back({s, m, Pass::forward});
        if (graph.stages[s].has_backward) backward.push_back({s, m, Pass::backward});
      }
    }
    const auto by_preference = [&](const StageTask& task) { return preference_of(task, graph.workers); };
    std::ranges::sort(forward, {}, by_preference);
    std::ranges::sort(backward, {}, by_preference);
    const std::int64_t at_first = 2 * (graph.workers - 1 - first) + (stages - 1) * graph.workers;
    std::vector<StageTask>& its = order[static_cast<std::size_t>(w)];
    std::size_t next = 0;
    for (std::size_t f = 0; f < forward.size(); ++f) {
      its.push_back(forward[f]);
      if (static_cast<std::int64_t>(f) >= at_first && next < backward.size()) its.push_back(backward[next++]);
    }
    its.insert(its.end(), backward.begin() + static_cast<std::ptrdiff_t>(next), backward.end());
  }
  return order;
}

}  // namespace

WorkOrder schedule_work(const StageGraph& graph, std::int64_t micro_batches, strategy::Schedule schedule) {
  if (schedule == strategy::Schedule::interleaved && micro_batches % graph.workers != 0) {
    throw UsageError(fmt::format(
        "the schedule interleaved: expected a multiple of {} micro-batches, as there are {} workers, found {}",
        graph.workers, graph.workers, micro_batches));
  }
  if (schedule == strategy::Schedule::interleaved) {
    WorkOrder order = interleaved_order(graph, micro_batches);
    if (carry_out(graph, order, std::vector<StageCost>(graph.stages.size()))) return order;
    schedule = strategy::Schedule::one_f_one_b;  // stages that do not take turns: nothing is to be gained
  }
  return Simulation(graph, micro_batches, schedule).run();
}

WorkForecast forecast_work(const StageGraph& graph, const WorkOrder& order, const std::vector<StageCost>& costs) {
  std::optional<WorkForecast> forecast = carry_out(graph, order, costs);
  if (!forecast) throw UsageError("the order of work waits for itself");
  return *std::move(forecast);
}

}  // namespace tutti
