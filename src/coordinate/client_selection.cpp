#include <tutti/coordinate/client_selection.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

constexpr std::uint64_t kSelectionDraws = 0x5e1ec7;

std::int64_t share_of_clients(double share, std::int64_t clients) {
  return std::clamp<std::int64_t>(std::llround(share * static_cast<double>(clients)), 1, clients);
}

// Without replacement, likelier the more rows they have: those whose keys log(u) / rows are largest (Efraimidis and
// Spirakis, 2006).
void draw_by_rows(std::vector<std::int64_t>& from, std::int64_t count, std::span<const ClientInfo> clients,
                  RandomStream& draws) {
  std::vector<std::pair<double, std::int64_t>> keys;
  keys.reserve(from.size());
  for (const std::int64_t client : from) {
    const auto rows = static_cast<double>(std::max<std::int64_t>(clients[static_cast<std::size_t>(client)].rows, 1));
    keys.emplace_back(-std::log(1 - draws.uniform()) / rows, client);
  }
  std::ranges::sort(keys);
  from.clear();
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) from.push_back(keys[i].second);
}

void draw_evenly(std::vector<std::int64_t>& from, std::int64_t count, RandomStream& draws) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    std::swap(from[i], from[i + static_cast<std::size_t>(draws.below(from.size() - i))]);
  from.resize(static_cast<std::size_t>(count));
}

}  // namespace

bool has_tags(const strategy::ClientSelection& selection, std::span<const std::string> tags) {
  const auto* wanted = std::get_if<strategy::ByCapability>(&selection);
  return wanted == nullptr || std::ranges::all_of(wanted->required_tags, [&](const std::string& tag) {
           return std::ranges::find(tags, tag) != tags.end();
         });
}

ClientCounts count_clients(const strategy::ClientSelection& selection, std::span<const ClientInfo> clients) {
  return {.all = std::ssize(clients), .with_tags = std::ranges::count_if(clients, [&](const ClientInfo& client) {
                                        return has_tags(selection, client.tags);
                                      })};
}

std::int64_t chosen_count(const strategy::ClientSelection& selection, const ClientCounts& clients) {
  const auto [all, with_tags] = clients;
  if (all == 0) throw UsageError("there are no clients to choose from");
  if (const auto* random = std::get_if<strategy::Random>(&selection)) return share_of_clients(random->fraction, all);
  if (const auto* choice = std::get_if<strategy::PowerOfChoice>(&selection))
    return share_of_clients(choice->fraction, all);
  if (with_tags == 0)
    throw UsageError(fmt::format("none of {} clients has all of the required tags: {}", all,
                                 fmt::join(std::get<strategy::ByCapability>(selection).required_tags, ", ")));
  return with_tags;
}

std::vector<std::int64_t> draw_clients(const strategy::ClientSelection& selection, std::int64_t count,
                                       const SelectionInputs& inputs) {
  std::vector<std::int64_t> drawn;
  for (std::size_t client = 0; client < inputs.clients.size(); ++client) {
    const auto number = static_cast<std::int64_t>(client);
    if ((!inputs.is_free || inputs.is_free(number)) && has_tags(selection, inputs.clients[client].tags))
      drawn.push_back(number);
  }
  if (std::ssize(drawn) <= count) return drawn;
  RandomStream draws({inputs.seed, kSelectionDraws, inputs.call});
  if (std::holds_alternative<strategy::PowerOfChoice>(selection))
    draw_by_rows(drawn, count, inputs.clients, draws);
  else
    draw_evenly(drawn, count, draws);
  std::ranges::sort(drawn);
  return drawn;
}

std::int64_t candidate_count(const strategy::PowerOfChoice& selection, std::int64_t clients, std::int64_t chosen) {
  return std::max(share_of_clients(selection.candidates, clients), chosen);
}

std::vector<std::int64_t> choose_by_loss(std::span<const std::int64_t> candidates, std::span<const double> losses,
                                         std::int64_t count) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto loss = [&](std::size_t i) {
    return std::isnan(losses[i]) ? std::numeric_limits<double>::infinity() : losses[i];
  };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return loss(a) > loss(b); });
  order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
  std::vector<std::int64_t> chosen;
  for (const std::size_t index : order) chosen.push_back(candidates[index]);
  std::ranges::sort(chosen);
  return chosen;
}

}  // namespace tutti
