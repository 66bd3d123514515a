#include "span_gathering.hpp"

#include <cstddef>

#include <tutti/collective/parameter_sets.hpp>

#include "replica_mixer.hpp"

namespace tutti::detail {
namespace {

// To send them takes time that the trace would show: seldom, and many at once.
constexpr int kStepsAtOnce = 64;
constexpr std::size_t kNumbers = 5;  // of a span: rank, kind, begin, end, length of its name

ParameterSet packed(const std::vector<event::SpanEnded>& spans) {
  std::vector<double> numbers;
  std::vector<std::int32_t> letters;
  for (const event::SpanEnded& span : spans) {
    for (const double number : {static_cast<double>(span.rank), static_cast<double>(span.kind), span.begin, span.end,
                                static_cast<double>(span.name.size())})
      numbers.push_back(number);
    letters.insert(letters.end(), span.name.begin(), span.name.end());
  }
  ParameterSet set;
  set.add("numbers", {static_cast<std::int64_t>(numbers.size())}, numbers);
  set.add("letters", {static_cast<std::int64_t>(letters.size())}, letters);
  return set;
}

std::vector<event::SpanEnded> unpacked(const ParameterSet& set) {
  const std::span<const double> numbers = set.at("numbers").values<double>();
  const std::span<const std::int32_t> letters = set.at("letters").values<std::int32_t>();
  std::vector<event::SpanEnded> spans;
  std::size_t letter = 0;
  for (std::size_t i = 0; i < numbers.size(); i += kNumbers) {
    const auto length = static_cast<std::size_t>(numbers[i + 4]);
    const std::span<const std::int32_t> name = letters.subspan(letter, length);
    letter += length;
    spans.push_back({.rank = static_cast<int>(numbers[i]),
                     .kind = static_cast<event::SpanEnded::Kind>(static_cast<int>(numbers[i + 1])),
                     .name = std::string(name.begin(), name.end()),
                     .begin = numbers[i + 2],
                     .end = numbers[i + 3]});
  }
  return spans;
}

}  // namespace

void SpanGathering::add(const std::vector<StepSpan>& spans) {
  const auto since_begin = [&](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration<double>(time - training_.began).count();
  };
  for (const StepSpan& span : spans) {
    waiting_.push_back({.rank = span.replica,
                        .kind = span.kind,
                        .name = span.name,
                        .begin = since_begin(span.begin),
                        .end = since_begin(span.end)});
  }
  if (training_.is_alone() || ++steps_ == kStepsAtOnce) flush();
}

void SpanGathering::flush() {
  steps_ = 0;
  std::vector<event::SpanEnded> mine = std::move(waiting_);
  waiting_.clear();
  if (training_.is_alone()) {
    for (const event::SpanEnded& span : mine) training_.events.tell(span);
    return;
  }
  for (const ParameterSet& set :
       gather(*training_.options.world, packed(mine), {.deadline = deadline_for_others(*training_.run)})) {
    for (const event::SpanEnded& span : unpacked(set)) training_.events.tell(span);
  }
}

}  // namespace tutti::detail
