#include <tutti/coordinate/population.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/explore.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::contains;
using strategy::MemberPart;

constexpr std::uint64_t kMemberSeeds = 0x3e3be4;
constexpr std::uint64_t kFirstDraws = 0xf14574;
constexpr std::uint64_t kExploreDraws = 0xe4910e;
constexpr Duration kLook = 100ms;       // how long an interruption may go unnoticed
constexpr std::int64_t kLeastKept = 2;  // generations: the newest of a member may turn out to be damaged

// What cannot stand in a file of JSON has a mark in its place: members throw texts of anybody's.
std::string as_utf8(const std::string& text) {
  const nlohmann::ordered_json json = text;
  return nlohmann::ordered_json::parse(
      json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace));
}

std::optional<std::string> failure_of(const MemberReply& reply, bool compares_samples) {
  if (!reply.failure.empty()) return as_utf8(reply.failure);
  if (!std::isfinite(reply.score.value)) return fmt::format("its score is {}", reply.score.value);
  if (!compares_samples) return std::nullopt;
  for (const double sample : reply.score.samples) {
    if (!std::isfinite(sample)) return fmt::format("one of its scores is {}", sample);
  }
  return std::nullopt;
}

bool is_better(double score, double than, bool higher_is_better) {
  return higher_is_better ? score > than : score < than;
}

// Whose weights it went on from; nothing where it began.
std::optional<MemberKey> origin_of(const MemberRecord& record) {
  if (record.parent && record.has_copied(MemberPart::weights)) return record.parent;
  if (record.generation == 1) return std::nullopt;
  return MemberKey{.member = record.member, .generation = record.generation - 1};
}

// Without those that cannot be: whom they took over from, or what they were themselves before, is not among those
// before them.
void drop_orphans(std::vector<MemberRecord>& records) {
  std::set<MemberKey> there;
  std::erase_if(records, [&](const MemberRecord& record) {
    const MemberKey before{.member = record.member, .generation = record.generation - 1};
    const bool is_orphan = (record.generation > 1 && !there.contains(before)) ||
                           (record.parent && !there.contains(*record.parent)) || there.contains(record.key());
    if (!is_orphan) there.insert(record.key());
    return is_orphan;
  });
}

// The newest of each member.
std::map<std::int64_t, MemberRecord> newest_in(const std::vector<MemberRecord>& records) {
  std::map<std::int64_t, MemberRecord> newest;
  for (const MemberRecord& record : records) newest[record.member] = record;
  return newest;
}

// How many records there are of whole generations, one after the other and each in the order of members. An append
// that was cut short has left some of the next; nothing where there is something else.
std::optional<std::size_t> records_in_step(const std::vector<MemberRecord>& records, std::int64_t members) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    if (records[i].key() != MemberKey{.member = number % members, .generation = number / members + 1})
      return std::nullopt;
  }
  return records.size() - records.size() % static_cast<std::size_t>(members);
}

// Of members that have all failed, an Error.
[[noreturn]] void refuse_all_failed(std::int64_t members, const std::string& why) {
  throw Error(fmt::format("all {} members have failed; the last: {}", members, why));
}

}  // namespace

std::uint64_t member_seed(std::uint64_t seed, std::int64_t member) {
  RandomStream seeds({seed, kMemberSeeds, static_cast<std::uint64_t>(member)});
  return seeds() >> 1;  // signed numbers have it, too
}

Population::Population(PopulationOptions options)
    : options_(std::move(options)),
      store_(options_.folder.empty() ? std::filesystem::path() : members_folder(), options_.strategy.idle),
      last_(static_cast<std::size_t>(std::max<std::int64_t>(options_.strategy.population_size, 0))),
      last_scored_(last_.size()) {
  validate(TrainingStrategy(options_.strategy));
  validate(options_.space);
  if (!options_.first.empty() && std::ssize(options_.first) != size())
    throw UsageError(fmt::format("expected the first hyper-parameters of each of {} members, found {}", size(),
                                 options_.first.size()));
  for (const HyperParameters& values : options_.first) {
    if (const auto why = why_not_in(options_.space, values)) throw UsageError(*why);
  }
  if (options_.keep_last < 1)
    throw UsageError(fmt::format("keep_last: expected at least 1, found {}", options_.keep_last));
  if (!options_.folder.empty()) log_.emplace(options_.folder / "population.jsonl");
}

PopulationResult Population::run(MemberPool& pool) {
  if (log_) {
    std::error_code problem;
    std::filesystem::create_directories(options_.folder, problem);
    if (problem) throw Error(fmt::format("cannot make the folder {}: {}", options_.folder.string(), problem.message()));
    log_->write(history_);  // what is not gone on from is another population's
    if (std::filesystem::is_directory(members_folder())) AtomicFile::remove_temporaries(members_folder());
  }
  prune();
  pool.cancel();  // what another run has left there
  const bool is_finished =
      options_.strategy.pace == strategy::Pace::in_step ? run_in_step(pool) : run_asynchronously(pool);
  return {.is_finished = is_finished, .generations = finished_, .best = best()};
}

// --- generations ---

bool Population::run_in_step(MemberPool& pool) {
  while (finished_ < options_.strategy.generations) {
    const std::int64_t generation = finished_ + 1;
    const std::vector<MemberResult> before = results();
    std::vector<std::optional<std::int64_t>> parents(static_cast<std::size_t>(size()));
    if (generation > 1)
      parents = choose_parents(
          options_.strategy.exploit, before,
          {.higher_is_better = options_.higher_is_better, .seed = options_.seed, .generation = generation});
    std::vector<Plan> plans;
    for (std::int64_t member = 0; member < size(); ++member)
      plans.push_back(
          plan_for({.member = member, .generation = generation}, parents[static_cast<std::size_t>(member)]));
    std::map<std::int64_t, std::pair<MemberRecord, MemberScore>> through;
    std::int64_t begun = 0;
    while (std::ssize(through) < size()) {
      while (begun < size() && begun - std::ssize(through) < pool.places())
        begin(pool, plans[static_cast<std::size_t>(begun++)]);
      std::optional<MemberReply> reply = next_reply(pool, [&](MemberKey key) {
        return key.generation == generation && key.member >= 0 && key.member < begun && !through.contains(key.member);
      });
      if (!reply) return false;
      MemberRecord record = settle(*reply, plans[static_cast<std::size_t>(reply->member)]);
      through.emplace(reply->member, std::pair(std::move(record), std::move(reply->score)));
      tell_progress(generation, std::ssize(through));
    }
    std::vector<MemberRecord> records;
    for (auto& [member, its] : through) records.push_back(its.first);
    // It is in no log, so that another try begins with it.
    if (std::ranges::none_of(records, [](const MemberRecord& record) { return record.score.has_value(); }))
      refuse_all_failed(size(), records.back().failure);
    if (log_) log_->append(records);
    for (auto& [member, its] : through) add(std::move(its.first), its.second);
    ++finished_;
    prune();
    if (options_.on_generation) options_.on_generation(finished_);
  }
  return true;
}

bool Population::run_asynchronously(MemberPool& pool) {
  std::deque<std::int64_t> ready;
  for (std::int64_t member = 0; member < size(); ++member) {
    const MemberRecord* last = last_of(member);
    if (last == nullptr || last->generation < options_.strategy.generations) ready.push_back(member);
  }
  std::map<std::int64_t, Plan> under_way;
  while (!ready.empty() || !under_way.empty()) {
    // Who has failed waits until there is somebody to take over from.
    const std::size_t in_line = ready.size();
    for (std::size_t i = 0; i < in_line && std::ssize(under_way) < pool.places(); ++i) {
      const std::int64_t member = ready.front();
      ready.pop_front();
      const MemberRecord* last = last_of(member);
      std::optional<std::int64_t> parent;
      if (last != nullptr) {
        parent = choose_parent(
            options_.strategy.exploit, results(), member,
            {.higher_is_better = options_.higher_is_better, .seed = options_.seed, .generation = last->generation + 1});
        if (!last->score && !parent) {
          ready.push_back(member);
          continue;
        }
      }
      Plan plan = plan_for({.member = member, .generation = last == nullptr ? 1 : last->generation + 1}, parent);
      begin(pool, plan);
      under_way.emplace(member, std::move(plan));
    }
    if (under_way.empty()) refuse_where_all_failed();
    std::optional<MemberReply> reply = next_reply(pool, [&](MemberKey key) {
      const auto its = under_way.find(key.member);
      return its != under_way.end() && its->second.of == key;
    });
    if (!reply) return false;
    const auto plan = under_way.extract(reply->member);
    MemberRecord record = settle(*reply, plan.mapped());
    if (log_) log_->append({record});
    if (record.generation < options_.strategy.generations) ready.push_back(record.member);
    add(std::move(record), reply->score);
    prune();
    std::int64_t slowest = options_.strategy.generations;
    for (std::int64_t member = 0; member < size(); ++member)
      slowest = std::min(slowest, last_of(member) == nullptr ? 0 : last_of(member)->generation);
    for (; finished_ < slowest; ++finished_) {
      if (options_.on_generation) options_.on_generation(finished_ + 1);
    }
    tell_progress(finished_ + 1, std::ranges::count_if(last_, [&](const std::optional<std::size_t>& at) {
                    return at && history_[*at].generation > finished_;
                  }));
  }
  refuse_where_all_failed();
  return true;
}

// --- what a member does next ---

HyperParameters Population::first_values(std::int64_t member) const {
  if (!options_.first.empty()) return options_.first[static_cast<std::size_t>(member)];
  RandomStream draws({options_.seed, kFirstDraws, static_cast<std::uint64_t>(member)});
  return draw_values(options_.space, draws);
}

Population::Plan Population::plan_for(MemberKey key, const std::optional<std::int64_t>& parent) const {
  const auto member = static_cast<std::uint64_t>(key.member);
  const auto generation = static_cast<std::uint64_t>(key.generation);
  Plan plan{.of = key};
  const MemberRecord* own = last_of(key.member);
  if (own == nullptr) {
    plan.hyper_parameters = first_values(key.member);
    return plan;
  }
  plan.hyper_parameters = own->hyper_parameters;
  if (!parent) return plan;
  const MemberRecord& other = *last_of(*parent);
  plan.parent = other.key();
  // Of one that has failed nothing is left that others should go on with.
  plan.copied = own->score
                    ? options_.strategy.copy
                    : std::vector{MemberPart::weights, MemberPart::optimizer_state, MemberPart::hyper_parameters};
  if (contains(plan.copied, MemberPart::hyper_parameters)) plan.hyper_parameters = other.hyper_parameters;
  if (std::holds_alternative<strategy::None>(options_.strategy.exploit)) return plan;
  RandomStream draws({options_.seed, kExploreDraws, generation, member});
  plan.hyper_parameters = options_.explore
                              ? options_.explore(plan.hyper_parameters, draws)
                              : explore(options_.space, options_.strategy.explore, plan.hyper_parameters, draws);
  if (const auto why = why_not_in(options_.space, plan.hyper_parameters))
    throw Error(fmt::format("what explore made of hyper-parameters cannot be: {}", *why));
  return plan;
}

std::shared_ptr<const MemberState> Population::state_for(const Plan& plan) {
  const MemberRecord* own = last_of(plan.of.member);
  if (own == nullptr) return nullptr;
  if (!plan.parent || !contains(plan.copied, MemberPart::weights)) return store_.get(own->key());
  std::shared_ptr<const MemberState> all = store_.get(*plan.parent);
  if (contains(plan.copied, MemberPart::optimizer_state)) return all;
  return std::make_shared<const MemberState>(MemberState{.weights = all->weights, .optimizer = {}});
}

void Population::begin(MemberPool& pool, const Plan& plan) {
  pool.begin({.member = plan.of.member,
              .generation = plan.of.generation,
              .hyper_parameters = plan.hyper_parameters,
              .seed = member_seed(options_.seed, plan.of.member),
              .state = state_for(plan)});
}

// --- what has come of it ---

std::optional<MemberReply> Population::next_reply(MemberPool& pool, const std::function<bool(MemberKey)>& is_awaited) {
  while (true) {
    if (options_.is_interrupted && options_.is_interrupted()) {
      pool.cancel();
      return std::nullopt;
    }
    std::optional<MemberReply> reply = pool.next(kLook);
    if (reply && is_awaited({.member = reply->member, .generation = reply->generation})) return reply;
  }
}

MemberRecord Population::settle(MemberReply& reply, const Plan& plan) {
  MemberRecord record{.generation = reply.generation,
                      .of = options_.strategy.generations,
                      .member = reply.member,
                      .members = size(),
                      .parent = plan.parent,
                      .copied = plan.copied,
                      .hyper_parameters = plan.hyper_parameters};
  const bool compares_samples = std::holds_alternative<strategy::WelchTTest>(options_.strategy.exploit);
  if (const auto failure = failure_of(reply, compares_samples)) {
    record.failure = *failure;
    return record;
  }
  if (compares_samples && reply.score.samples.size() < 2)
    throw UsageError(fmt::format("WelchTTest compares at least two scores of a member, and member {} has {}",
                                 reply.member, reply.score.samples.size()));
  record.score = reply.score.value;
  if (compares_samples) record.samples = reply.score.samples;
  store_.put(plan.of, std::exchange(reply.state, {}));
  return record;
}

void Population::add(MemberRecord record, const MemberScore& score) {
  history_.push_back(std::move(record));
  count(history_.size() - 1);
  const MemberRecord& its = history_.back();
  if (options_.on_member) options_.on_member(its, score);
  if (its.score) return;
  tell_problem(fmt::format("generation {}: member {} has failed: {}{}", its.generation, its.member, its.failure,
                           its.generation < options_.strategy.generations ? "; it takes over from another" : ""));
}

void Population::count(std::size_t at) {
  const MemberRecord& record = history_[at];
  const auto generation = static_cast<std::size_t>(record.generation);
  last_[static_cast<std::size_t>(record.member)] = at;
  if (best_until_.size() < generation)
    best_until_.resize(generation, best_until_.empty() ? std::nullopt : best_until_.back());
  if (!record.score) return;
  last_scored_[static_cast<std::size_t>(record.member)] = at;
  if (damaged_.contains(record.key())) return;
  // Others may be further than this one.
  for (std::size_t until = generation - 1; until < best_until_.size(); ++until) {
    std::optional<std::size_t>& best = best_until_[until];
    if (!best || is_better(*record.score, *history_[*best].score, options_.higher_is_better)) best = at;
  }
}

void Population::count_all() {
  std::ranges::fill(last_, std::nullopt);
  std::ranges::fill(last_scored_, std::nullopt);
  best_until_.clear();
  for (std::size_t at = 0; at < history_.size(); ++at) count(at);
}

void Population::refuse_where_all_failed() const {
  std::string why;
  for (std::int64_t member = 0; member < size(); ++member) {
    const MemberRecord* last = last_of(member);
    if (last == nullptr || last->score) return;
    why = last->failure;
  }
  refuse_all_failed(size(), why);
}

const MemberRecord* Population::last_of(std::int64_t member) const {
  const std::optional<std::size_t>& at = last_[static_cast<std::size_t>(member)];
  return at ? &history_[*at] : nullptr;
}

std::vector<MemberResult> Population::results() const {
  std::vector<MemberResult> all;
  for (std::int64_t member = 0; member < size(); ++member) {
    const MemberRecord* last = last_of(member);
    if (last == nullptr)
      all.push_back({.is_there = false});
    else
      all.push_back({.score = last->score.value_or(std::nan("")), .samples = last->samples});
  }
  return all;
}

std::vector<MemberRecord> Population::of_generation(std::int64_t generation) const {
  std::vector<MemberRecord> found;
  for (auto its = history_.rbegin(); its != history_.rend() && std::ssize(found) < size(); ++its) {
    if (its->generation == generation) found.push_back(*its);
  }
  std::ranges::reverse(found);
  return found;
}

std::optional<MemberRecord> Population::best() const {
  const MemberRecord* best = best_until(std::ssize(best_until_));
  return best == nullptr ? std::nullopt : std::optional(*best);
}

const MemberRecord* Population::best_until(std::int64_t generation) const {
  const std::int64_t until = std::min(generation, std::ssize(best_until_));
  const std::optional<std::size_t> at = until < 1 ? std::nullopt : best_until_[static_cast<std::size_t>(until - 1)];
  return at ? &history_[*at] : nullptr;
}

std::shared_ptr<const MemberState> Population::state_of(const MemberRecord& record) { return store_.get(record.key()); }

std::vector<MemberRecord> Population::lineage_of(const MemberRecord& record) const {
  std::vector<MemberRecord> line{record};
  // Each stands after what it went on from.
  auto its = std::find(history_.rbegin(), history_.rend(), record);
  for (std::optional<MemberKey> origin = origin_of(record); origin; origin = origin_of(line.back())) {
    its = std::find_if(its, history_.rend(), [&](const MemberRecord& other) { return other.key() == *origin; });
    if (its == history_.rend()) break;
    line.push_back(*its);
  }
  std::ranges::reverse(line);
  return line;
}

// What the next generation goes on from stays, also where the newest of it turns out to be damaged; and the best. Who
// fails leaves nothing, so that what was there before stays as long.
void Population::prune() {
  const std::int64_t kept = std::max(options_.keep_last, kLeastKept);
  std::set<MemberKey> best;
  for (std::int64_t back = 0; back < std::min(kept, finished_); ++back) {
    if (const MemberRecord* its = best_until(finished_ - back)) best.insert(its->key());
  }
  if (const auto its = this->best()) best.insert(its->key());
  store_.keep([&](MemberKey key) {
    if (best.contains(key)) return true;
    if (key.member >= size()) return false;
    const std::optional<std::size_t>& last = last_scored_[static_cast<std::size_t>(key.member)];
    if (!last) return false;
    const std::int64_t newest = history_[*last].generation;
    return key.generation > newest - kept && key.generation <= newest;
  });
}

void Population::tell_progress(std::int64_t generation, std::int64_t through) const {
  if (options_.on_progress && through > 0 && through < size()) options_.on_progress(generation, through);
}

void Population::tell_problem(const std::string& sentence) const {
  if (options_.on_problem) options_.on_problem(sentence);
}

// --- going on ---

bool Population::is_whole(const MemberRecord& record) {
  if (!record.score) return true;
  try {
    (void)store_.get(record.key());
    return true;
  } catch (const Error& error) {
    tell_problem(error.what());
    return false;
  }
}

// As many as all members have finished, and what they go on from is there.
std::vector<MemberRecord> Population::whole_generations(const std::vector<MemberRecord>& records) {
  const std::optional<std::size_t> whole = records_in_step(records, size());
  if (!whole)
    throw UsageError(fmt::format(
        R"({} was not written in step by {} members, and nothing of it is dropped; where they were "asynchronous", )"
        R"(expected "pace": "asynchronous", or another folder)",
        log_->file().string(), size()));
  std::vector<MemberRecord> taken(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(*whole));
  const auto is_newest_whole = [&] {
    return std::all_of(taken.end() - size(), taken.end(), [&](const MemberRecord& record) { return is_whole(record); });
  };
  while (!taken.empty() && !is_newest_whole()) taken.resize(taken.size() - static_cast<std::size_t>(size()));
  return taken;
}

// Of each member up to the last generation that is there. What is not there is done again, and comes to something else:
// nobody has that from it any more. Where all have failed in the end, they try that once more.
std::vector<MemberRecord> Population::whole_members(std::vector<MemberRecord> records) {
  std::set<MemberKey> whole;  // they are not read again
  while (true) {
    drop_orphans(records);
    std::set<MemberKey> gone;
    const std::map<std::int64_t, MemberRecord> newest = newest_in(records);
    const auto has_failed = [](const auto& its) { return !its.second.score; };
    if (std::ssize(newest) == size() && std::ranges::all_of(newest, has_failed)) {
      for (const auto& [member, record] : newest) gone.insert(record.key());
    } else {
      for (const auto& [member, record] : newest) {
        const bool is_there = whole.contains(record.key()) || is_whole(record);
        (is_there ? whole : gone).insert(record.key());
      }
    }
    if (gone.empty()) return records;
    std::erase_if(records, [&](const MemberRecord& record) { return gone.contains(record.key()); });
  }
}

void Population::resume() {
  if (!log_) throw UsageError("there is no folder to resume a population from");
  std::vector<std::string> problems;
  const std::vector<MemberRecord> records = log_->read(&problems);
  for (const std::string& problem : problems) tell_problem(problem);
  for (const MemberRecord& record : records) {
    if (record.members > 0 && record.members != size())
      throw UsageError(
          fmt::format("{} was written by a population of {}, and population_size is {}; expected {}, or "
                      "another folder",
                      log_->file().string(), record.members, size(), record.members));
    if (record.member >= size())
      throw UsageError(
          fmt::format("{} has a member {}, and population_size is {}", log_->file().string(), record.member, size()));
    if (const auto why = why_not_in(options_.space, record.hyper_parameters))
      throw UsageError(fmt::format("{} is of another search space: {}", log_->file().string(), *why));
  }
  history_ = options_.strategy.pace == strategy::Pace::in_step ? whole_generations(records) : whole_members(records);
  count_all();
  // There may be more than are asked for now.
  finished_ = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t member = 0; member < size(); ++member)
    finished_ = std::min(finished_, last_of(member) == nullptr ? 0 : last_of(member)->generation);
  // Where the best, which is kept, cannot be read any more, that is told, and the best of those that are there counts.
  for (auto its = best(); its; its = best()) {
    const bool is_told = damaged_.empty();
    if ((is_told || store_.has(its->key())) && is_whole(*its)) break;
    damaged_.insert(its->key());
    count_all();
  }
}

}  // namespace tutti
