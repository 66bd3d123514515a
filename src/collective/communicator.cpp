#include <tutti/collective/communicator.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>

#include "engine.hpp"

namespace tutti {

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : engine_(std::make_unique<detail::CallEngine>(std::move(transport), std::move(options))) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Rank Communicator::rank() const { return engine_->transport().rank(); }
int Communicator::size() const { return engine_->transport().size(); }
WorldShape Communicator::shape() const { return engine_->shape(); }
bool Communicator::broken() const { return engine_->transport().failure().has_value(); }
std::optional<Failure> Communicator::failure() const { return engine_->transport().failure(); }
Transport& Communicator::transport() { return engine_->transport(); }
detail::CallEngine& Communicator::engine() { return *engine_; }

void Communicator::cancel(std::string_view why) {
  engine_->abort({FailureKind::cancelled,
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
  return Communicator(transport().regroup(survivors, Deadline::after(engine_->options().deadline)), engine_->options());
}

}  // namespace tutti
