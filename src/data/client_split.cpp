#include <tutti/data/client_split.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <queue>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/options.hpp>
#include <tutti/base/random.hpp>

#include "draws.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<std::int64_t>;

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<ClientSplit>> kMethods = {"Iid", "Shards", "Dirichlet",
                                                                                     "QuantitySkew", "Files"};

std::string_view method_of(const ClientSplit& split) { return kMethods[split.index()]; }

// "1 row", "2 rows".
std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// The alpha of those that have one.
const double* alpha_of(const ClientSplit& split) {
  if (const Dirichlet* dirichlet = std::get_if<Dirichlet>(&split)) return &dirichlet->alpha;
  if (const QuantitySkew* skew = std::get_if<QuantitySkew>(&split)) return &skew->alpha;
  return nullptr;
}

void validate(const ClientSplit& split, const ClientSplitInputs& inputs) {
  const std::string_view method = method_of(split);
  if (const double* alpha = alpha_of(split); alpha != nullptr && !(*alpha > 0 && std::isfinite(*alpha)))
    throw UsageError(fmt::format("the alpha of a {} must be a finite number above 0, found {}", method, *alpha));
  const Shards* shards = std::get_if<Shards>(&split);
  if (shards != nullptr && shards->per_client < 1)
    throw UsageError(fmt::format("the per_client of a Shards must be at least 1, found {}", shards->per_client));
  const auto& [clients, rows, labels, file_of_row] = inputs;
  if (clients < 1) throw UsageError(fmt::format("rows are dealt out to at least 1 client, found {}", clients));
  if (rows < clients) {
    throw UsageError(fmt::format("{} cannot be dealt out to {}: each has at least one", counted(rows, "row"),
                                 counted(clients, "client")));
  }
  // By division, for the number of pieces may be beyond any integer.
  if (shards != nullptr && shards->per_client > rows / clients) {
    throw UsageError(fmt::format("{} cannot be cut into {} for each of {}: each piece has at least one",
                                 counted(rows, "row"), counted(shards->per_client, "piece"),
                                 counted(clients, "client")));
  }
  const auto expect_one_per_row = [&](std::span<const std::int64_t> values, std::string_view what) {
    const auto found = static_cast<std::int64_t>(values.size());
    if (found != rows)
      throw UsageError(
          fmt::format("{} needs a {} for each of {}, found {}", method, what, counted(rows, "row"), found));
  };
  if (needs_labels(split)) expect_one_per_row(labels, "label");
  if (!std::holds_alternative<Files>(split)) return;
  expect_one_per_row(file_of_row, "file");
  const auto [lowest, highest] = std::ranges::minmax(file_of_row);
  if (lowest < 0) throw UsageError(fmt::format("files count from 0, found the number {}", lowest));
  if (highest != clients - 1) {
    const std::uint64_t files = static_cast<std::uint64_t>(highest) + 1;
    throw UsageError(fmt::format("each file is a client's, found {} file{} and {}", files, files == 1 ? "" : "s",
                                 counted(clients, "client")));
  }
}

ClientRows no_rows(const ClientSplitInputs& inputs) { return ClientRows(static_cast<std::size_t>(inputs.clients)); }

Numbers rows_in_order(std::int64_t rows) {
  Numbers order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Numbers rows_by_label(const ClientSplitInputs& inputs) {
  Numbers order = rows_in_order(inputs.rows);
  std::ranges::stable_sort(order, {}, [&](std::int64_t row) { return inputs.labels[static_cast<std::size_t>(row)]; });
  return order;
}

// One of `pieces` contiguous pieces, whose sizes differ by at most one.
std::span<const std::int64_t> piece_of(const Numbers& rows, std::size_t piece, std::size_t pieces) {
  const std::size_t size = rows.size() / pieces;
  const std::size_t larger = rows.size() % pieces;  // so many of the first have one more
  return std::span(rows).subspan(piece * size + std::min(piece, larger), size + (piece < larger ? 1 : 0));
}

// The logarithm of a draw from the gamma distribution (Marsaglia, Tsang: "A simple method for generating gamma
// variables", 2000). For a shape below 1 it is a draw for shape + 1 times u^(1/shape), u uniform: of a small shape a
// number so small that only its logarithm can be held.
double log_of_gamma_draw(double shape, RandomStream& draws) {
  const auto log_of_uniform = [&] { return std::log(1 - draws.uniform()); };
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
  while (true) {
    const double x = draws.normal();
    const double root = 1 + x / std::sqrt(9 * d);
    if (root <= 0) continue;
    const double v = root * root * root;
    if (log_of_uniform() >= x * x / 2 + d * (1 - v + std::log(v))) continue;
    return std::log(d) + std::log(v) + (shape < 1 ? log_of_uniform() / shape : 0);
  }
}

// Deals rows out in shares that are drawn from a Dirichlet distribution, in which every client has the same alpha.
//
// Clients are halved until one is left. What the halves get of what both have is then a draw from a beta distribution,
// with alphas as many times as each has clients; of two gamma draws it is the first's part of their sum. A half without
// rows is looked at no further: the work grows with the rows, not with labels times clients.
//
// Client i has the rows from n*s_i + u to n*s_(i+1) + u, rounded down, where s are the sums of shares and u is uniform.
// Without u, of few rows the same clients would get one of every label.
class DirichletDeal {
 public:
  DirichletDeal(std::span<const std::int64_t> rows, double alpha, RandomStream& draws)
      : rows_(rows), alpha_(std::clamp(alpha, kLeastAlpha, kMostAlpha)), draws_(draws), offset_(draws.uniform()) {}

  void to(std::span<Numbers> clients) { deal(clients, 0, static_cast<double>(rows_.size())); }

 private:
  // Beyond these nothing changes, but that numbers overflow: one client has all, and all have the same.
  static constexpr double kLeastAlpha = 1e-250;
  static constexpr double kMostAlpha = 1e250;

  void deal(std::span<Numbers> clients, double from, double to) {
    const std::size_t first = cut_at(from);
    const std::size_t last = cut_at(to);
    if (first == last) return;
    if (clients.size() == 1) {
      const auto rows = rows_.subspan(first, last - first);
      clients[0].insert(clients[0].end(), rows.begin(), rows.end());
      return;
    }
    const std::span<Numbers> left = clients.first(clients.size() / 2);
    const std::span<Numbers> right = clients.subspan(left.size());
    const double log_left = log_of_gamma_draw(alpha_ * static_cast<double>(left.size()), draws_);
    const double log_right = log_of_gamma_draw(alpha_ * static_cast<double>(right.size()), draws_);
    const double share = 1 / (1 + std::exp(log_right - log_left));
    const double between = std::min(from + share * (to - from), to);
    deal(left, from, between);
    deal(right, between, to);
  }

  std::size_t cut_at(double place) const { return std::min(static_cast<std::size_t>(place + offset_), rows_.size()); }

  std::span<const std::int64_t> rows_;
  double alpha_;
  RandomStream& draws_;
  double offset_;
};

// Each client without rows takes one, any, from the client that has the most; of several, from the last.
void fill_empty(ClientRows& clients, RandomStream& draws) {
  std::priority_queue<std::pair<std::size_t, std::size_t>> givers;  // rows, client
  for (std::size_t client = 0; client < clients.size(); ++client) {
    if (clients[client].size() > 1) givers.emplace(clients[client].size(), client);
  }
  for (Numbers& taker : clients) {
    if (!taker.empty()) continue;
    const std::size_t giver = givers.top().second;
    givers.pop();
    Numbers& rows = clients[giver];
    std::swap(rows[static_cast<std::size_t>(draws.below(rows.size()))], rows.back());
    taker.push_back(rows.back());
    rows.pop_back();
    if (rows.size() > 1) givers.emplace(rows.size(), giver);
  }
}

ClientRows deal_rows(const Iid&, const ClientSplitInputs& inputs, RandomStream& draws) {
  Numbers order = rows_in_order(inputs.rows);
  draws.shuffle(std::span(order));
  ClientRows clients = no_rows(inputs);
  for (std::size_t client = 0; client < clients.size(); ++client) {
    const auto piece = piece_of(order, client, clients.size());
    clients[client].assign(piece.begin(), piece.end());
  }
  return clients;
}

ClientRows deal_rows(const Shards& shards, const ClientSplitInputs& inputs, RandomStream& draws) {
  const Numbers by_label = rows_by_label(inputs);
  ClientRows clients = no_rows(inputs);
  const auto per_client = static_cast<std::size_t>(shards.per_client);
  std::vector<std::size_t> pieces(clients.size() * per_client);
  std::iota(pieces.begin(), pieces.end(), 0);
  draws.shuffle(std::span(pieces));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto piece = piece_of(by_label, pieces[i], pieces.size());
    Numbers& rows = clients[i / per_client];
    rows.insert(rows.end(), piece.begin(), piece.end());
  }
  return clients;
}

ClientRows deal_rows(const Dirichlet& dirichlet, const ClientSplitInputs& inputs, RandomStream& draws) {
  Numbers by_label = rows_by_label(inputs);
  const auto label_of = [&](std::int64_t row) { return inputs.labels[static_cast<std::size_t>(row)]; };
  ClientRows clients = no_rows(inputs);
  for (auto first = by_label.begin(); first != by_label.end();) {
    const auto last = std::find_if(first, by_label.end(), [&](auto row) { return label_of(row) != label_of(*first); });
    const std::span<std::int64_t> rows(first, last);
    draws.shuffle(rows);
    DirichletDeal(rows, dirichlet.alpha, draws).to(clients);
    first = last;
  }
  fill_empty(clients, draws);
  return clients;
}

ClientRows deal_rows(const QuantitySkew& skew, const ClientSplitInputs& inputs, RandomStream& draws) {
  Numbers order = rows_in_order(inputs.rows);
  draws.shuffle(std::span(order));
  ClientRows clients = no_rows(inputs);
  DirichletDeal(order, skew.alpha, draws).to(clients);
  fill_empty(clients, draws);
  return clients;
}

ClientRows deal_rows(const Files&, const ClientSplitInputs& inputs, RandomStream&) {
  ClientRows clients = no_rows(inputs);
  for (std::size_t row = 0; row < inputs.file_of_row.size(); ++row)
    clients[static_cast<std::size_t>(inputs.file_of_row[row])].push_back(static_cast<std::int64_t>(row));
  const auto empty = std::ranges::find_if(clients, &Numbers::empty);
  if (empty != clients.end()) {
    throw UsageError(
        fmt::format("each file is a client's, and file {} of {} has no rows", empty - clients.begin(), clients.size()));
  }
  return clients;
}

// --- the summary ---

constexpr std::size_t kMostClientsByName = 20;
constexpr std::size_t kMostLabelsByName = 10;

// Label and rows, in the order of labels.
using LabelCounts = std::vector<std::pair<std::int64_t, std::size_t>>;

LabelCounts count_labels(const Numbers& rows, std::span<const std::int64_t> labels) {
  Numbers own;
  own.reserve(rows.size());
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= static_cast<std::int64_t>(labels.size()))
      throw UsageError(fmt::format("row {} has no label: found {}", row, counted(std::ssize(labels), "label")));
    own.push_back(labels[static_cast<std::size_t>(row)]);
  }
  std::ranges::sort(own);
  LabelCounts counts;
  for (const std::int64_t label : own) {
    if (counts.empty() || counts.back().first != label) counts.emplace_back(label, 0);
    ++counts.back().second;
  }
  return counts;
}

std::size_t most_of_one_label(const LabelCounts& counts) {
  return counts.empty() ? 0 : std::ranges::max(counts, {}, &LabelCounts::value_type::second).second;
}

// "0 x 12, 1 x 500"; of many labels the most frequent, and what the others have together: ", 16 others x 93".
std::string list_labels(LabelCounts counts, const std::vector<std::string>& names) {
  std::string others;
  if (counts.size() > kMostLabelsByName) {
    std::ranges::stable_sort(counts, std::ranges::greater(), &LabelCounts::value_type::second);
    std::size_t rows = 0;
    for (std::size_t i = kMostLabelsByName; i < counts.size(); ++i) rows += counts[i].second;
    const std::size_t left_out = counts.size() - kMostLabelsByName;
    others = fmt::format(", {} other{} x {}", left_out, left_out == 1 ? "" : "s", rows);
    counts.resize(kMostLabelsByName);
    std::ranges::sort(counts);
  }
  std::string list;
  for (const auto& [label, rows] : counts) {
    const bool named = label >= 0 && label < std::ssize(names);
    list += fmt::format("{}{} x {}", list.empty() ? "" : ", ",
                        named ? names[static_cast<std::size_t>(label)] : fmt::format("{}", label), rows);
  }
  return list + others;
}

std::string summarise_each(const ClientRows& clients, std::span<const std::int64_t> labels,
                           const std::vector<std::string>& label_names, const std::vector<std::string>& client_names) {
  std::size_t most = 0;
  for (const Numbers& rows : clients) most = std::max(most, rows.size());
  const std::size_t client_width = fmt::formatted_size("{}", clients.empty() ? 0 : clients.size() - 1);
  const std::size_t rows_width = fmt::formatted_size("{}", most);
  std::vector<std::string> heads;
  std::size_t head_width = 0;
  for (std::size_t client = 0; client < clients.size(); ++client) {
    heads.push_back(fmt::format("client {:>{}}{}:", client, client_width,
                                client < client_names.size() ? fmt::format(" ({})", client_names[client]) : ""));
    head_width = std::max(head_width, heads.back().size());
  }
  std::string text;
  for (std::size_t client = 0; client < clients.size(); ++client) {
    const Numbers& rows = clients[client];
    text += fmt::format("{:<{}} {:>{}} row{}", heads[client], head_width, rows.size(), rows_width,
                        rows.size() == 1 ? "" : "s");
    if (!labels.empty() && !rows.empty()) {
      text += rows.size() == 1 ? ":  " : ": ";
      text += list_labels(count_labels(rows, labels), label_names);
    }
    text += '\n';
  }
  return text;
}

template <typename Number>
struct Spread {
  Number least;
  Number median;  // of an even number, the lower of the two
  Number most;
};

template <typename Number>
Spread<Number> spread_of(std::vector<Number> values) {
  std::ranges::sort(values);
  return {.least = values.front(), .median = values[(values.size() - 1) / 2], .most = values.back()};
}

std::string summarise_all(const ClientRows& clients, std::span<const std::int64_t> labels) {
  std::vector<std::size_t> sizes;
  for (const Numbers& rows : clients) sizes.push_back(rows.size());
  const auto size = spread_of(sizes);
  std::string text = fmt::format("{:<12} {}\n", "clients", clients.size());
  text += fmt::format("{:<12} {} to {}, median {}\n", "rows", size.least, size.most, size.median);
  if (labels.empty()) return text;
  Numbers all;
  std::vector<std::size_t> kinds;
  std::vector<double> largest;  // percent
  for (const Numbers& rows : clients) {
    const LabelCounts counts = count_labels(rows, labels);
    kinds.push_back(counts.size());
    if (!rows.empty())
      largest.push_back(100 * static_cast<double>(most_of_one_label(counts)) / static_cast<double>(rows.size()));
    for (const auto& [label, count] : counts) all.push_back(label);
  }
  if (all.empty()) return text;
  std::ranges::sort(all);
  const auto number_of_all = std::unique(all.begin(), all.end()) - all.begin();
  const auto kind = spread_of(kinds);
  const auto share = spread_of(largest);
  text += fmt::format("{:<12} {} to {} of {} per client, median {}\n", "labels", kind.least, kind.most, number_of_all,
                      kind.median);
  text += fmt::format("{:<12} {:.0f}% to {:.0f}% of a client's rows, median {:.0f}%\n", "main label", share.least,
                      share.most, share.median);
  return text;
}

}  // namespace

ClientSplit client_split_from_json(const JsonValue& value) {
  const std::string& method = value.at("method").one_of({kMethods.begin(), kMethods.end()});
  const Options options(value);
  const auto alpha = [&](double otherwise) {
    return options.number("alpha", {.min = 0, .min_excluded = true}, otherwise);
  };
  ClientSplit split;
  if (method == "Shards") split = Shards{.per_client = options.integer("per_client", {.min = 1}, Shards{}.per_client)};
  if (method == "Dirichlet") split = Dirichlet{.alpha = alpha(Dirichlet{}.alpha)};
  if (method == "QuantitySkew") split = QuantitySkew{.alpha = alpha(QuantitySkew{}.alpha)};
  if (method == "Files") split = Files{};
  options.refuse_other_keys({"method"});
  return split;
}

nlohmann::ordered_json to_json(const ClientSplit& split) {
  nlohmann::ordered_json json = {{"method", method_of(split)}};
  if (const double* alpha = alpha_of(split)) json["alpha"] = *alpha;
  if (const Shards* shards = std::get_if<Shards>(&split)) json["per_client"] = shards->per_client;
  return json;
}

std::string to_string(const ClientSplit& split) {
  if (const double* alpha = alpha_of(split)) return fmt::format("{} (alpha {})", method_of(split), *alpha);
  if (const Shards* shards = std::get_if<Shards>(&split))
    return fmt::format("Shards ({} per client)", shards->per_client);
  return std::string(method_of(split));
}

bool needs_labels(const ClientSplit& split) {
  return std::holds_alternative<Shards>(split) || std::holds_alternative<Dirichlet>(split);
}

ClientRows split_clients(const ClientSplit& split, const ClientSplitInputs& inputs, std::uint64_t seed) {
  validate(split, inputs);
  RandomStream draws({seed, detail::number_of(detail::Draws::clients)});
  ClientRows clients = std::visit([&](const auto& method) { return deal_rows(method, inputs, draws); }, split);
  for (Numbers& rows : clients) std::ranges::sort(rows);
  return clients;
}

std::string summarise_clients(const ClientRows& rows, std::span<const std::int64_t> labels,
                              const std::vector<std::string>& label_names,
                              const std::vector<std::string>& client_names) {
  return rows.size() > kMostClientsByName ? summarise_all(rows, labels)
                                          : summarise_each(rows, labels, label_names, client_names);
}

}  // namespace tutti
