#include <tutti/coordinate/member_pool.hpp>

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "member_places.hpp"

namespace tutti {
namespace {

std::string first_line(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.empty() ? "it failed, and did not say why" : std::string(line);
}

detail::MemberPlacesOptions own_places(const MemberThreadsOptions& options) {
  validate(options);
  return {.places = std::vector(static_cast<std::size_t>(options.threads), detail::own_place(options)),
          .deadline = options.deadline};
}

}  // namespace

MemberReply carry_out(const MakeMember& make, const MemberTask& task) {
  MemberReply reply{.member = task.member, .generation = task.generation};
  try {
    const std::unique_ptr<PopulationMember> member = make(task);
    if (!member) throw UsageError("no member was made");
    if (task.state) member->load(*task.state);
    member->train(task);
    task.go_on();
    reply.score = member->evaluate();
    task.go_on();
    reply.state = member->save();
  } catch (const std::exception& error) {
    reply.failure = first_line(error.what());
  } catch (...) {
    reply.failure = first_line("");
  }
  return reply;
}

void validate(const MemberThreadsOptions& options) {
  if (!options.make) throw UsageError("members: expected a function that makes one");
  if (options.threads < 1) throw UsageError(fmt::format("expected at least one thread, found {}", options.threads));
}

MemberThreads::MemberThreads(const MemberThreadsOptions& options)
    : places_(std::make_unique<detail::MemberPlaces>(own_places(options))) {}

MemberThreads::~MemberThreads() = default;

std::int64_t MemberThreads::places() const { return places_->places(); }

void MemberThreads::begin(MemberTask task) { places_->begin(std::move(task)); }

std::optional<MemberReply> MemberThreads::next(Duration wait) { return places_->next(wait); }

void MemberThreads::cancel() { places_->cancel(); }

}  // namespace tutti
