#include <tutti/sync/collective_gradient_sync.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>

namespace tutti {

CollectiveGradientSync::CollectiveGradientSync(Communicator world, const CollectiveGradientSyncOptions& options)
    : world_(std::move(world)),
      options_(options),
      compressor_(options.compression, {.algorithm = options.algorithm, .reproducible = options.reproducible}) {
  if (!world_.valid()) throw UsageError("gradients are to be synchronised over a communicator that was moved away");
  const RankRange all = all_ranks(world_.size());
  workers_.assign(all.begin(), all.end());
  num_workers_ = world_.size();
  if (options_.root.value < 0 || options_.root.value >= world_.size()) {
    throw UsageError(fmt::format("the root is one of {} workers: expected 0 to {}, found {}", world_.size(),
                                 world_.size() - 1, options_.root.value));
  }
}

void CollectiveGradientSync::sync_gradients(Array gradients) {
  run_round([&] {
    if (!is_compressed()) return exchange(gradients);
    std::optional<GradientBuffers> unnamed;
    try {
      unnamed.emplace(std::vector<NamedShape>{{"", {static_cast<std::int64_t>(gradients.length())}}}, gradients);
    } catch (const UsageError&) {
      GradientCompressor::refuse(world_);
      throw;
    }
    exchange_compressed(*unnamed);
  });
}

void CollectiveGradientSync::sync_exactly(Array numbers) {
  run_round([&] {
    all_reduce(world_, numbers,
               {.algorithm = options_.algorithm, .op = ReduceOp::mean, .reproducible = options_.reproducible});
  });
}

void CollectiveGradientSync::sync_buffers(GradientBuffers& gradients) {
  run_round([&] { is_compressed() ? exchange_compressed(gradients) : exchange(gradients.all()); });
}

template <typename Exchange>
void CollectiveGradientSync::run_round(Exchange exchange) {
  if (options_.strategy == SyncStrategy::no_sync) return;
  if (owed_) throw PeerError(*std::exchange(owed_, std::nullopt));
  try {
    if (is_broken_) go_on_with_those_left();
    exchange();
  } catch (const PeerError& error) {
    compressor_.forget();
    note(error);
    throw PeerError(translated(error.failure()));
  } catch (...) {
    compressor_.forget();
    throw;
  }
  try {
    confirm();
  } catch (...) {
    compressor_.forget();
    throw;
  }
  compressor_.keep();
}

// Whoever gets through knows that all have the mean. Whoever does not has the mean too, but knows nothing of the
// others: it asks those who are left. Where one of them got through, the round was one for all, and it is the next that
// failed.
void CollectiveGradientSync::confirm() {
  const int took_part = world_.size();
  std::optional<Failure> failure;
  try {
    barrier(world_);
    ++rounds_;
    num_workers_ = took_part;
    return;
  } catch (const PeerError& error) {
    failure = translated(error.failure());
    note(error);
  }
  bool others_got_through = false;
  try {
    others_got_through = go_on_with_those_left();
  } catch (const PeerError& error) {
    throw PeerError(translated(error.failure()));
  }
  if (!others_got_through) throw PeerError(*failure);
  num_workers_ = took_part;
  owed_ = std::move(failure);
}

void CollectiveGradientSync::note(const PeerError& error) {
  if (error.communicator_usable()) return;
  is_broken_ = true;
  if (error.kind() == FailureKind::lost) note_lost(error.ranks());
}

// True where some of them had one round more. Others may leave meanwhile, of which not all hear at the same time: those
// who have heard wait for the rest to find out.
bool CollectiveGradientSync::go_on_with_those_left() {
  constexpr int kMostTries = 1000;
  for (int tries = 1;; ++tries) {
    try {
      rebuild();
      std::vector<std::int64_t> everybodys(static_cast<std::size_t>(world_.size()));
      all_gather(world_, ConstArray(&rounds_, 1, DataType::int64), everybodys);
      is_broken_ = false;
      const std::int64_t most = std::ranges::max(everybodys);
      return most > std::exchange(rounds_, most);
    } catch (const PeerError& error) {
      const bool has_news = error.kind() == FailureKind::lost && note_lost(error.ranks());
      if (!has_news && error.kind() != FailureKind::disagreement) throw;
      if (tries == kMostTries) throw;
      if (!has_news) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Who was only late comes again.
void CollectiveGradientSync::rebuild() {
  if (std::ranges::find(lost_, world_.rank()) != lost_.end())
    throw PeerError({FailureKind::late, {world_.rank()}, "the others have gone on without this worker"});
  std::vector<Rank> left;
  std::vector<Rank> workers;
  for (Rank rank : all_ranks(world_.size())) {
    if (std::ranges::find(lost_, rank) != lost_.end()) continue;
    left.push_back(rank);
    workers.push_back(workers_[static_cast<std::size_t>(rank.value)]);
  }
  world_ = world_.rebuild(left);
  workers_ = std::move(workers);
  lost_.clear();
}

// False where all of them were known.
bool CollectiveGradientSync::note_lost(std::span<const Rank> ranks) {
  const std::size_t before = lost_.size();
  for (Rank rank : ranks) {
    if (std::ranges::find(lost_, rank) == lost_.end()) lost_.push_back(rank);
  }
  return lost_.size() > before;
}

void CollectiveGradientSync::exchange(Array gradients) {
  if (options_.strategy == SyncStrategy::all_reduce) {
    return all_reduce(world_, gradients,
                      {.algorithm = options_.algorithm, .op = ReduceOp::mean, .reproducible = options_.reproducible});
  }
  reduce(
      world_, gradients,
      {.root = root(), .algorithm = options_.algorithm, .op = ReduceOp::mean, .reproducible = options_.reproducible});
}

void CollectiveGradientSync::exchange_compressed(GradientBuffers& gradients) {
  if (options_.strategy == SyncStrategy::all_reduce || world_.rank() == root())
    return compressor_.exchange(world_, gradients);
  // This worker's own stay as they are.
  std::vector<NamedShape> shapes;
  for (const GradientBuffers::Piece& piece : gradients.pieces()) shapes.push_back({piece.name, piece.shape});
  GradientBuffers copy(std::move(shapes), gradients.type());
  std::copy_n(gradients.all().data(), gradients.all().bytes(), copy.all().data());
  compressor_.exchange(world_, copy);
}

Rank CollectiveGradientSync::root() const {
  const auto root = std::ranges::find(workers_, options_.root);
  return root == workers_.end() ? Rank{0} : Rank{static_cast<int>(root - workers_.begin())};
}

void CollectiveGradientSync::leave(std::string_view why) { world_.transport().depart(why); }

Failure CollectiveGradientSync::translated(const Failure& failure) const {
  Failure result = failure;
  std::string others;
  for (Rank& rank : result.ranks) {
    const Rank worker = workers_[static_cast<std::size_t>(rank.value)];
    if (worker == rank) continue;
    others += fmt::format("{}{} is worker {}", others.empty() ? "" : ", ", to_string(rank), worker.value);
    rank = worker;
  }
  if (!others.empty()) result.message += fmt::format(" ({}, as they were counted at the beginning)", others);
  return result;
}

}  // namespace tutti
