#include <tutti/sync/gradient_compressor.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/kernels/compression.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti {
namespace {

using Piece = GradientBuffers::Piece;

template <typename T>
std::span<T> elements(Array array) {
  return {reinterpret_cast<T*>(array.data()), array.length()};
}

template <typename T>
std::span<T> part(std::span<T> array, Slice slice) {
  return array.subspan(slice.first, slice.count);
}

template <typename T>
bool is_finite(T value) {
  return value - value == T{0};
}

// What is left of a step becomes what remains. Where that is no finite number the gradient was none, and what remained
// from before still does.
template <typename T>
void keep(std::span<const T> left, std::vector<T>& remains) {
  for (std::size_t i = 0; i < left.size(); ++i) remains[i] = is_finite(left[i]) ? left[i] : remains[i];
}

// All of it was sent.
template <typename T>
void clear_finite(T& left) {
  if (is_finite(left)) left = T{0};
}

// "3.9 MiB", "60 MiB".
std::string rounded(Bytes bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  std::string text = fmt::format("{:.{}f}", value, value < 100 ? 1 : 0);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return fmt::format("{} {}", text, kUnits[unit]);
}

// --- 16 bits ---

// The largest value of which as many as there are workers can be added up in the 16-bit type, in any order, without
// reaching infinity on the way. It has so few bits that all these sums are exact.
double largest_summand(DataType half, int workers) {
  const int digits = half == DataType::float16 ? 11 : 8;
  const double largest = half == DataType::float16 ? 65504 : static_cast<double>(bfloat16{0x7f7f}.to_float());
  const auto count = static_cast<unsigned>(workers);
  int bits = digits - static_cast<int>(std::bit_width(count - 1));
  double share = largest / workers;
  if (bits < 1) {  // sums are rounded then: a little each, and half is enough room for it
    bits = 1;
    share /= 2;
  }
  int exponent = 0;
  std::frexp(share, &exponent);
  const double unit = std::ldexp(1.0, exponent - bits);
  return std::floor(share / unit) * unit;
}

// --- TopK: a message is indices and values of one piece after the other, in words of four bytes ---

using Word = std::int32_t;

template <typename T>
constexpr std::size_t kWordsEach = 1 + sizeof(T) / sizeof(Word);

std::size_t count_of(const TopK& top_k, std::size_t length) {
  const double share = std::round(top_k.fraction * static_cast<double>(length));
  return std::min(length, std::max(std::size_t{1}, static_cast<std::size_t>(share)));
}

template <typename T>
Word* write(const BasicSparseGradient<T>& sparse, Word* to) {
  const std::size_t count = sparse.indices.size();
  if (count == 0) return to;
  std::memcpy(to, sparse.indices.data(), count * sizeof(Word));
  std::memcpy(to + count, sparse.values.data(), count * sizeof(T));
  return to + count * kWordsEach<T>;
}

template <typename T>
const Word* read(const Word* from, std::size_t count, BasicSparseGradient<T>& sparse) {
  sparse.indices.resize(count);
  sparse.values.resize(count);
  if (count == 0) return from;
  std::memcpy(sparse.indices.data(), from, count * sizeof(Word));
  std::memcpy(sparse.values.data(), from + count, count * sizeof(T));
  return from + count * kWordsEach<T>;
}

// --- PowerSgd ---

// Where a piece's factors stand in the two messages: P, or the piece itself where it is sent whole, in the first, and Q
// in the second.
struct LowRankPiece {
  bool is_matrix = false;
  LowRankShape shape;
  Slice first;
  Slice second;
};

struct LowRankPlan {
  std::vector<LowRankPiece> pieces;
  std::size_t first_length = 0;
  std::size_t second_length = 0;
};

LowRankPlan plan_of(const GradientBuffers& gradients, const PowerSgd& power_sgd) {
  LowRankPlan plan;
  for (const Piece& piece : gradients.pieces()) {
    LowRankPiece& planned = plan.pieces.emplace_back();
    const std::size_t length = piece.slice.count;
    if (piece.shape.size() >= 2 && length > 0) {
      const auto rows = static_cast<std::size_t>(piece.shape[0]);
      planned.shape = {rows, length / rows, static_cast<std::size_t>(power_sgd.rank)};
      const auto& [_, columns, rank] = planned.shape;
      planned.is_matrix = rank < std::min(rows, columns) && rank * (rows + columns) < length;
    }
    planned.first = {plan.first_length, planned.is_matrix ? planned.shape.rows * planned.shape.rank : length};
    planned.second = {plan.second_length, planned.is_matrix ? planned.shape.columns * planned.shape.rank : 0};
    plan.first_length = planned.first.end();
    plan.second_length = planned.second.end();
  }
  return plan;
}

// FNV-1a: the same on every platform.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string CompressionTally::line() const {
  std::string text = fmt::format("{} sent {} instead of {}", to_string(compression), rounded(sent), rounded(gradients));
  if (gradients.value > 0) {
    text += fmt::format(" ({:.1f} %)", 100 * static_cast<double>(sent.value) / static_cast<double>(gradients.value));
  }
  return text;
}

GradientCompressor::GradientCompressor(const Compression& compression, const GradientCompressorOptions& options)
    : compression_(compression), options_(options) {
  validate(compression_);
  validate(options_.algorithm);
}

void GradientCompressor::mean(Communicator& world, GradientBuffers& gradients) {
  const std::size_t sent = std::visit(
      [&](const auto& compression) {
        return gradients.type() == DataType::float32 ? exchange<float>(world, gradients, compression)
                                                     : exchange<double>(world, gradients, compression);
      },
      compression_);
  gradient_bytes_.value += gradients.all().bytes();
  sent_bytes_.value += sent;
}

void GradientCompressor::restore(CompressorState state) {
  for (const auto& [name, values] : state.remains) {
    const bool all_finite = std::visit(
        [](const auto& its) { return std::ranges::all_of(its, [](auto value) { return is_finite(value); }); }, values);
    if (!all_finite) throw UsageError(fmt::format("what remains of the gradient '{}' is infinite or no number", name));
  }
  state_ = std::move(state);
}

void GradientCompressor::all_reduce_mean(Communicator& world, Array array) const {
  all_reduce(world, array,
             {.algorithm = options_.algorithm, .op = ReduceOp::mean, .reproducible = options_.reproducible});
}

template <typename T>
std::vector<std::vector<T>*> GradientCompressor::remains_of(const GradientBuffers& gradients) {
  for (const Piece& piece : gradients.pieces()) {
    const auto at = state_.remains.find(piece.name);
    if (at == state_.remains.end()) continue;
    const auto [before, type] =
        std::visit([]<typename Before>(
                       const std::vector<Before>& values) { return std::pair(values.size(), data_type_of<Before>); },
                   at->second);
    if (before != piece.slice.count || type != data_type_of<T>) {
      throw UsageError(fmt::format("the gradient '{}' had {} elements of {} before, found {} of {}", piece.name, before,
                                   to_string(type), piece.slice.count, to_string(data_type_of<T>)));
    }
  }
  std::vector<std::vector<T>*> result;
  for (const Piece& piece : gradients.pieces()) {
    const auto [at, is_new] = state_.remains.try_emplace(piece.name);
    if (is_new) at->second = std::vector<T>(piece.slice.count);
    result.push_back(&std::get<std::vector<T>>(at->second));
  }
  return result;
}

template <typename T>
std::span<T> GradientCompressor::whole(const GradientBuffers& gradients, const std::vector<std::vector<T>*>& remains) {
  constexpr T kLargest = std::numeric_limits<T>::max();
  const std::span<T> result = whole_.of<T>(gradients.all().length());
  for (std::size_t index = 0; index < remains.size(); ++index) {
    const Slice slice = gradients.pieces()[index].slice;
    const T* gradient = elements<T>(gradients[index]).data();
    const T* kept = remains[index]->data();
    T* sum = result.data() + slice.first;
    for (std::size_t i = 0; i < slice.count; ++i) {
      const T clamped = std::clamp(gradient[i] + kept[i], -kLargest, kLargest);
      sum[i] = is_finite(gradient[i]) ? clamped : gradient[i];
    }
  }
  return result;
}

template <typename T>
std::size_t GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients, const NoCompression&) {
  all_reduce_mean(world, gradients.all());
  return gradients.all().bytes();
}

template <typename T>
std::size_t GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients, const Float16&) {
  return exchange_halves<T>(world, gradients, DataType::float16);
}

template <typename T>
std::size_t GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients, const BFloat16&) {
  return exchange_halves<T>(world, gradients, DataType::bfloat16);
}

template <typename T>
std::size_t GradientCompressor::exchange_halves(Communicator& world, GradientBuffers& gradients, DataType half) {
  const std::vector<std::vector<T>*> remains = remains_of<T>(gradients);
  const std::size_t length = gradients.all().length();
  const std::span<T> left = whole_.of<T>(length);
  const Array sent(sent_.of<std::uint16_t>(length).data(), length, half);
  const double most = largest_summand(half, world.size());
  for (std::size_t index = 0; index < remains.size(); ++index) {
    const Slice slice = gradients.pieces()[index].slice;
    narrow({.gradients = gradients[index],
            .remains = *remains[index],
            .sent = sent.slice(slice.first, slice.count),
            .left = part(left, slice)},
           most);
  }
  all_reduce_mean(world, sent);

  convert(sent, gradients.all());
  for (std::size_t index = 0; index < remains.size(); ++index)
    keep<T>(part(left, gradients.pieces()[index].slice), *remains[index]);
  return sent.bytes();
}

template <typename T>
std::size_t GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients, const TopK& top_k) {
  const std::vector<std::vector<T>*> remains = remains_of<T>(gradients);
  const std::span<T> left = whole(gradients, remains);
  std::size_t words = 0;
  for (const Piece& piece : gradients.pieces()) words += count_of(top_k, piece.slice.count) * kWordsEach<T>;
  const std::span<Word> sent = sent_.of<Word>(words);
  Word* end = sent.data();
  for (const Piece& piece : gradients.pieces()) {
    const std::span<T> values = part(left, piece.slice);
    const auto largest = tutti::top_k(std::span<const T>(values), count_of(top_k, values.size()));
    end = write(largest, end);
    for (const std::uint32_t index : largest.indices) clear_finite(values[index]);
  }
  const std::span<Word> received = received_.of<Word>(words * static_cast<std::size_t>(world.size()));
  all_gather(world, sent, received);

  const std::span<T> mean = elements<T>(gradients.all());
  std::ranges::fill(mean, T{0});
  const Word* from = received.data();
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const Piece& piece : gradients.pieces()) {
      BasicSparseGradient<T> sparse{.indices = {}, .values = {}, .original_len = piece.slice.count};
      from = read(from, count_of(top_k, piece.slice.count), sparse);
      add_to(part(mean, piece.slice), sparse);
    }
  }
  divide(data_type_of<T>, mean.data(), mean.size(), world.size());
  for (std::size_t index = 0; index < remains.size(); ++index)
    keep<T>(part(left, gradients.pieces()[index].slice), *remains[index]);
  return sent.size_bytes();
}

template <typename T>
void GradientCompressor::fill_factor(const std::string& name, std::span<T> q, std::size_t columns) const {
  const auto found = state_.factors.find(name);
  const auto* kept = found == state_.factors.end() ? nullptr : std::get_if<std::vector<T>>(&found->second);
  if (kept != nullptr && kept->size() == q.size())
    std::ranges::copy(*kept, q.begin());
  else
    std::ranges::fill(q, T{0});
  // A column of zeros would stay one for ever: where a gradient has had a lower rank so far, or none was seen yet.
  for (std::size_t column = 0; column < q.size() / columns; ++column) {
    const std::span<T> values = q.subspan(column * columns, columns);
    if (std::ranges::any_of(values, [](T value) { return value != T{0}; })) continue;
    RandomStream draws({options_.seed, hash_of(name), column});
    for (T& value : values) value = static_cast<T>(draws.normal());
  }
}

template <typename T>
std::size_t GradientCompressor::exchange(Communicator& world, GradientBuffers& gradients, const PowerSgd& power_sgd) {
  const std::vector<std::vector<T>*> remains = remains_of<T>(gradients);
  const std::span<T> left = whole(gradients, remains);
  const LowRankPlan plan = plan_of(gradients, power_sgd);
  const std::span<T> first = sent_.of<T>(plan.first_length);
  const std::span<T> second = received_.of<T>(plan.second_length);
  const auto for_each_piece = [&](auto f) {
    for (std::size_t index = 0; index < plan.pieces.size(); ++index) {
      const LowRankPiece& planned = plan.pieces[index];
      const Piece& piece = gradients.pieces()[index];
      f(planned, piece, part(left, piece.slice), part(first, planned.first), part(second, planned.second));
    }
  };

  for_each_piece([&](const LowRankPiece& planned, const Piece& piece, std::span<T> m, std::span<T> p, std::span<T> q) {
    if (planned.is_matrix) {
      fill_factor(piece.name, q, planned.shape.columns);
      matrix_times<T>(m, planned.shape, q, p);
    } else {
      std::ranges::copy(m, p.begin());
      std::ranges::for_each(m, clear_finite<T>);
    }
  });
  all_reduce_mean(world, first);

  for_each_piece([&](const LowRankPiece& planned, const Piece&, std::span<T> m, std::span<T> p, std::span<T> q) {
    if (!planned.is_matrix) return;
    orthonormalise(p, planned.shape.rows);
    transposed_times<T>(m, planned.shape, p, q);
    subtract_outer_product<T>(p, planned.shape, q, m);
  });
  all_reduce_mean(world, second);

  // Room for the factors first: from then on nothing can fail.
  std::vector<std::vector<T>> factors;
  for_each_piece([&](const LowRankPiece& planned, const Piece& piece, std::span<T>, std::span<T>, std::span<T> q) {
    if (!planned.is_matrix) return;
    state_.factors.try_emplace(piece.name, std::vector<T>(0));
    factors.emplace_back(q.begin(), q.end());
  });
  auto factor = factors.begin();
  const std::span<T> mean = elements<T>(gradients.all());
  for_each_piece([&](const LowRankPiece& planned, const Piece& piece, std::span<T>, std::span<T> p, std::span<T> q) {
    if (!planned.is_matrix) {
      std::ranges::copy(p, mean.begin() + static_cast<std::ptrdiff_t>(piece.slice.first));
      return;
    }
    outer_product<T>(p, planned.shape, q, part(mean, piece.slice));
    if (std::ranges::all_of(q, is_finite<T>)) state_.factors.find(piece.name)->second = std::move(*factor);
    ++factor;
  });
  for (std::size_t index = 0; index < remains.size(); ++index)
    keep<T>(part(left, gradients.pieces()[index].slice), *remains[index]);
  return first.size_bytes() + second.size_bytes();
}

}  // namespace tutti
