#include <tutti/collective/communicator.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/collective/collectives.hpp>

#include "engine.hpp"

namespace tutti {

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : engine_(std::make_unique<detail::CallEngine>(std::move(transport), std::move(options))) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

detail::CallEngine& Communicator::checked() const {
  if (!engine_) throw UsageError("the communicator was moved away");
  return *engine_;
}

Rank Communicator::rank() const { return checked().transport().rank(); }
int Communicator::size() const { return checked().transport().size(); }
WorldShape Communicator::shape() const { return checked().shape(); }
bool Communicator::broken() const { return checked().transport().failure().has_value(); }
std::optional<Failure> Communicator::failure() const { return checked().transport().failure(); }
Transport& Communicator::transport() { return checked().transport(); }
detail::CallEngine& Communicator::engine() { return checked(); }

void Communicator::cancel(std::string_view why) {
  checked().abort({FailureKind::cancelled,
                   {rank()},
                   fmt::format("{} cancelled: {}; the communicator is broken", to_string(rank()), why)});
}

Communicator Communicator::split(const SplitOptions& options) {
  const std::array<std::int32_t, 2> mine{options.color, options.key};
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(size()));
  all_gather(*this, mine, all);

  const auto color_of = [&](Rank r) { return all[2 * static_cast<std::size_t>(r.value)]; };
  const auto key_of = [&](Rank r) { return all[2 * static_cast<std::size_t>(r.value) + 1]; };
  std::vector<Rank> members;
  for (Rank candidate : all_ranks(size())) {
    if (color_of(candidate) == options.color) members.push_back(candidate);
  }
  std::ranges::stable_sort(members, {}, key_of);
  return rebuild(members);
}

Communicator Communicator::rebuild(std::span<const Rank> survivors) {
  return Communicator(transport().regroup(survivors, Deadline::after(checked().options().deadline)),
                      checked().options());
}

}  // namespace tutti
